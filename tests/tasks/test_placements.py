"""Where documents stand in a prompt, and how that is written."""

import re
from itertools import combinations, pairwise

import pytest
from examples import kv_example, qa_example
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from posgap.foundation.errors import PosgapError
from posgap.options.sweep import SweepConfig
from posgap.options.teacher import TeacherConfig
from posgap.tasks.examples import Document, Example
from posgap.tasks.placements import (
    Placement,
    all_placements,
    category,
    format_positions,
    parse_positions,
    shard_of,
    spaced_positions,
    swept_placements,
)
from posgap.tasks.positions import parse_shard
from posgap.tasks.slots import INSERTED, ROTATED, insert_gold


@given(st.integers(1, 12), st.data())
def test_gold_stands_where_it_is_placed_and_distractors_keep_their_order(n_docs, data):
    n_gold = data.draw(st.integers(1, min(2, n_docs)))
    positions = data.draw(st.permutations(range(1, n_docs + 1)))[:n_gold]
    gold = [Document(title=f"g{i}", text="") for i in range(n_gold)]
    others = [Document(title=f"d{i}", text="") for i in range(12)]
    example = Example(id="x", question="?", answers=["y"], gold=gold, distractors=others)
    arranged = insert_gold(example, Placement(tuple(positions), n_docs))
    assert len(arranged) == n_docs
    assert [arranged[p - 1] for p in positions] == gold
    assert [d for d in arranged if d not in gold] == others[: n_docs - n_gold]


def test_prompts_of_one_example_differ_only_in_the_gold_position():
    example = kv_example(n_records=6)
    for placement in all_placements(5, 1):
        arranged = insert_gold(example, placement)
        assert arranged[placement.positions[0] - 1] == example.gold[0]
        assert [d for d in arranged if d != example.gold[0]] == example.distractors[:4]


@given(st.integers(1, 10), st.integers(1, 9), st.sampled_from(["a", "b"]))
def test_shuffled_distractors_are_the_same_ones_alike_at_every_placement(n_docs, seed, name):
    others = [Document(title=f"d{i}", text="") for i in range(9)]
    gold = [Document(title="gold", text="")]
    example = Example(id=name, question="?", answers=["y"], gold=gold, distractors=others)
    orders = []
    for placement in all_placements(n_docs, 1):
        arranged = insert_gold(example, placement, shuffle=seed)
        assert arranged[placement.positions[0] - 1] == gold[0] and len(arranged) == n_docs
        orders.append([d for d in arranged if d != gold[0]])
    assert all(order == orders[0] for order in orders)
    assert sorted(d.title for d in orders[0]) == [d.title for d in others[: n_docs - 1]]


def test_other_seeds_and_other_examples_are_shuffled_otherwise():
    others = kv_example(0, 12).distractors
    examples = [Example(id=i, question="?", answers=["y"], gold=qa_example().gold, distractors=others) for i in "ab"]
    orders = [tuple(d.text for d in insert_gold(e, Placement((1,), 12), seed)) for e in examples for seed in (0, 1, 2)]
    assert orders[0] == orders[3] and len(set(orders)) == 5  # unshuffled, they are alike


@pytest.mark.parametrize("positions", [(0,), (6,), (2, 2), (-1,), (1, 6), (0, 3)])
def test_impossible_placements_are_refused(positions):
    with pytest.raises(PosgapError):
        Placement(positions, 5)


def test_example_and_placement_have_as_many_gold_documents():
    with refuses(PosgapError, "qa-0", "1 gold ", "2 position"):
        insert_gold(qa_example(), Placement((1, 2), 3))


def test_too_few_distractors_name_the_example():
    with refuses(PosgapError, "qa-0", "3 distractors", "6 documents", "5;"):
        insert_gold(qa_example(), Placement((1,), 6))


@given(st.lists(st.integers(1, 10**6), min_size=1, max_size=2))
def test_positions_survive_being_written(positions):
    assert parse_positions(format_positions(positions)) == tuple(positions)
    assert parse_positions(f" {format_positions(positions)} ") == tuple(positions)


@given(st.text(alphabet="0123456789+- .x²٣", max_size=6))
def test_text_is_a_placement_or_is_refused(text):
    try:
        positions = parse_positions(text)
    except ValueError as error:
        assert "write a position like 7, or two like 3+7" in str(error)
    else:
        assert len(positions) == text.count("+") + 1 and min(positions) >= 1


