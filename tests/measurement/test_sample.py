"""No order of lines moves a figure, and examples that hang together count once."""

import math
import random

import numpy as np
import pytest
from examples import kv_example
from hypothesis import given, settings
from hypothesis import strategies as st
from written_sweeps import N, decide, write_sweep

from posgap.data.reading import write_examples
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_json, write_json
from posgap.gating.evidence import wrong_figure
from posgap.measurement import statistics
from posgap.measurement.comparison import compare_sweeps
from posgap.measurement.evidence import Evidence
from posgap.measurement.figures import summarize
from posgap.measurement.rescoring import require_scores, swept_examples
from posgap.measurement.sample import Sample
from posgap.measurement.sweeps import read_sweep
from posgap.options.sweep import SweepConfig
from posgap.tasks.content import content_key, find_groups
from posgap.tasks.examples import Document, Example, KVExample
from posgap.verbs.sweep import sweep_model

PLACEMENTS = [[1], [2], [3]]
LETTERS = "abcdefghij"


def shared(number: int, question: int, document: int) -> Example:
    """An example with a question and a gold document that others may have too."""
    gold = Document(title=f"Record {document}", text=f"All that is known of the matter with the number {document}.")
    other = Document(title=f"Other {number}", text=f"Something else entirely, of the number {number}.")
    named = {"question": f"Who wrote number {question}?", "answers": [f"writer {question}"]}
    return Example(id=f"e{number}", **named, gold=[gold], distractors=[other])


def components(examples) -> list[list[str]]:
    """Groups by brute force: whoever shares a question or a document is joined until nothing changes."""
    labels = list(range(len(examples)))
    for _ in examples:
        for i, one in enumerate(examples):
            for j, other in enumerate(examples):
                if one.question == other.question or one.gold == other.gold:
                    labels[i] = labels[j] = min(labels[i], labels[j])
    contents = {label: sorted(content_key(e) for e, own in zip(examples, labels) if own == label) for label in labels}
    return sorted(group for group in contents.values() if len(group) > 1)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=2, max_size=9, unique=True))
def test_groups_are_those_that_a_search_of_all_pairs_finds(drawn):
    examples = [shared(number, *each) for number, each in enumerate(drawn)]
    assert find_groups(examples) == find_groups(examples[::-1]) == components(examples)


def test_punctuation_makes_no_other_question():
    example = shared(0, 0, 0)
    marked = ["", "?", " ?", " "]
    examples = [
        shared(number, 0, number).model_copy(
            update={"question": f"{example.question}{mark}", "answers": example.answers}
        )
        for number, mark in enumerate(marked)
    ]
    assert len({content_key(each) for each in examples}) == 4
    assert find_groups(examples) == [sorted(map(content_key, examples))]


def test_records_tie_examples_unless_they_agree_by_chance():
    def asking(id, key, records):
        return KVExample(
            id=id, question=key, answers=[records[key]], key=key, value=records[key], records=[*records.items()]
        )

    long = {f"the key with the number {i}": f"the value with the number {i}" for i in range(4)}
    short = {f"k{i}": f"v{i}" for i in range(4)}
    for records, groups in ((long, 1), (short, 0)):
        examples = [asking(f"e{i}", key, records) for i, key in enumerate(records)]
        assert len(find_groups(examples)) == groups


@settings(deadline=None, max_examples=30)
@given(st.permutations(range(10)), st.integers(0, 99), st.booleans())
def test_no_order_of_examples_moves_a_figure(order, seed, in_groups):
    groups = [["a", "c", "j"], ["b", "d"]] if in_groups else []
    scores = np.random.default_rng(seed).choice([0, 0.3, 0.7, 1], (10, 3))
    found = summarize(scores, PLACEMENTS, 0, sample=Sample(LETTERS, groups))
    shuffled = Sample([LETTERS[at] for at in order], groups)
    assert summarize(scores[list(order)], PLACEMENTS, 0, sample=shuffled) == found
    assert found["n_examples"] == 10 and shuffled.n == (7 if in_groups else 10)


def test_a_group_counts_once_as_the_mean_of_its_examples():
    scores = np.array([[1, 0], [0, 0], [1, 1], [0, 1.0]])
    sample = Sample("dbca", [["b", "d"]])
    assert sample.average(scores).tolist() == [[0, 1], [0.5, 0], [1, 1]]
    assert sample.average(scores[:, 0]).tolist() == [0, 0.5, 1]
    alone, copied = np.random.default_rng(0).random((2, 30, 4)).round()[0], [f"{i:02}" for i in range(30)]
    copies = Sample(
        [f"{each}-{k}" for k in range(10) for each in copied], [[f"{e}-{k}" for k in range(10)] for e in copied]
    )
    of_copies = summarize(np.tile(alone, (10, 1)), [[1], [2], [3], [4]], 0, sample=copies)
    once = summarize(alone, [[1], [2], [3], [4]], 0, sample=Sample(copied))
    assert of_copies == once | {"n_examples": 300, "groups": copies.groups}


