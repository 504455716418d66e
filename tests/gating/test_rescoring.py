"""Scores that somebody wrote are not believed: each of these forgeries was once admitted."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import refuses
from written_sweeps import N, decide, example, promotion, write_sweep

from posgap.data.reading import write_examples
from posgap.foundation.errors import Contradiction, NotAlike, NotFound
from posgap.foundation.files import read_json, read_jsonl, write_json, write_jsonl
from posgap.gating.demands import Policy
from posgap.gating.verdict import judge, read_verdict
from posgap.measurement.evidence import Evidence
from posgap.measurement.figures import summarize
from posgap.measurement.rescoring import require_scores, swept_examples
from posgap.measurement.sample import Sample
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.storage.lineage import write_training_examples
from posgap.tasks.content import content_key
from posgap.verbs.promote import promote

LOST = [1.0, 0.6, 0.3, 0.6, 0.9]


def forge(folder, change):
    """Changes every row of a sweep, and sums its figures anew as `sweep` does: the files agree with each other."""
    rows = [row | change(row) for _, row in read_jsonl(folder / "predictions.jsonl")]
    write_jsonl(folder / "predictions.jsonl", rows)
    known = read_sweep(folder)
    correct = np.array([row["correct"] for row in rows], dtype=float).reshape(-1, len(known.placements))
    sample = Sample([*dict.fromkeys(row["content"] for row in rows)], known.groups)
    figures = summarize(correct, known.placements, 0, sample=sample)
    write_json(folder / "sweep.json", Sweep(**known.model_dump() | figures).model_dump(mode="json"))
    return folder


def test_right_answers_that_nobody_gave_are_refused(tmp_path, base):
    new = forge(write_sweep(tmp_path / "new", LOST), lambda row: {"correct": True})
    assert read_sweep(new).mean == 100 and judge(new, base, None, Policy()).passed, "the files agree with each other"
    with refuses(Contradiction, "'said' is 0 and not 1", at="at 2"):
        decide(tmp_path, new, base)
    assert not (tmp_path / "gate").exists()


def test_a_response_without_text_is_never_right(tmp_path, base):
    new = forge(write_sweep(tmp_path / "new", LOST), lambda row: {"correct": True, "response": ""})
    with refuses(Contradiction, "'' is 0 and not 1", at="new: e0 at 1"):
        decide(tmp_path, new, base)


def test_an_echo_that_a_row_hides_is_refused(tmp_path, base):
    """It is looked for again, like scores: a copy of the prompt holds the answer wherever it stands."""
    new = write_sweep(tmp_path / "new", [0.995] * 5)

    def repeated(row):
        of = example(int(row["id"][1:]))
        right = f'"{of.answers[0]}"'
        listed = " ".join(f'"{key}": "{value}",' for key, value in of.records)
        return {"correct": False, "response": f"{right} {listed}"}

    with refuses(Contradiction, at="new: e0 at 1"):
        decide(tmp_path, forge(new, repeated), base)


def test_a_base_that_is_made_worse_is_refused(tmp_path, base):
    forge(base, lambda row: {"correct": False})
    with refuses(Contradiction, "v0-0", "is 1 and not 0", at="base: e0 at 1"):
        decide(tmp_path, write_sweep(tmp_path / "new", [0.995] * 5), base)


def test_examples_go_by_what_they_ask_and_not_by_what_rows_say_of_it(tmp_path, base):
    """Other contents would hide that the model learnt the examples."""
    new = write_sweep(tmp_path / "new", [0.995] * 5)
    write_training_examples(new, [content_key(example(e)) for e in range(N)])
    forge(new, lambda row: {"content": row["content"][::-1]})
    forge(base, lambda row: {"content": row["content"][::-1]})
    assert judge(new, base, None, Policy()).passed
    with refuses(NotAlike, new, "0 of 200"):
        decide(tmp_path, new, base)


def test_a_digest_that_a_policy_wants_is_not_got_by_writing_it(tmp_path, base):
    new = write_sweep(tmp_path / "new", [0.995] * 5)
    (tmp_path / "policy.yaml").write_text(f"data: {'ab' * 32}\n")
    for folder in (new, base):
        write_json(folder / "sweep.json", read_json(folder / "sweep.json") | {"examples_digest": "ab" * 32})
    with refuses(NotAlike, new, "200 of 200"):
        decide(tmp_path, new, base, policy=tmp_path / "policy.yaml")


def test_examples_must_be_at_hand_and_those_that_were_swept(tmp_path, base):
    new = write_sweep(tmp_path / "new", [0.995] * 5)
    others = tmp_path / "others.jsonl"
    write_examples(others, [example(e) for e in range(1, N + 1)])
    with refuses(NotAlike, new, "199 of 200", at=others):
        decide(tmp_path, new, base, examples=others)
    more = tmp_path / "more.jsonl"
    write_examples(more, [example(e) for e in reversed(range(N + 9))])
    assert decide(tmp_path, new, base, examples=more)[0].passed, "a sweep may be of a part, in another order"
    (new / "examples.jsonl").rename(tmp_path / "elsewhere.jsonl")
    with refuses(NotFound, "examples.jsonl", "--examples", at=new):
        decide(tmp_path, new, base, max_gap=9)
    write_json(new / "manifest.json", {})
    with refuses(NotFound, "--examples", at=new):
        decide(tmp_path, new, base, max_gap=9)


def test_a_relative_path_is_found_from_another_folder(tmp_path, base, monkeypatch):
    new = write_sweep(tmp_path / "new", [0.995] * 5)
    write_json(new / "manifest.json", {"inputs": {"examples": {"path": "new/examples.jsonl"}}})
    (tmp_path / "far").mkdir()
    monkeypatch.chdir(tmp_path / "far")
    assert decide(tmp_path, new, base)[0].passed


@pytest.mark.full
@pytest.mark.usefixtures("mlflow_store")
def test_a_verdict_on_forged_sweeps_promotes_nothing(tmp_path, base, model_folder):
    """Also where the gate did not run, and its folder was written from the forged sweeps by posgap's functions."""
    config = promotion(tmp_path, "new", model_folder, base, probability=0.3)
    forge(config.sweep, lambda row: {"correct": True})
    for name in ("sweep.json", "predictions.jsonl"):
        (config.gate / "candidate" / name).write_bytes((config.sweep / name).read_bytes())
    policy = read_verdict(config.gate).policy
    forged = judge(config.gate / "candidate", config.gate / "base", None, policy)
    assert forged.passed
    write_json(config.gate / "gate.json", forged.model_dump(mode="json"))
    with refuses(Contradiction, "'said' is 0 and not 1", at="at 1"):
        promote(config)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    return write_sweep(tmp_path_factory.mktemp("swept") / "swept", LOST)


@pytest.mark.full
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20, deadline=None)
@given(at=st.integers(0, N * 5 - 1), score=st.sampled_from([True, False, 0.5, 1e-3]))
def test_every_score_is_checked(swept, at, score):
    evidence, examples = Evidence(swept), swept_examples(swept)
    require_scores(evidence, examples)
    file = swept / "predictions.jsonl"
    lines = file.read_text().splitlines(keepends=True)
    row = json.loads(lines[at])
    same = row["correct"] == score
    try:
        file.write_text("".join([*lines[:at], json.dumps(row | {"correct": score}) + "\n", *lines[at + 1 :]]))
        if same:
            require_scores(evidence, examples)
        else:
            with refuses(Contradiction, at=f": {row['id']} at {row['placement'][0]}"):
                require_scores(evidence, examples)
    finally:
        file.write_text("".join(lines))
