"""The frame of a stage: reuse, interruption, refusal, and a tracking server that is not there."""

import logging
import os

import mlflow
import pytest
from copy_stage import CALLS, CopyConfig, copy

from posgap.cli.main import main
from posgap.foundation import files
from posgap.foundation.errors import NotFound, Rejection
from posgap.storage.inputs import read_manifest
from posgap.tracking.runs import start_run
from posgap.tracking.server import NoAnswer
from posgap.verbs.frame import stage


@pytest.fixture
def source(tmp_path):
    CALLS.clear()
    file = tmp_path / "source.txt"
    file.write_text("hello")
    return file


def test_what_is_complete_is_reused_until_something_changes(tmp_path, source):
    config = CopyConfig(out=tmp_path / "out", source=source)
    copy(config)
    copy(config)
    assert len(CALLS) == 1
    copy(config.model_copy(update={"force": True}))
    assert len(CALLS) == 2
    copy(config.model_copy(update={"shout": True}))
    assert len(CALLS) == 3
    source.write_text("other")
    copy(config)
    assert len(CALLS) == 4 and (tmp_path / "out" / "copy.txt").read_text() == "other"


def test_the_place_of_an_input_does_not_matter(tmp_path, source):
    copy(CopyConfig(out=tmp_path / "out", source=source))
    moved = source.rename(tmp_path / "moved.txt")
    copy(CopyConfig(out=tmp_path / "out", source=moved))
    assert len(CALLS) == 1


@pytest.mark.parametrize("text", ["stop", "refuse"])
def test_an_interrupted_stage_leaves_nothing_that_looks_complete(tmp_path, source, text):
    source.write_text(text)
    with pytest.raises((KeyboardInterrupt, Rejection)):
        copy(CopyConfig(out=tmp_path / "out", source=source))
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".posgap-*"))
    assert (tmp_path / "out.rejected" / "half.txt").exists() == (text == "refuse")


def test_an_interruption_keeps_the_result_before_it(tmp_path, source):
    copy(CopyConfig(out=tmp_path / "out", source=source))
    source.write_text("stop")
    with pytest.raises(KeyboardInterrupt):
        copy(CopyConfig(out=tmp_path / "out", source=source))
    assert (tmp_path / "out" / "copy.txt").read_text() == "hello"


@pytest.mark.usefixtures("mlflow_store")
def test_the_manifest_and_the_run_tell_what_was_done(tmp_path, source):
    copy(CopyConfig(out=tmp_path / "a", source=source, seed=5))
    copy(CopyConfig(out=tmp_path / "b", source=tmp_path / "a" / "copy.txt"))
    manifest = read_manifest(tmp_path / "a")
    assert manifest["config"] == {
        "out": str(tmp_path / "a"),
        "seed": 5,
        "force": False,
        "source": str(source),
        "shout": False,
    }
    assert manifest["inputs"]["source"]["sha256"] == (
        "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    )
    assert {"posgap", "torch", "mlflow"} <= manifest["versions"].keys()
    run = mlflow.get_run(manifest["mlflow_run_id"])
    assert run.data.params == {"seed": "5", "shout": "False"}
    assert run.data.metrics["length"] == 5
    assert run.data.tags["posgap.stage"] == "copy"
    assert run.info.status == "FINISHED"


@pytest.mark.usefixtures("mlflow_store")
def test_a_failed_stage_is_a_failed_run(tmp_path, source):
    source.write_text("refuse")
    with pytest.raises(Rejection):
        copy(CopyConfig(out=tmp_path / "out", source=source))
    (run,) = mlflow.search_runs(experiment_names=["posgap"], output_format="list")
    assert run.info.status == "FAILED"


@pytest.mark.usefixtures("mlflow_store")
def test_runs_hang_below_the_run_that_ordered_them(tmp_path, source, monkeypatch):
    with start_run("all", {}, tmp_path / "all") as parent:
        pass
    monkeypatch.setenv("POSGAP_PARENT_RUN_ID", parent.id)
    copy(CopyConfig(out=tmp_path / "out", source=source))
    run = mlflow.get_run(read_manifest(tmp_path / "out")["mlflow_run_id"])
    assert run.data.tags["mlflow.parentRunId"] == parent.id


def test_without_a_tracking_server_results_are_kept_and_one_line_says_so(tmp_path, source, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with caplog.at_level(logging.WARNING, logger="posgap"):
        copy(CopyConfig(out=tmp_path / "out", source=source))
    assert (tmp_path / "out" / "copy.txt").read_text() == "hello"
    assert read_manifest(tmp_path / "out")["mlflow_run_id"] == ""
    (record,) = caplog.records
    assert "MLflow tracking server http://127.0.0.1:9 cannot be reached" in record.getMessage()


def test_a_run_that_the_registry_needs_fails_as_mlflow_did(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with start_run("promote", {}, tmp_path / "out") as run, pytest.raises(NoAnswer):
        run.required_id()


@pytest.mark.usefixtures("mlflow_store")
def test_nothing_is_tracked_where_nobody_said_where(tmp_path, source, monkeypatch, caplog, capsys):
    place = os.environ["MLFLOW_TRACKING_URI"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path.parent / "empty-cache"))
    with caplog.at_level(logging.INFO, logger="posgap"):
        for name in ("one", "two", "one"):  # made, made, reused
            copy(CopyConfig(out=tmp_path / name, source=source))
    assert "MLflow" not in caplog.text
    manifest = read_manifest(tmp_path / "one")
    assert manifest["mlflow_run_id"] == manifest["mlflow_run_key"] == ""
    # Neither a database, nor anything that waits to be sent to one.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "source.txt", "two"]
    with pytest.raises(SystemExit) as ended:
        main(["rollback", "some-model", "--reason", "slow"])
    assert ended.value.code == 2 and "MLFLOW_TRACKING_URI" in capsys.readouterr().err
    assert not (tmp_path / "mlflow.db").exists()
    source.write_text("refuse")
    with pytest.raises(Rejection):
        copy(CopyConfig(out=tmp_path / "refused", source=source))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
    assert mlflow.search_runs(experiment_names=["posgap"], output_format="list") == []


@pytest.mark.usefixtures("mlflow_store")
def test_what_was_left_behind_waits_until_runs_are_tracked_again(tmp_path, source, monkeypatch):
    place = os.environ["MLFLOW_TRACKING_URI"]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    copy(CopyConfig(out=tmp_path / "out", source=source))
    (waiting,) = files.workspace(tmp_path / "out").glob("unlogged/*/run.json")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    copy(CopyConfig(out=tmp_path / "out", source=source))
    assert waiting.is_file()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", place)
    copy(CopyConfig(out=tmp_path / "out", source=source))
    assert not waiting.exists()
    (run,) = mlflow.search_runs(experiment_names=["posgap"], output_format="list")
    assert run.info.status == "FINISHED"


def test_a_missing_input_is_named(tmp_path):
    with pytest.raises(NotFound, match="^source: .*none.txt: "):
        copy(CopyConfig(out=tmp_path / "out", source=tmp_path / "none.txt"))


def test_only_the_first_of_several_processes_writes(tmp_path, source, monkeypatch):
    monkeypatch.setenv("RANK", "1")

    @stage
    def work(config, out, run):
        assert run.id == "" and not out.exists()

    work(CopyConfig(out=tmp_path / "out", source=source))
    assert not (tmp_path / "out").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["source.txt"]
