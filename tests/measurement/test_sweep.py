"""The stages sweep and teacher on a tiny model, and what they write."""

import json
import re

import mlflow
import numpy as np
import pytest
from examples import kv_example

from posgap.data.reading import write_examples
from posgap.data.synthetic import two_hop_examples
from posgap.foundation.files import read_jsonl
from posgap.measurement.evidence import Evidence
from posgap.measurement.figures import summarize
from posgap.measurement.report import write_report
from posgap.measurement.sweeps import read_sweep
from posgap.options.sweep import SweepConfig
from posgap.options.teacher import TeacherConfig
from posgap.options.validate import ValidateConfig
from posgap.storage.inputs import read_manifest
from posgap.tasks.metrics import METRICS, Metric
from posgap.tasks.placements import Placement, category
from posgap.tasks.responses import read_responses
from posgap.verbs.sweep import sweep_model
from posgap.verbs.teacher import teacher
from posgap.verbs.validate import validate


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
    )
    return sweep_model(config)


def test_sweep_json_keeps_the_contract(swept):
    written = json.loads((swept / "sweep.json").read_text())
    assert written.keys() >= {
        *("task", "model", "scaling", "metric", "n_docs", "n_examples", "placements", "accuracy", "ci95"),
        *("mean", "mean_ci95", "gap", "gap_ci95", "gap_noise", "worst"),
    }
    assert written["placements"] == [[1], [2], [3], [4]]
    assert (written["metric"], written["n_examples"]) == ("sole_answer", 4)


@pytest.mark.usefixtures("mlflow_store")
def test_what_a_sweep_of_a_local_model_took_is_counted_as_an_endpoint_s_is(swept, model_folder):
    result, config = read_sweep(swept), SweepConfig(**read_manifest(swept)["config"])
    builder = config.builder()
    asked = [len(builder.prompt(kv_example(i), Placement((p,), 4)).token_ids) for i in range(4) for p in range(1, 5)]
    assert (result.spent.prompts, result.spent.prompt_tokens) == (16, sum(asked))
    assert 16 <= result.spent.completion_tokens <= 32 and result.spent.thinking_tokens == 0
    assert 0 < result.spent.seconds < read_manifest(swept)["seconds"]
    run = mlflow.get_run(read_manifest(swept)["mlflow_run_id"])
    assert run.data.metrics["prompt_tokens"] == sum(asked)


def test_single_positions_have_no_categories(swept):
    assert not {"categories", "by_category"} & json.loads((swept / "sweep.json").read_text()).keys()


def test_predictions_give_the_accuracies_back(swept):
    evidence = Evidence(swept)
    ids, correct = evidence.ids, evidence.scores
    assert ids == [f"kv-{i}" for i in range(4)]
    assert (100 * correct.mean(axis=0)).tolist() == read_sweep(swept).accuracy
    rows = [row for _, row in read_jsonl(swept / "predictions.jsonl")]
    assert len(rows) == 16 and rows[5].keys() - {"cut", "others"} == {
        "id", "content", "placement", "response", "correct", "echo"
    }  # fmt: skip


