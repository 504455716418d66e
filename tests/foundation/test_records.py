"""Files that are read into models: whatever is wrong with one is told in a line that names file and field."""

import json
from pathlib import Path

import numpy as np
import pytest
from refusals import refuses
from written_sweeps import ASKED

from posgap.data.reading import read_examples
from posgap.foundation.errors import Contradiction, Malformed
from posgap.foundation.files import read_model, write_json, write_jsonl
from posgap.gating.demands import Policy
from posgap.gating.rules import Ruling
from posgap.gating.verdict import Verdict, read_verdict
from posgap.measurement.comparison import read_comparison
from posgap.measurement.evidence import Evidence
from posgap.measurement.figures import summarize
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.rollout.files import PREDICTION_FILE, Prediction, read_measurement
from posgap.scaling.scaling_file import read_scaling
from posgap.storage.inputs import read_manifest
from posgap.tasks.responses import read_responses

DOCUMENTS = {
    "sweep.json": read_sweep,
    "gate.json": read_verdict,
    "comparison.json": read_comparison,
    "scaling.json": read_scaling,
    "measurement.json": read_measurement,
    "prediction.json": lambda path: read_model(Prediction, path, PREDICTION_FILE),
}
LINES = {"examples.jsonl.gz": read_examples, "responses.jsonl": read_responses}
HOSTILE = [
    "",
    "[]",
    "1",
    "null",
    '"x"',
    "{",
    "NaN",
    "[" * 99_999,
    "9" * 5000,
    '{"a": "\\ud800"}',
    "\ufeff\ufeff{}",
    "\0",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("name", DOCUMENTS)
def test_what_is_no_such_document_is_named(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    for path in (tmp_path, tmp_path / name):
        with refuses(Malformed, at=name) as told:
            DOCUMENTS[name](path)
        assert len(str(told.value).splitlines()) == 1


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_without_its_fields_names_the_first(tmp_path, name):
    (tmp_path / name).write_text("{}")
    with refuses(Malformed, "field `", at=name):
        DOCUMENTS[name](tmp_path)


@pytest.mark.parametrize("text", [text for text in HOSTILE if text])
@pytest.mark.parametrize("name", LINES)
def test_a_line_that_is_no_such_row_is_named(tmp_path, name, text):
    (tmp_path / "lines.jsonl").write_text(text + "\n")
    with refuses(Malformed, at="lines.jsonl:1"):
        LINES[name](tmp_path / "lines.jsonl")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[]", ""),
        ('{"config": []}', "field `config`"),
        ('{"ancestors": "x"}', "field `ancestors`"),
        ('{"inputs": {"model": 1}}', "field `inputs.model`"),
        ('{"mlflow_run_id": {}}', "field `mlflow_run_id`"),
    ],
)
def test_a_manifest_of_another_form_is_named(tmp_path, text, named):
    (tmp_path / "manifest.json").write_text(text)
    with refuses(Malformed, named, at="manifest.json"):
        read_manifest(tmp_path)


def test_what_others_call_a_manifest_says_nothing(tmp_path):
    (tmp_path / "manifest.json").write_text('{"name": "an app", "icons": [{"src": "x"}]}')
    assert read_manifest(tmp_path).get("stage") is None


@pytest.fixture
def swept(tmp_path) -> Path:
    """A sweep of four examples at three positions."""
    correct = np.array([[1, 0, 1], [1, 1, 1], [0, 0, 1], [1, 0, 0]], dtype=float)
    known = dict.fromkeys(("task", "model", "label", "metric", "examples_digest", "model_digest", "prompt_digest"), "x")
    sweep = Sweep(**known, scaling=None, n_docs=3, asked=ASKED, settings={}, **summarize(correct, [[1], [2], [3]], 0))
    write_json(tmp_path / "sweep.json", sweep.model_dump(mode="json"))
    rows = [
        {
            "id": f"e{e}",
            "content": f"{e:016x}",
            "placement": [p + 1],
            "response": "said",
            "correct": float(correct[e, p]),
        }
        for e in range(4)
        for p in range(3)
    ]
    write_jsonl(tmp_path / "predictions.jsonl", rows)
    return tmp_path


def edited(file: Path, **changes) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"accuracy": []}, "accuracy: 0 for 3 "),
        ({"accuracy": [50, 50, 101]}, "`accuracy.2`"),
        ({"ci95": [[0, 1]]}, "ci95: 1 for 3 "),
        ({"placements": []}, "field `placements`"),
        ({"placements": [[1], [1], [2]]}, "placements: "),
        ({"placements": [[1], [2], [2, 3]]}, "placements: "),
        ({"placements": [[1], [2], []]}, "placements: "),
        ({"placements": [[1], [2], [4]]}, "placements: 4 "),
        ({"categories": ["connected"]}, "categories: 1 for 3 "),
        ({"worst": {"placement": [7], "accuracy": 1}}, "worst: "),
        ({"gap_ci95": [-5, 3]}, "field `gap_ci95.0`"),
        ({"n_docs": 10**30}, "64 bits"),
        ({"mean": "much"}, "field `mean`"),
        ({"grading": {"judge": "j"}}, "grading: "),
    ],
)
def test_a_sweep_that_contradicts_itself_is_refused(swept, changes, named):
    edited(swept / "sweep.json", **changes)
    with refuses(Malformed, named, at="sweep.json"):
        read_sweep(swept)


@pytest.mark.parametrize(
    ("change", "kind", "at", "named"),
    [
        (lambda rows: rows[:-1], Malformed, "", ""),
        (lambda rows: [*rows, rows[0]], Malformed, ": predictions of e0", "1 "),
        (lambda rows: [rows[0] | {"placement": [9]}, *rows[1:]], Malformed, ": predictions of e0", "9 "),
        (lambda rows: [rows[0] | {"correct": 2}, *rows[1:]], Malformed, "predictions.jsonl:1", "`correct"),
        (lambda rows: [rows[0] | {"correct": None}, *rows[1:]], Malformed, "predictions.jsonl:1", "`correct"),
        (lambda rows: [{"id": "e0"}, *rows[1:]], Malformed, "predictions.jsonl:1", "`content`"),
        (lambda rows: [rows[0] | {"content": "x"}, *rows[1:]], Contradiction, ": predictions of e0", ""),
        (lambda rows: [rows[0] | {"placement": [[1]]}, *rows[1:]], Malformed, "predictions.jsonl:1", "`placement.0`"),
    ],
)
def test_predictions_that_are_not_the_sweep_s_are_refused(swept, change, kind, at, named):
    file = swept / "predictions.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert Evidence(swept).correct.shape == (4, 3)
    write_jsonl(file, change(rows))
    for path in (swept, swept / "sweep.json"):
        with refuses(kind, named, at=at):
            Evidence(path)


def test_a_verdict_comes_back(tmp_path):
    rule = Ruling(name="gap", meaning="m", claim="at most", threshold=1, estimate=2, interval=(1, 3))
    verdict = Verdict(
        model_digest="d", evidence_gaps=[], asked_otherwise=[], policy=Policy(max_gap=1), evidence={}, rules=[rule]
    )
    write_json(tmp_path / "gate.json", verdict.model_dump(mode="json"))
    assert read_verdict(tmp_path) == read_verdict(tmp_path / "gate.json") == verdict


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_no_file_is_written_with_what_no_file_may_hold(tmp_path, value):
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"a": value})
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_jsonl(tmp_path / "a.jsonl", [{"a": value}])
    assert not list(tmp_path.iterdir())
