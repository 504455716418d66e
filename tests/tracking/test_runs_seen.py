"""What people see of runs, on a real MLflow server: parents and children, data, and the mode of the experiment."""

import json
import multiprocessing
import os

import mlflow
import pytest
from command_line import run
from examples import kv_example
from mlflow_server import serving

from posgap.data.reading import write_examples
from posgap.foundation.files import digest_path
from posgap.storage.inputs import read_manifest
from posgap.tracking import parents
from posgap.tracking.runs import PIPELINE_VARIABLE, start_run

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def address(tmp_path_factory, empty_store):
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, str(folder / "store"), empty_store) as (uri, _):
        yield uri


@pytest.fixture
def server(address, monkeypatch, request):
    """A client of a real server, with an experiment of this test's own."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", request.node.name)
    yield mlflow.MlflowClient(address)


def data_of(client, folder):
    """Name, digest, use and source of the data of the run that made a folder."""
    inputs = client.get_run(read_manifest(folder)["mlflow_run_id"]).inputs.dataset_inputs
    return [
        (each.dataset.name, each.dataset.digest, each.tags[0].value, mlflow.data.get_source(each).load())
        for each in inputs
    ]


@pytest.fixture
def swept(tmp_path, model_folder, capsys):
    """Validates and sweeps by the command line, with more options; the file of examples and the sweep's folder."""
    file = tmp_path / "eval-7.jsonl.gz"
    write_examples(file, [kv_example(i) for i in range(4)])

    def call(*verb):
        code, shown = run(capsys, *verb, "--model", model_folder, "--task", "kv", "--n-docs", 4, "--max-new-tokens", 2)
        assert code == 0, shown

    call("validate", "--examples", file, "--out", tmp_path / "eval")
    call("sweep", "--examples", tmp_path / "eval", "--out", tmp_path / "swept", "--label", "base")
    assert run(capsys, "merge", tmp_path / "swept", "--out", tmp_path / "merged")[0] == 0
    return file


def test_runs_name_their_data_with_digest_source_and_use(server, swept, tmp_path):
    name, sha = "eval-7", digest_path(swept)[:12]
    assert data_of(server, tmp_path / "eval") == [(name, sha, "checked", str(swept))]
    # What was validated, and what only reads a sweep, still names the file that somebody gave.
    for folder in ("swept", "merged"):
        assert data_of(server, tmp_path / folder) == [(name, sha, "evaluation", str(swept))]
    merged = server.get_run(read_manifest(tmp_path / "merged")["mlflow_run_id"])
    assert merged.info.run_name == "merge base" and merged.data.metrics.keys() >= {"gap", "gap_high", "mean", "worst"}


def test_what_the_server_did_not_take_is_sent_later_with_its_data(server, swept, tmp_path, monkeypatch, capsys):
    experiment = os.environ["MLFLOW_EXPERIMENT_NAME"]
    address = os.environ["MLFLOW_TRACKING_URI"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv(PIPELINE_VARIABLE, "run-offline")
    again = ["merge", tmp_path / "swept", "--out", tmp_path / "again"]
    assert run(capsys, *again)[0] == 0
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    assert run(capsys, *again)[0] == 0
    there = mlflow.search_runs(
        experiment_names=[experiment], filter_string="tags.`posgap.pipeline_run` = 'run-offline'", output_format="list"
    )
    by_stage = {each.data.tags["posgap.stage"]: each for each in there}
    assert by_stage.keys() == {"merge", "pipeline"}
    (data,) = by_stage["merge"].inputs.dataset_inputs
    assert data.dataset.digest == digest_path(swept)[:12] and json.loads(data.dataset.source) == {"uri": str(swept)}
    assert by_stage["merge"].data.tags["mlflow.parentRunId"] == by_stage["pipeline"].info.run_id


def _stage(out, start):
    start.wait(60)
    with start_run("sweep", {}, out):
        pass


def test_stages_that_begin_at_once_hang_below_one_run(server, tmp_path, monkeypatch):
    monkeypatch.setenv(PIPELINE_VARIABLE, "run-9")
    spawned = multiprocessing.get_context("spawn")
    start = spawned.Barrier(2)
    steps = [spawned.Process(target=_stage, args=(tmp_path / str(number), start)) for number in range(2)]
    for step in steps:
        step.start()
    for step in steps:
        step.join()
    assert [step.exitcode for step in steps] == [0] * 2
    there = mlflow.search_runs(experiment_names=[os.environ["MLFLOW_EXPERIMENT_NAME"]], output_format="list")
    (parent,) = [each for each in there if each.data.tags["posgap.stage"] == "pipeline"]
    children = [each for each in there if each is not parent]
    assert [each.data.tags["mlflow.parentRunId"] for each in children] == [parent.info.run_id] * 2


def test_a_run_that_another_took_before_there_was_an_earlier_one_stays(server, monkeypatch):
    """The clocks of two machines differ: what was made later says that it is earlier."""
    monkeypatch.setattr(parents, "_BETWEEN_LOOKS", 0.01)
    experiment = server.create_experiment("two clocks")
    taken = parents.parent_of(server, experiment, "run-7", {})
    first_look, real = [[]], server.search_runs

    def runs_seen(*asked):
        return first_look.pop() if first_look else real(*asked)

    monkeypatch.setattr(server, "search_runs", runs_seen)
    monkeypatch.setattr(parents.time, "time", lambda: 1.0)
    assert parents.parent_of(server, experiment, "run-7", {}) == taken
    (left,) = real([experiment])
    assert left.info.run_id == taken


def test_the_report_takes_the_run_that_kfp_s_plugin_made_of_the_pipeline_run(server, tmp_path, monkeypatch, capsys):
    """The plugin makes a run of the pipeline run, of each loop and of each step, and names the last in the step."""
    experiment = server.create_experiment("of KFP")
    below = {}
    for name in ("whole", "loop", "sweep", "report"):
        about = {"mlflow.parentRunId": below[{"loop": "whole"}.get(name, "loop")]} if below else {}
        about |= {} if below else {parents.KFP_TAG: "run-8"}
        below[name] = server.create_run(experiment, run_name=name, tags=about).info.run_id
    monkeypatch.setenv("MLFLOW_EXPERIMENT_ID", experiment)
    monkeypatch.setenv(PIPELINE_VARIABLE, "run-8")
    monkeypatch.setenv("MLFLOW_RUN_ID", below["sweep"])
    with start_run("sweep", {"posgap.label": "base"}, tmp_path / "swept") as step:
        step.metrics({"gap": 12.0})
    monkeypatch.setenv("MLFLOW_RUN_ID", below["report"])
    assert run(capsys, "report", "--state", "SUCCEEDED", "--out", tmp_path / "report")[0] == 0
    runs = {each.info.run_id: each for each in server.search_runs([experiment])}
    assert runs.keys() == set(below.values())
    whole = runs[below["whole"]]
    assert "The run succeeded" in whole.data.tags["mlflow.note.content"] and whole.info.status == "FINISHED"
    assert runs[below["sweep"]].data.tags["mlflow.parentRunId"] == below["loop"]
    monkeypatch.setenv(PIPELINE_VARIABLE, "run-9")  # another run's step is no child of it
    assert parents.parent_of(server, experiment, "run-9", {}) not in below.values()