@pytest.mark.usefixtures("pictures")
def test_the_page_needs_no_network_and_escapes_what_users_wrote(swept):
    page = (swept / "sweep.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "&lt;tiny&gt;" in page and "<tiny>" not in page
    assert (swept / "sweep.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("mlflow_store")
def test_the_run_has_figures_curve_and_files(swept):
    run = mlflow.get_run(read_manifest(swept)["mlflow_run_id"])
    result = read_sweep(swept)
    assert run.data.metrics["gap"] == pytest.approx(result.gap, abs=0.005)
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


def two_hop(tmp_path, two_hop_folder, **options) -> dict:
    if not (tmp_path / "two-hop.jsonl").exists():
        write_examples(tmp_path / "two-hop.jsonl", two_hop_examples(6, 8, seed=0))
    prompts = {"task": "multihop-cot", "n_docs": 8, "max_new_tokens": 12, "model": str(two_hop_folder)}
    return {"examples": tmp_path / "two-hop.jsonl", **prompts, **options}


@pytest.fixture
def swept_pairs(tmp_path, two_hop_folder):
    return sweep_model(SweepConfig(out=tmp_path / "pairs", label="two-hop", **two_hop(tmp_path, two_hop_folder)))


@pytest.mark.usefixtures("mlflow_store")
def test_pairs_are_swept_and_summarised_by_category(swept_pairs):
    written = json.loads((swept_pairs / "sweep.json").read_text())
    result = read_sweep(swept_pairs)
    assert written["metric"] == "em" and len(written["placements"]) == len(written["categories"])
    assert list(written["by_category"]) == ["connected", "disconnected", "reversed"]
    assert written["by_category"]["connected"].keys() == {"accuracy", "ci95", "gap"}
    assert result.placement_names[:2] == ["1+2", "3+4"] and result.placement_names[-1] == "8+7"
    run = mlflow.get_run(read_manifest(swept_pairs)["mlflow_run_id"])
    reversed_pairs = result.by_category["reversed"].accuracy
    assert run.data.metrics["accuracy_reversed"] == pytest.approx(reversed_pairs, abs=0.005)
    assert "accuracy_by_position" not in run.data.metrics
    page = (swept_pairs / "sweep.html").read_text()
    assert "Accuracy by category" in page and '<th scope="row">7+8</th>' in page


def test_figures_of_categories_are_those_of_their_columns():
    placements = [[1, 2], [4, 5], [1, 5], [2, 1], [5, 1]]
    scores = np.random.default_rng(0).random((40, 5)) < [0.9, 0.5, 0.6, 0.3, 0.8]
    found = summarize(scores.astype(float), placements, 0, [category(placement) for placement in placements])
    accuracy = 100 * scores.mean(axis=0)
    assert found["categories"] == ["connected", "connected", "disconnected", "reversed", "reversed"]
    for name, columns in {"connected": [0, 1], "disconnected": [2], "reversed": [3, 4]}.items():
        figures = found["by_category"][name]
        assert figures["accuracy"] == pytest.approx(accuracy[columns].mean())
        assert figures["gap"] == pytest.approx(np.ptp(accuracy[columns]))
        assert figures["ci95"][0] <= figures["accuracy"] <= figures["ci95"][1]


@pytest.mark.full
@pytest.mark.usefixtures("pictures")
def test_two_models_of_different_pairs_share_a_page(swept_pairs, tmp_path, two_hop_folder):
    chosen = two_hop(tmp_path, two_hop_folder, positions="8+1,2+7", label="other")
    other = read_sweep(sweep_model(SweepConfig(out=tmp_path / "other", **chosen)))
    assert other.placements == [[8, 1], [2, 7]] and other.categories == ["reversed", "disconnected"]
    write_report([read_sweep(swept_pairs), other], tmp_path / "both.png", tmp_path / "both.html", "both")
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("given", [None, "2+7"])
def test_the_teacher_reads_from_the_best_or_the_given_pair(swept_pairs, tmp_path, two_hop_folder, given):
    where = {"advantageous": given} if given else {"sweep": swept_pairs}
    config = TeacherConfig(out=tmp_path / "t", keep_incorrect=True, **two_hop(tmp_path, two_hop_folder), **where)
    kept = read_responses(teacher(config))
    assert {tuple(r.placement) for r in kept} == {(2, 7) if given else tuple(read_sweep(swept_pairs).advantageous)}


def test_a_partly_right_response_counts_in_part_and_is_not_taught(tmp_path, model_folder, monkeypatch):
    partly = Metric("f1", "a stand-in", lambda response, answers: 0.25 if answers == ["0"] else 1.0)
    monkeypatch.setitem(METRICS._by_name, "f1", partly)
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(4)])  # kv-0 asks for a 0
    shared = {"examples": tmp_path / "e.jsonl", "model": str(model_folder), "n_docs": 4, "max_new_tokens": 2}
    swept = sweep_model(SweepConfig(out=tmp_path / "s", metric="f1", **shared))
    assert Evidence(swept).scores.tolist() == [[0.25] * 4, [1.0] * 4, [1.0] * 4, [1.0] * 4]
    assert read_sweep(swept).accuracy == [81.25] * 4
    responses = teacher(TeacherConfig(out=tmp_path / "t", metric="f1", advantageous="1", **shared))
    assert [r.id for r in read_responses(responses)] == ["kv-1", "kv-2", "kv-3"]


def test_two_hop_examples_pass_validation_and_others_do_not(tmp_path, two_hop_folder):
    out = validate(ValidateConfig(out=tmp_path / "v", **two_hop(tmp_path, two_hop_folder)))
    assert json.loads((out / "validation.json").read_text())["success"]