@pytest.mark.full
def test_the_gate_says_one_thing_of_ten_orders_of_one_file(tmp_path):
    said, differences = set(), set()
    for number in range(10):
        order = list(range(N))
        random.Random(number).shuffle(order)
        (tmp_path / f"of{number}").mkdir()
        folders = [write_sweep(tmp_path / f"{name}{number}", skill, seed=seed, order=order) for name, skill, seed in
                   (("base", [0.95, 0.8, 0.6, 0.8, 0.9], 1), ("new", [0.95, 0.9, 0.9, 0.92, 0.93], 2))]  # fmt: skip
        verdict, _ = decide(tmp_path / f"of{number}", folders[1], folders[0])
        said.add((verdict.outcome, *((rule.estimate, *rule.interval) for rule in verdict.rules)))
        [difference] = compare_sweeps([Evidence(folder) for folder in folders]).differences
        differences.add(difference.model_dump_json())
        assert read_sweep(folders[1]).model_dump() == read_sweep(tmp_path / "new0").model_dump()
    assert len(said) == len(differences) == 1


def test_flat_models_of_groups_are_called_uneven_as_often_as_the_level_says():
    """20 documents with ten questions each, of which each document is harder at some of the placements."""
    rng, uneven, missed, runs = np.random.default_rng(0), np.zeros(2), np.zeros(2), 300
    contents = [f"{group:02}-{k}" for group in range(20) for k in range(10)]
    sample = Sample(contents, [contents[at : at + 10] for at in range(0, 200, 10)])
    for _ in range(runs):
        logits = 1 + rng.normal(0, 1, (20, 1, 1)) + rng.normal(0, 1, (20, 1, 5))
        right = (rng.random((20, 10, 5)) < 1 / (1 + np.exp(-logits))).astype(float).reshape(200, 5)
        for at, scores in enumerate((right, sample.average(right))):
            uneven[at] += statistics.flatness_p(scores) < 0.05
            low, high = statistics.mean_interval(scores.mean(axis=1))
            missed[at] += not low <= 68.4 <= high
    assert uneven[0] / runs > 0.2 and uneven[1] / runs <= 0.08
    assert missed[0] / runs > 0.2 and missed[1] / runs <= 0.08


def test_sweeps_say_and_gates_find_again_which_examples_count_as_one(tmp_path):
    folder = write_sweep(tmp_path / "a", [0.9] * 5, order=range(N))
    assert read_sweep(folder).sample_text == f"{N} examples" and not wrong_figure(Evidence(folder))
    raw = read_json(folder / "sweep.json")
    contents = sorted(Evidence(folder).contents)
    claimed = raw | {"groups": [contents[:2]]}
    write_json(folder / "sweep.json", claimed)
    assert read_sweep(folder).sample_text == f"{N} examples in {N - 1} groups"
    assert wrong_figure(Evidence(folder))  # counted otherwise, its intervals are others
    with pytest.raises(PosgapError, match=f"^{folder}: .* groups "):
        require_scores(Evidence(folder), swept_examples(folder))


def test_an_example_that_is_there_twice_is_refused_before_the_first_prompt(tmp_path):
    examples = [kv_example(1, 4), kv_example(2, 4), kv_example(1, 4).model_copy(update={"id": "again"})]
    write_examples(tmp_path / "e.jsonl", examples)
    config = SweepConfig(examples=tmp_path / "e.jsonl", model="m", backend="openai", base_url="http://127.0.0.1:9/v1",
                         n_docs=4, out=tmp_path / "out")  # fmt: skip
    with pytest.raises(PosgapError, match=f" {examples[0].id} and again "):
        sweep_model(config)


@pytest.mark.parametrize("n", [2, 3, 9, 200])
def test_halves_are_even_and_the_same_in_every_call(n):
    halves = statistics.split_halves(n)
    assert halves.shape == (statistics.SPLITS, n) and (halves.sum(axis=1) == n // 2).all()
    assert (halves == statistics.split_halves(n)).all()
    assert len({tuple(half) for half in halves}) >= min(math.comb(n, n // 2), 2)
