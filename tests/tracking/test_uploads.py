"""A model is uploaded once, and MLflow shows how a command ended."""

import sqlite3
import threading
import time

import mlflow
import pytest
from mlflow.models import Model

from posgap.foundation.errors import PosgapError, TerminationSignal
from posgap.foundation.files import digest_path
from posgap.foundation.retries import RetryPolicy
from posgap.tracking import promotion, server
from posgap.tracking.promotion import _log_model
from posgap.tracking.registry import DIGEST
from posgap.tracking.runs import start_run
from posgap.tracking.server import TrackingError, call_mlflow

pytestmark = pytest.mark.usefixtures("mlflow_store")


def logged(run):
    """What MLflow has of the uploads of a run."""
    experiment = mlflow.MlflowClient().get_run(run.id).info.experiment_id
    found = mlflow.MlflowClient().search_logged_models([experiment], f"tags.`{DIGEST}` != ''")
    return {model.model_uri: str(model.status) for model in found}


def uploaded(folder, run):
    return _log_model(folder, digest_path(folder), "tiny", run, None)


@pytest.fixture
def run(tmp_path):
    with start_run("promote", {}, tmp_path / "out") as run:
        yield run


def test_an_upload_whose_answer_was_lost_is_found(run, model_folder, monkeypatch):
    """A second upload left a whole model that no version had."""
    upload, tries = Model.log, []

    def lost(**options):
        tries.append(options)
        upload(**options)
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(Model, "log", lost)
    uri = uploaded(model_folder, run)
    assert len(tries) == 1 and logged(run) == {uri: "READY"}


@pytest.mark.full  # waits for an upload that was given up
def test_an_upload_that_was_given_up_ends_nowhere(run, model_folder, monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(promotion, "MODEL_SECONDS", 4.0)
    monkeypatch.setattr(server, "OPENING_SECONDS", 4.0)
    save = promotion.flavor.save_model

    def slow(*args, **options):
        if not ended.is_set():
            ended.set()
            time.sleep(8)
        save(*args, **options)

    monkeypatch.setattr(promotion.flavor, "save_model", slow)
    uri = uploaded(model_folder, run)
    for thread in threading.enumerate():
        if thread.name == "within":
            thread.join(60)
    assert logged(run) == {uri: "READY"}


def test_a_locked_database_is_called_locked(mlflow_store):
    call_mlflow(lambda client: client.search_registered_models())
    database = sqlite3.connect(mlflow_store, isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(TrackingError, match="locked"):
            call_mlflow(lambda client: client.create_registered_model("tiny"), RetryPolicy(seconds=0.5), 0.5)
    finally:
        database.close()


@pytest.mark.parametrize(
    ("stop", "status"),
    [(PosgapError("no" * 1500), "FAILED"), (KeyboardInterrupt(), "KILLED"), (TerminationSignal("stopped"), "KILLED")],
    ids=["error", "Ctrl-C", "SIGTERM"],
)
def test_a_run_says_how_it_ended(tmp_path, stop, status):
    """The tag is cut, the description is not."""
    with pytest.raises(type(stop)), start_run("promote", {}, tmp_path / "out"):
        raise stop
    (ended,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    assert ended.info.status == status
    assert ended.data.tags["mlflow.note.content"] == (str(stop) or "KeyboardInterrupt")
