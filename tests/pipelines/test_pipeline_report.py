"""How a pipeline run ended is reported, whatever happened: from its stages' MLflow runs, to MLflow and a webhook."""

import json
import logging
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import mlflow
import pytest
from mlflow import MlflowClient

from posgap.foundation.files import read_json
from posgap.options.report import ReportConfig
from posgap.storage.inputs import read_manifest
from posgap.tracking import outcomes
from posgap.tracking.runs import PIPELINE_VARIABLE, start_run
from posgap.verbs import report as report_stage
from posgap.verbs.report import report

KILLED = "it was killed before it could say why (out of memory?); see its log in KFP"


@pytest.fixture
def pipeline(monkeypatch, tmp_path):
    """This process is a step of the KFP run `run-1`; runs a stage of it, which fails where an error is given."""
    monkeypatch.setenv(PIPELINE_VARIABLE, "run-1")

    def step(stage, error="", params=(), metrics=(), **tags):
        try:
            tags = {f"posgap.{name}": value for name, value in tags.items()}
            with start_run(stage, tags, tmp_path / stage) as run:
                run.params(dict(params))
                run.metrics(dict(metrics))
                if error:
                    raise RuntimeError(error)
        except RuntimeError:
            pass
        return run

    return step


@pytest.fixture
def reported(tmp_path):
    def run(**more):
        return read_json(report(ReportConfig(out=tmp_path / "report", **more)) / "report.json")

    return run


