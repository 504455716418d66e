"""Where documents stand in a prompt."""

import pytest
from conftest import kv_example, qa_example
from hypothesis import given
from hypothesis import strategies as st

from posgap.errors import PosgapError
from posgap.tasks.examples import Document, Example
from posgap.tasks.placements import Placement, all_placements, arrange


@given(st.integers(1, 12), st.data())
def test_gold_stands_where_it_is_placed_and_distractors_keep_their_order(n_docs, data):
    n_gold = data.draw(st.integers(1, min(2, n_docs)))
    positions = data.draw(st.permutations(range(1, n_docs + 1)))[:n_gold]
    gold = [Document(title=f"g{i}", text="") for i in range(n_gold)]
    others = [Document(title=f"d{i}", text="") for i in range(12)]
    example = Example(id="x", question="?", answers=["y"], gold=gold, distractors=others)
    arranged = arrange(example, Placement(tuple(positions), n_docs))
    assert len(arranged) == n_docs
    assert [arranged[p - 1] for p in positions] == gold
    assert [d for d in arranged if d not in gold] == others[: n_docs - n_gold]


def test_prompts_of_one_example_differ_only_in_the_gold_position():
    example = kv_example(n_records=6)
    for placement in all_placements(5):
        arranged = arrange(example, placement)
        assert arranged[placement.positions[0] - 1] == example.gold[0]
        assert [d for d in arranged if d != example.gold[0]] == example.distractors[:4]


@pytest.mark.parametrize("positions", [(0,), (6,), (2, 2)])
def test_impossible_placements_are_refused(positions):
    with pytest.raises(PosgapError):
        Placement(positions, 5)


def test_too_few_distractors_name_the_example():
    with pytest.raises(PosgapError, match="qa-0: 3 distractors, but 6 documents need 5"):
        arrange(qa_example(), Placement((1,), 6))


def test_the_positions_asked_for_are_swept_in_order():
    assert [p.positions for p in all_placements(20, [5, 1])] == [(5,), (1,)]
    assert len(all_placements(20)) == 20
