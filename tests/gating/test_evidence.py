"""What a verdict rests on: when a sweep is too little, what its record says, and where figures differ from others."""

import json
from itertools import combinations
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses
from written_sweeps import ASKED, N, example, write_sweep

from posgap.foundation.errors import Contradiction, NotAlike, PosgapError
from posgap.foundation.files import digest_of, digest_path, read_json, write_json
from posgap.gating.demands import Policy
from posgap.gating.evidence import (
    evidence_gaps,
    first_difference,
    folder_of,
    read_gate_inputs,
    sweep_record,
    wrong_figure,
)
from posgap.measurement.evidence import Evidence
from posgap.storage.lineage import write_training_examples
from posgap.tasks.content import content_key

CURVE = [0.9, 0.6, 0.3, 0.6, 0.9]


def swept(placements, n_docs, **more) -> SimpleNamespace:
    """What `evidence_gaps` reads of a sweep."""
    described = {"task": "kv", "metric": "match", "examples_digest": "e" * 64, "n_examples": 200} | more
    described |= {"n_independent": described["n_examples"], "sample_text": f"{described['n_examples']} examples"}
    return SimpleNamespace(**described, placements=placements, n_docs=n_docs)


@given(st.integers(1, 24), st.data())
def test_no_quarter_of_the_documents_may_lie_between_two_positions(n_docs, data):
    positions = data.draw(st.sets(st.integers(1, n_docs), min_size=1))
    complaints = evidence_gaps(swept([[p] for p in positions], n_docs), Policy(least_placements=2))
    holes = [complaint for complaint in complaints if complaint.startswith("nothing is known")]
    # A step from each document to the next position leads over at most a quarter of the documents, rounded up.
    step = max(1, -(-n_docs // 4))
    covered = {1, n_docs} <= positions and all(
        any(p in positions for p in range(at + 1, at + step + 1)) for at in positions if at < n_docs
    )
    assert (holes == []) == covered


def test_holes_are_named_by_their_ends_and_the_first_one_alone():
    few = Policy(least_placements=2)
    for positions, said in {
        (1, 20): "nothing is known between positions 1 and 20 of 20",
        (3, 8, 13, 18, 20): "nothing is known between positions 1 and 3 of 20",
        (1, 6, 11, 16): "nothing is known between positions 16 and 20 of 20",
        (1, 6, 12, 20): "nothing is known between positions 6 and 12 of 20",
    }.items():
        assert evidence_gaps(swept([[p] for p in positions], 20), few) == [said]
    pairs = [[1, 20], [20, 1], [6, 15], [11, 10], [16, 5]]
    assert evidence_gaps(swept(pairs, 20), few) == []
    # The second document's positions leave holes, though the first one's do not.
    assert evidence_gaps(swept([[1, 2], [6, 5], [11, 10], [16, 15], [20, 19]], 20), few) == [
        "nothing is known between positions 1 and 2 of 20"
    ]


def test_a_policy_may_want_more_and_every_want_is_named():
    positions = [[1], [2], [3]]
    assert evidence_gaps(swept(positions, 3), Policy()) == []  # five placements of three documents there cannot be
    assert (
        evidence_gaps(swept(positions, 3), Policy(least_placements=2, least_examples=200, task="kv", data="e" * 64))
        == []
    )
    assert evidence_gaps(swept([[1], [2], [3], [4]], 4, n_examples=9), Policy(task="qa", data="f" * 64)) == [
        "task kv, and the policy asks for qa",
        "examples eeeeeeeeeeee, and the policy asks for ffffffffffff",
        "9 examples, and the gate asks for 100",
    ]
    assert evidence_gaps(swept([[1], [3], [5], [6]], 6), Policy()) == ["4 placements, and the gate asks for 5"]


def test_the_record_of_a_sweep_has_the_digests_of_all_that_was_judged(tmp_path):
    folder = write_sweep(tmp_path / "a", CURVE, examples="e")
    for path in (folder, folder / "sweep.json"):
        assert folder_of(path) == folder
        record = sweep_record(Evidence(path))
        assert record.files == {
            "sweep.json": digest_path(folder / "sweep.json"),
            "predictions.jsonl": digest_path(folder / "predictions.jsonl"),
            "training_examples.json": "",
        }
        assert (record.label, record.model, record.model_digest, record.examples_digest) == ("m", "m", "", "e")
        assert record.settings_digest == digest_of({})
    write_training_examples(folder, ["0" * 16])
    assert sweep_record(Evidence(folder)).files["training_examples.json"] == digest_path(
        folder / "training_examples.json"
    )


def test_sweeps_are_paired_by_the_candidate_s_examples_and_differences_told_once(tmp_path):
    candidate = write_sweep(
        tmp_path / "new", CURVE, "m", 0, "e", asked=ASKED.model_copy(update={"question": "both", "shuffle": 3})
    )
    base = write_sweep(tmp_path / "old", CURVE, seed=1, examples="e", order=range(N)[::-1])
    champion = write_sweep(
        tmp_path / "best", CURVE, seed=2, examples="e", asked=ASKED.model_copy(update={"question": "both"})
    )
    case, otherwise = read_gate_inputs(candidate, base, champion, iter(["shuffle", "question"]))
    assert otherwise == ["question", "shuffle"]
    assert [sweep.path for sweep in (case.candidate, case.base, case.champion)] == [candidate, base, champion]
    assert case.candidate.contents == case.base.contents == case.champion.contents
    assert (case.base.scores == Evidence(base).scores[::-1]).all()
    assert (case.base.correct == Evidence(base).correct).all()
    case, otherwise = read_gate_inputs(candidate, candidate, None, [])
    assert case.champion is None and otherwise == []
    case, otherwise = read_gate_inputs(candidate, None, None, [])
    assert case.base is case.champion is None and otherwise == []
    case, otherwise = read_gate_inputs(candidate, None, champion, ["shuffle"])
    assert case.base is None and case.champion.path == champion and otherwise == ["shuffle"]
    with refuses(NotAlike, "shuffle (", at=f"{champion} and {candidate}"):
        read_gate_inputs(candidate, candidate, champion, [])


def test_the_first_learnt_example_is_named_and_the_base_may_have_learnt_any(tmp_path):
    new, old = write_sweep(tmp_path / "new", CURVE), write_sweep(tmp_path / "old", CURVE)
    write_training_examples(old, [content_key(example(e)) for e in range(N)])
    read_gate_inputs(new, old, None, [])
    write_training_examples(new, [content_key(example(e)) for e in (9, 5, 1000)])
    with pytest.raises(PosgapError) as refused:
        read_gate_inputs(new, old, None, [])
    assert str(refused.value) == (
        f"{new}: m, or a model it was made from, learnt 2 of the 200 examples (e5, ...); judge it on others"
    )


def test_every_figure_of_a_sweep_follows_from_its_predictions(tmp_path):
    folder = write_sweep(tmp_path / "a", CURVE)
    true = read_json(folder / "sweep.json")
    assert wrong_figure(Evidence(folder)) == ""
    for name in ("mean", "gap", "gap_noise"):
        write_json(folder / "sweep.json", true | {name: true[name] + 1})
        assert wrong_figure(Evidence(folder)) == f"{name} is {true[name] + 1}, and should be {true[name]}"
    write_json(folder / "sweep.json", true | {"mean": true["mean"] + 1})
    with refuses(Contradiction, "mean is ", at=folder / "sweep.json"):
        read_gate_inputs(folder, folder, None, [])
    # The noise of a gap is that of a seed, which the settings name.
    write_json(folder / "sweep.json", true | {"settings": {"seed": 7}})
    assert wrong_figure(Evidence(folder)).startswith("gap_noise is ")
    write_json(folder / "sweep.json", true | {"settings": {"seed": "7"}})
    assert wrong_figure(Evidence(folder)) == ""


PLACES = [
    ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 3}]}}, "a.b.1.c is 2, and should be 3"),
    ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "b is 2, and should be 3"),
    ({"a": 1}, {"a": 1, "b": 0}, "b is None, and should be 0"),
    ({"a": 1, "b": 0}, {"a": 1}, "b is 0, and should be None"),
    ({"a": [1, 2]}, {"a": [1, 2, 3]}, "a is [1, 2], and should be [1, 2, 3]"),
    ({"a": [5, 6]}, {"a": [5, 7]}, "a.1 is 6, and should be 7"),
    ({"a": {}}, {"a": []}, "a is {}, and should be []"),
    ({"a": []}, {"a": {}}, "a is [], and should be {}"),
    ({"a": 50.0}, {"a": 50.000002}, "a is 50.0, and should be 50.000002"),
    ({"a": 1e6}, {"a": 1e6 + 0.01}, "a is 1000000.0, and should be 1000000.01"),
    ({"a": "x"}, {"a": "y"}, "a is x, and should be y"),
    ({"a": True}, {"a": 1.0000001}, "a is True, and should be 1.0000001"),
    ({"a": 1.0000001}, {"a": True}, "a is 1.0000001, and should be True"),
    ({"a": None}, {"a": 0.0}, "a is None, and should be 0.0"),
    ({"x": 1, "y": 2, "z": 3}, {"x": 1, "y": 0, "z": 0}, "y is 2, and should be 0"),
]


@pytest.mark.parametrize(("told", "again", "said"), PLACES, ids=[said for *_, said in PLACES])
def test_where_two_files_differ_is_said_by_its_place(told, again, said):
    assert first_difference(told, again) == said


nested = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(min_size=1, max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(nested)
def test_what_is_alike_does_not_differ(value):
    assert first_difference(value, json.loads(json.dumps(value))) == ""


def test_figures_of_another_machine_may_differ_by_rounding():
    for figure, other in combinations((50.0, 50.0 + 9e-7, 50.0 - 9e-8), 2):
        assert first_difference({"a": [figure]}, {"a": [other]}) == ""
    assert first_difference({"a": 1e6}, {"a": 1e6 + 1e-4}) == ""  # a billionth of a large figure