def test_a_number_has_nine_digits_at_most():
    """`int` fails on thousands of them."""
    assert parse_positions("123456789") == (123456789,) and parse_shard("1/123456789") == (1, 123456789)
    for text in ("1234567890", "9" * 5000):
        with pytest.raises(ValueError, match=text):
            parse_positions(text)


@pytest.mark.parametrize("text", ["", "0", "+3", "3+", "1++3", "1 2", "3+0", "-1", "1.5", "٣"])
def test_what_is_no_placement_is_refused(text):
    with pytest.raises(ValueError, match=re.escape(repr(text.strip()))):
        parse_positions(text)


@given(st.integers(1, 99), st.integers(1, 99))
def test_a_part_of_a_sweep_is_read_as_it_is_written(part, parts):
    if part <= parts:
        assert parse_shard(f"{part}/{parts}") == (part, parts)
    else:
        with pytest.raises(ValueError, match=f"'{part}/{parts}'"):
            parse_shard(f"{part}/{parts}")


@pytest.mark.parametrize(
    "text", ["", "/", "2", "2/", "/4", "0/4", "5/4", "1/2/3", "a/4", "1/b", "٢/4", "2/٤", "²/4", "-1/4", "1/1234567890"]
)
def test_what_is_no_part_is_refused(text):
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_shard(text)


@given(st.integers(1, 30), st.integers(1, 30))
def test_the_parts_of_a_sweep_are_its_placements_in_order_shared_evenly(n_docs, parts):
    placements = all_placements(n_docs, 1)
    assert shard_of(placements, "") == placements
    if parts > n_docs:
        with refuses(PosgapError, f"shard 1/{parts}", f"{n_docs} placements"):
            shard_of(placements, f"1/{parts}")
        return
    shards = [shard_of(placements, f"{part}/{parts}") for part in range(1, parts + 1)]
    assert [placement for shard in shards for placement in shard] == placements
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@given(st.integers(1, 60), st.integers(0, 70))
def test_spaced_positions_are_both_ends_and_even_steps_between(n_docs, count):
    positions = spaced_positions(n_docs, count)
    assert positions == sorted(set(positions)) and set(positions) <= set(range(1, n_docs + 1))
    if 2 <= count < n_docs:
        assert (len(positions), positions[0], positions[-1]) == (count, 1, n_docs)
        steps = [b - a for a, b in pairwise(positions)]
        assert max(steps) - min(steps) <= 2  # rounding moves each end by a half at most
    else:
        assert positions == list(range(1, n_docs + 1))


def test_spaced_positions_by_hand():
    assert spaced_positions(20, 5) == [1, 6, 10, 15, 20]
    assert spaced_positions(20, 2) == [1, 20]
    assert spaced_positions(20, 19) == [i for i in range(1, 21) if i != 11]


@pytest.mark.parametrize(
    ("positions", "name"),
    [((4,), ""), ((3, 4), "connected"), ((3, 5), "disconnected"), ((4, 3), "reversed"), ((9, 1), "reversed")],
)
def test_categories_of_pairs(positions, name):
    assert category(positions) == name


@given(st.integers(2, 30))
def test_every_ordered_pair_is_a_placement_once(n_docs):
    pairs = [p.positions for p in all_placements(n_docs, 2)]
    assert len(set(pairs)) == len(pairs) == n_docs * (n_docs - 1)
    assert all(pre != post for pre, post in pairs)


def test_the_positions_asked_for_are_swept_in_order():
    assert [p.positions for p in swept_placements(20, 1, ["5", "1"])] == [(5,), (1,)]
    assert [p.positions for p in swept_placements(20, 2, ["19+20", "7+3"])] == [(19, 20), (7, 3)]
    assert swept_placements(20, 1) == all_placements(20, 1)


def test_pairs_of_all_categories_are_swept_at_five_anchors():
    pairs = [p.positions for p in swept_placements(20, 2)]
    assert pairs[:5] == [(1, 2), (6, 7), (10, 11), (15, 16), (19, 20)]
    assert pairs[5:15] == [(1, 6), (1, 10), (1, 15), (1, 20), (6, 10), (6, 15), (6, 20), (10, 15), (10, 20), (15, 20)]
    assert sorted(pairs[15:]) == sorted((b, a) for a, b in pairs[:15])
    near = [p.positions for p in swept_placements(9, 2)]  # anchors stand two apart
    assert near[:15] == [(1, 2), (3, 4), (5, 6), (7, 8), (8, 9)] + [
        (a, b) for a in (1, 3, 5, 7) for b in range(a + 2, 10, 2)
    ]


