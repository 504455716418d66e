"""The stages sweep and teacher on a tiny model, and what they write."""

import json
import re

import mlflow
import numpy as np
import pytest
from conftest import kv_example

from posgap.config import SweepConfig, TeacherConfig
from posgap.files import read_jsonl
from posgap.measurement.sweeps import read_correct, read_sweep
from posgap.stage import read_manifest
from posgap.stages.sweep import sweep
from posgap.stages.teacher import teacher
from posgap.tasks.examples import write_examples
from posgap.tasks.responses import read_responses


@pytest.fixture
def swept(tmp_path, model_folder):
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(4)])
    config = SweepConfig(
        examples=tmp_path / "e.jsonl",
        model=str(model_folder),
        out=tmp_path / "sweep",
        n_docs=4,
        max_new_tokens=2,
        label="<tiny>",
        resamples=200,
    )
    return sweep(config)


def test_sweep_json_keeps_the_contract(swept):
    written = json.loads((swept / "sweep.json").read_text())
    assert written.keys() >= {
        *("task", "model", "scaling", "metric", "n_docs", "n_examples", "placements", "accuracy", "ci95"),
        *("mean", "mean_ci95", "gap", "gap_ci95", "gap_noise", "worst"),
    }
    assert written["placements"] == [[1], [2], [3], [4]]
    assert (written["metric"], written["n_examples"]) == ("sub_em", 4)


def test_predictions_give_the_accuracies_back(swept):
    ids, correct = read_correct(swept)
    assert ids == [f"kv-{i}" for i in range(4)]
    assert (100 * correct.mean(axis=0)).tolist() == read_sweep(swept).accuracy
    rows = [row for _, row in read_jsonl(swept / "predictions.jsonl")]
    assert len(rows) == 16 and rows[5].keys() == {"id", "placement", "response", "correct"}


def test_the_page_needs_no_network_and_escapes_what_users_wrote(swept):
    page = (swept / "sweep.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "&lt;tiny&gt;" in page and "<tiny>" not in page
    assert (swept / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_the_run_has_figures_curve_and_files(swept):
    run = mlflow.get_run(read_manifest(swept)["mlflow_run_id"])
    result = read_sweep(swept)
    assert run.data.metrics["gap"] == result.gap
    curve = mlflow.MlflowClient().get_metric_history(run.info.run_id, "accuracy_by_position")
    assert {point.step: point.value for point in curve} == dict(zip(result.positions, result.accuracy))
    files = {f.path for f in mlflow.MlflowClient().list_artifacts(run.info.run_id)}
    assert files >= {"sweep.json", "sweep.png", "sweep.html", "predictions.jsonl", "manifest.json"}


def test_the_teacher_reads_from_where_the_sweep_is_best(swept, tmp_path, model_folder):
    responses = teacher(
        TeacherConfig(
            examples=tmp_path / "e.jsonl",
            model=str(model_folder),
            out=tmp_path / "teacher",
            sweep=swept,
            n_docs=4,
            max_new_tokens=2,
            keep_incorrect=True,
        )
    )
    best = int(np.argmax(read_sweep(swept).accuracy)) + 1
    kept = read_responses(responses)
    assert {tuple(r.placement) for r in kept} == {(best,)}
    assert [r.id for r in kept] == [f"kv-{i}" for i in range(4)]
    # The same prompts, so the same answers, as the sweep's at that position.
    swept_rows = [row for _, row in read_jsonl(swept / "predictions.jsonl") if row["placement"] == [best]]
    assert [(r.response, r.correct) for r in kept] == [(row["response"], row["correct"]) for row in swept_rows]