@pytest.fixture
def webhook(monkeypatch):
    """An address on loopback that keeps what is posted to it and answers with `statuses`, then 200."""
    monkeypatch.setattr(report_stage, "RETRY_POLICY", replace(report_stage.RETRY_POLICY, first_wait=0.01))

    class Hook(BaseHTTPRequestHandler):
        posted, statuses = [], []

        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            Hook.posted.append((self.headers["Content-Type"], json.loads(body)))
            self.send_response(Hook.statuses.pop(0) if Hook.statuses else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    Hook.address = f"http://127.0.0.1:{server.server_port}/hook"
    yield Hook
    server.shutdown()
    server.server_close()


@pytest.mark.usefixtures("mlflow_store")
def test_a_run_that_succeeded(pipeline, reported, tmp_path):
    pipeline("sweep", params={"label": "base", "shard": "1/2"})
    figures = {"mean": 91.234, "gap": 4.0, "gap_value": 6.5}
    pipeline("gate", gate="admitted", label="r1", metrics=figures)
    pipeline("gate", gate="refused", label="lpes", metrics=figures)
    outcome = reported(state="SUCCEEDED", registered_name="tiny")
    assert (outcome["pipeline_run"], outcome["status"], outcome["failed"]) == ("run-1", "succeeded", [])
    rounded = figures | {"mean": 91.23}
    assert outcome["candidates"] == [
        {"label": "r1", "gate": "admitted", **rounded},
        {"label": "lpes", "gate": "refused", **rounded},
    ]
    assert outcome["champion"] is None and outcome["seconds"].keys() == {"sweep base 1/2", "gate r1", "gate lpes"}
    page = (tmp_path / "report" / "report.md").read_text()
    assert page.startswith("# The run succeeded\n")
    assert "| r1 | 91.23 | 4.0 | 6.5 | admitted |" in " ".join(page.split())


@pytest.mark.usefixtures("mlflow_store")
def test_failed_and_killed_steps_are_named_with_their_errors(pipeline, reported, tmp_path):
    pipeline("distill", "loss is not finite", params={"method": "r1"})
    killed = pipeline("teacher")
    MlflowClient().update_run(killed.id, "RUNNING")
    outcome = reported(state="FAILED", message="Task exit-handler-1 failed.")
    assert outcome["failed"] == [
        {"step": "distill r1", "error": "loss is not finite"},
        {"step": "teacher", "error": KILLED},
    ]
    assert "- **distill r1**: loss is not finite" in (tmp_path / "report" / "report.md").read_text()


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize("state", ["RUNNING", ""])
def test_where_kfp_does_not_say_how_it_ended_mlflow_does(pipeline, reported, state):
    pipeline("gate", gate="refused")
    assert reported(state=state)["status"] == "succeeded"
    pipeline("teacher", "no response is correct")
    assert reported(state=state)["status"] == "failed"


@pytest.mark.usefixtures("mlflow_store")
def test_a_run_of_which_kfp_could_not_start_a_step_failed(pipeline, reported):
    # No step failed, and KFP says what it says behind a gate that refuses (tests/pipelines/test_kfp_driver.py).
    pipeline("validate")
    outcome = reported(state="RUNNING")
    assert outcome["status"] == "failed"
    assert "see its log in KFP" in outcome["failed"][0]["error"]


def test_a_step_that_succeeded_when_tried_again_did_not_fail(pipeline, reported):
    pipeline("sweep", "connection lost", params={"label": "base"})
    pipeline("sweep", params={"label": "base"})
    assert reported(state="")["status"] == "succeeded"


@pytest.mark.usefixtures("mlflow_store")
@pytest.mark.parametrize(
    ("gates", "promotions", "status"),
    [
        (["refused", "refused"], 0, "succeeded"),
        (["refused", "admitted"], 1, "succeeded"),
        (["refused"], 0, "failed"),  # one of two candidates never came to its gate
        (["refused", "admitted"], 0, "failed"),
        ([], 0, "failed"),
    ],
)
def test_a_try_that_failed_does_not_fail_a_run_that_came_to_its_end(pipeline, reported, gates, promotions, status):
    # KFP leaves the groups around a failed try FAILED where nothing counts after it, as behind a gate that refuses.
    pipeline("sweep", "connection lost", params={"label": "base"})
    pipeline("sweep", params={"label": "base"})
    for number, gate in enumerate(gates):
        pipeline("gate", gate=gate, label=str(number), params={"candidates": 2})
    for _ in range(promotions):
        pipeline("promote")
    assert reported(state="FAILED", message="Task exit-handler-1 failed.")["status"] == status


def test_a_step_that_failed_before_mlflow_knew_it_is_kfp_s_to_tell(pipeline, reported):
    assert reported(state="FAILED", message="Task exit-handler-1 failed.")["failed"] == [
        {"step": "", "error": "Task exit-handler-1 failed."}
    ]
    assert "see its log in KFP" in reported(state="FAILED")["failed"][0]["error"]


@pytest.mark.usefixtures("mlflow_store")
def test_a_run_with_nothing_new_says_so(pipeline, reported):
    note = "skipped: tiny version 3 was made from data version 7 and this base model"
    run = pipeline("data_version", skip="true")
    MlflowClient().set_tag(run.id, "mlflow.note.content", note)
    assert reported(state="SUCCEEDED")["skipped"] == note


@pytest.mark.usefixtures("mlflow_store")
def test_the_stages_hang_below_a_run_of_the_pipeline_run_that_the_report_ends(pipeline, reported, tmp_path):
    swept, promoted = pipeline("sweep"), pipeline("promote", promotion="promoted", metrics={"gap": 4, "p": 1})
    parent = mlflow.get_run(swept.id).data.tags["mlflow.parentRunId"]
    assert mlflow.get_run(parent).info.status == "RUNNING"
    orphan, elsewhere = pipeline("gate"), pipeline("compare")
    MlflowClient().delete_tag(orphan.id, "mlflow.parentRunId")
    MlflowClient().set_tag(elsewhere.id, "mlflow.parentRunId", "another")
    reported(state="SUCCEEDED")
    own = read_manifest(tmp_path / "report")["mlflow_run_id"]
    parents = [mlflow.get_run(run).data.tags["mlflow.parentRunId"] for run in (promoted.id, orphan.id, own)]
    assert parents == [parent] * 3 and mlflow.get_run(elsewhere.id).data.tags["mlflow.parentRunId"] == "another"
    run = mlflow.get_run(parent)
    assert run.info.run_name == "pipeline run-1" and run.info.status == "FINISHED"
    assert run.data.tags["posgap.outcome"] == "succeeded" and run.data.metrics == {"gap": 4}
    assert run.data.tags["mlflow.note.content"] == (tmp_path / "report" / "report.md").read_text()
    reported(state="FAILED", message="Task x failed.")
    assert mlflow.get_run(parent).info.status == "FAILED"


@pytest.mark.usefixtures("mlflow_store")
def test_other_runs_stages_are_left_out(pipeline, reported, monkeypatch):
    pipeline("distill", "broken")
    monkeypatch.setenv(PIPELINE_VARIABLE, "run-2")
    assert reported()["status"] == "succeeded"
    monkeypatch.setenv(PIPELINE_VARIABLE, "run-1")
    assert reported()["status"] == "failed"


def test_the_report_is_posted_and_a_busy_webhook_asked_again(pipeline, reported, webhook, monkeypatch):
    webhook.statuses.extend([503, 500])
    monkeypatch.setenv("POSGAP_WEBHOOK_URL", webhook.address)
    outcome = reported(state="SUCCEEDED")
    assert len(webhook.posted) == 3 and webhook.posted[-1] == ("application/json", outcome)


@pytest.mark.parametrize("statuses", [[404], [500] * 3])
def test_a_webhook_that_fails_is_warned_of_without_its_address(
    pipeline, reported, webhook, statuses, monkeypatch, caplog
):
    webhook.statuses.extend(statuses)
    monkeypatch.setenv("POSGAP_WEBHOOK_URL", f"{webhook.address}?token=secret")
    with caplog.at_level(logging.WARNING):
        assert reported(state="SUCCEEDED")["status"] == "succeeded"
    assert (
        f"the report could not be posted to the webhook: HTTP {statuses[0]}" in caplog.text
        and "secret" not in caplog.text
    )
    assert len(webhook.posted) == len(statuses)


def test_an_address_where_nobody_is_does_not_fail_the_run(pipeline, reported, webhook, monkeypatch, caplog):
    monkeypatch.setenv("POSGAP_WEBHOOK_URL", "http://127.0.0.1:9/hook")
    reported(state="SUCCEEDED")
    monkeypatch.setenv("POSGAP_WEBHOOK_URL", "http://[nonsense")
    reported(state="SUCCEEDED")
    assert caplog.text.count("the report could not be posted to the webhook: ") == 2


def test_without_mlflow_there_is_a_report_all_the_same(reported, webhook, monkeypatch):
    monkeypatch.setenv(PIPELINE_VARIABLE, "run-1")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("POSGAP_WEBHOOK_URL", webhook.address)
    outcome = reported(state="FAILED", message="Task x failed.")
    assert outcome["failed"] == [{"step": "", "error": "Task x failed."}] and webhook.posted[0][1] == outcome


@pytest.fixture
def in_cluster(monkeypatch):
    """This process is a pod; gives the workflow of its run."""
    workflow = {"spec": {}, "status": {"nodes": {}}}
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setattr(report_stage, "read_workflow", lambda run: workflow if run == "run-1" else {})
    return workflow


def test_a_run_that_a_person_ended_is_reported_so(pipeline, reported, in_cluster):
    """It was "a step failed before it could say why"."""
    in_cluster["spec"]["activeDeadlineSeconds"] = 0
    outcome = reported(state="FAILED")
    assert outcome["failed"] == [{"step": "", "error": "a person ended the run"}] and outcome["status"] == "failed"


def test_a_step_that_mlflow_never_knew_has_the_reason_that_kubernetes_has(pipeline, reported, in_cluster):
    task = {"id": "t", "displayName": "sweep", "type": "DAG", "phase": "Failed"}
    pod = {"id": "p", "displayName": "executor", "type": "Pod", "phase": "Failed", "boundaryID": "t"}
    pod["message"] = "main: Error (exit code 1): posgap refused: no GPU"
    in_cluster["status"]["nodes"] = {"t": task, "p": pod}
    assert reported(state="FAILED")["failed"] == [{"step": "sweep", "error": "no GPU"}]


@pytest.mark.usefixtures("in_cluster", "mlflow_store")
def test_mlflow_is_linked_where_a_browser_finds_it_and_else_named(pipeline, reported, monkeypatch, tmp_path):
    monkeypatch.setattr(outcomes, "link", lambda run, server: f"{server}/{run}")
    outcome = reported()
    assert "mlflow" not in outcome["links"] and outcome["mlflow_run"]
    assert outcome["mlflow_run"] in (tmp_path / "report" / "report.md").read_text()
    monkeypatch.setenv("POSGAP_MLFLOW_UI", "https://mlflow.example/")
    outcome = reported()
    assert outcome["links"]["mlflow"] == f"https://mlflow.example/{outcome['mlflow_run']}"


def test_links_lead_to_the_run_in_kfp(pipeline, reported, monkeypatch):
    monkeypatch.setenv("POSGAP_KFP_UI", "https://kubeflow.example/pipeline/")
    assert reported()["links"] == {"kfp": "https://kubeflow.example/pipeline/#/runs/details/run-1"}