@pytest.mark.parametrize(
    "positions, n_docs, among, expected",
    [
        ((1,), 20, 40, (1,)),
        ((20,), 20, 40, (40,)),
        ((10,), 19, 37, (19,)),
        ((10,), 19, 1, (1,)),
        ((1,), 1, 7, (1,)),
        ((19, 20), 20, 10, (9, 10)),  # neighbours at the end stay neighbours there
        ((2, 1), 20, 5, (2, 1)),
        ((5, 1, 3), 9, 3, (3, 1, 2)),
    ],
)
def test_a_placement_at_the_same_depth_among_others(positions, n_docs, among, expected):
    assert Placement(positions, n_docs).among(among) == Placement(expected, among)


@given(st.integers(1, 30), st.integers(1, 30), st.data())
def test_depths_keep_the_order_of_gold_documents(n_docs, among, data):
    n_gold = data.draw(st.integers(1, min(n_docs, among, 4)))
    positions = data.draw(st.permutations(range(1, n_docs + 1)))[:n_gold]
    found = Placement(tuple(positions), n_docs).among(among).positions
    assert [a < b for a, b in combinations(found, 2)] == [a < b for a, b in combinations(positions, 2)]
    assert Placement(tuple(positions), n_docs).among(n_docs).positions == tuple(positions)


def test_more_gold_documents_than_documents_have_no_placement():
    with pytest.raises(PosgapError):
        Placement((1, 2, 3), 5).among(2)


def test_a_prompt_of_one_document_has_no_pairs():
    assert [p.positions for p in swept_placements(2, 2)] == [(1, 2), (2, 1)]
    with refuses(PosgapError, "n_docs=1"):
        swept_placements(1, 2)


@given(st.integers(2, 200))
def test_swept_pairs_differ_and_are_told_by_category(n_docs):
    pairs = [p.positions for p in swept_placements(n_docs, 2)]
    assert len(set(pairs)) == len(pairs)
    assert {(b, a) for a, b in pairs} == set(pairs)
    assert pairs == sorted(pairs, key=lambda pair: (category(pair), pair))  # connected, disconnected, reversed
    assert (1, 2) in pairs and (n_docs - 1, n_docs) in pairs


@pytest.mark.parametrize(
    ("n_gold", "chosen", "named"),
    [
        (2, ["7"], ["placement 7: ", "2 gold documents"]),
        (1, ["3+7"], ["placement 3+7: ", "one gold document"]),
        (1, ["21"], ["position 21: ", "1..20"]),
        (2, ["3+3"], ["placement 3+3: "]),
        (1, ["7", "5", "07"], ["placement 7: "]),
    ],
)
def test_placements_that_do_not_fit_the_task_are_refused(n_gold, chosen, named):
    with refuses(PosgapError, *named):
        swept_placements(20, n_gold, chosen)


@pytest.mark.parametrize(
    ("positions", "kept"),
    [("1, 5,10", ["1", "5", "10"]), ("1+2,19+20", ["1+2", "19+20"]), ([1, 5.0, "3+7"], ["1", "5", "3+7"]), ("", [])],
)
def test_a_sweep_s_positions_come_as_text_or_from_kfp_as_a_list(positions, kept):
    assert SweepConfig(examples="e", model="m", out="o", positions=positions).positions == kept


@pytest.mark.parametrize(("positions", "kept"), [("", []), ("19+20", ["19+20"]), ("1,20", ["1", "20"]), ([1.0], ["1"])])
def test_advantageous_placements_come_as_text_or_from_kfp_as_a_list(positions, kept):
    assert TeacherConfig(examples="e", model="m", out="o", advantageous=positions).advantageous == kept


@given(st.integers(1, 9), st.integers(0, 3))
def test_turned_items_stand_in_every_slot_once(n_docs, shuffle):
    example = qa_example(3, n_docs)
    orders = [ROTATED.arrange(example, placement, shuffle) for placement in ROTATED.swept(n_docs, 1)]
    assert [order.index(example.gold[0]) for order in orders] == list(range(n_docs))
    assert all(len({order[slot].text for order in orders}) == n_docs for slot in range(n_docs))
    if n_docs == 2:  # a swap, which inserting is too
        assert orders == [INSERTED.arrange(example, placement, shuffle) for placement in INSERTED.swept(2, 1)]


def test_placements_of_three_gold_documents_are_named():
    assert [p.positions for p in swept_placements(9, 3, ["1+2+3", "9+5+1"])] == [(1, 2, 3), (9, 5, 1)]
    with refuses(PosgapError, "3 gold documents"):
        swept_placements(9, 3)
