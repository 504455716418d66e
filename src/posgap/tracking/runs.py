"""One MLflow run per stage.

The tracking server is named by MLflow's usual variables (MLFLOW_TRACKING_URI,
MLFLOW_EXPERIMENT_NAME). A stage that cannot reach it says so once, works on and keeps its
results: hours of training are worth more than their log.
"""

import getpass
import logging
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posgap.errors import PosgapError

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
# A server that goes away in the middle is given seconds, not MLflow's minutes, for each call.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")

log = logging.getLogger(__name__)
EXPERIMENT = "posgap"
PARENT_VARIABLE = "POSGAP_PARENT_RUN_ID"  # set by whoever runs several stages as one
PIPELINE_VARIABLE = "POSGAP_PIPELINE_RUN"  # the KFP run that a stage is a step of
PIPELINE_TAG, STAGE_TAG, ERROR_TAG = "posgap.pipeline_run", "posgap.stage", "posgap.error"
REACHABLE_SECONDS = 5
ERROR_CHARACTERS = 1000  # of an error, in a tag


def pipeline_run() -> str:
    """Id of the KFP run that this process is a step of; empty outside of one."""
    return os.environ.get(PIPELINE_VARIABLE, "")


class Run:
    """A stage's MLflow run. `id` is empty where there is no tracking, or no more."""

    def __init__(self, run_id: str = "", ours: bool = True):
        self.id, self.ours = run_id, ours

    def params(self, values: Mapping[str, object]) -> None:
        """Logs parameters, except those the run has already (as under `mlflow run`)."""
        from mlflow.entities import Param

        def write(client):
            known = client.get_run(self.id).data.params
            client.log_batch(self.id, params=[Param(k, str(v)) for k, v in values.items() if k not in known])

        self._attempt(write)

    def metrics(self, values: Mapping[str, float], step: int = 0) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        logged = [Metric(name, float(value), now, step) for name, value in values.items()]
        self._attempt(lambda client: client.log_batch(self.id, metrics=logged))

    def tags(self, values: Mapping[str, object]) -> None:
        from mlflow.entities import RunTag

        self._attempt(lambda client: client.log_batch(self.id, tags=[RunTag(k, str(v)) for k, v in values.items()]))

    def artifact(self, path: Path) -> None:
        """Logs a file, or a folder's contents."""
        self._attempt(
            lambda client: (client.log_artifacts if path.is_dir() else client.log_artifact)(self.id, str(path))
        )

    def end(self, status: str) -> None:
        """Closes the run as FINISHED or FAILED, unless whoever opened it will."""
        if self.ours:
            self._attempt(lambda client: client.set_terminated(self.id, status))

    def _attempt(self, write: Callable[[Any], object]) -> None:
        if not self.id:
            return
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        try:
            write(MlflowClient())
        except (MlflowException, OSError) as error:
            log.warning("tracking stopped, results are kept locally: %s", str(error).splitlines()[0])
            self.id = ""


def require_server() -> None:
    """Raises `PosgapError` where the tracking server named by the environment cannot be reached.

    MLflow itself retries for minutes before it says so.
    """
    uri = os.environ.get("MLFLOW_TRACKING_URI", "")
    if not uri.startswith(("http://", "https://")):
        return
    try:
        urllib.request.urlopen(f"{uri.rstrip('/')}/health", timeout=REACHABLE_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()  # something answers there; MLflow will say what is wrong with it
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise PosgapError(
            f"MLflow tracking server {uri} cannot be reached ({reason}): start it, or correct or unset "
            "MLFLOW_TRACKING_URI"
        ) from None


def experiment_id(client) -> str:
    """The experiment of MLFLOW_EXPERIMENT_ID or MLFLOW_EXPERIMENT_NAME, created where it is missing.

    A SQLite store keeps the artifacts of a new experiment beside its file.
    """
    if given := os.environ.get("MLFLOW_EXPERIMENT_ID"):
        return given
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    if (experiment := client.get_experiment_by_name(name)) is not None:
        return experiment.experiment_id
    uri, artifacts = client.tracking_uri, None
    if uri.startswith("sqlite:///"):
        artifacts = (Path(uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts").as_uri()
    return client.create_experiment(name, artifact_location=artifacts)


def link(run_id: str) -> str:
    """Where a browser shows an MLflow run of this experiment; empty where the store is a file."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient()
    if not (uri := client.tracking_uri.rstrip("/")).startswith("http"):
        return ""
    try:
        return f"{uri}/#/experiments/{experiment_id(client)}/runs/{run_id}"
    except MlflowException:
        return ""


@contextmanager
def start_run(stage: str, tags: Mapping[str, object]) -> Iterator[Run]:
    """The MLflow run of one stage, or an empty `Run` and a warning where no server answers.

    Joins the run that MLFLOW_RUN_ID names (set by `mlflow run`, or by KFP's MLflow plugin), and
    hangs a new one below the run that POSGAP_PARENT_RUN_ID names. Of a run that failed, a tag says why.
    """
    run = _open_run(stage)
    step_of = {PIPELINE_TAG: pipeline_run()} if pipeline_run() else {}
    run.tags({STAGE_TAG: stage, **step_of, **tags})
    try:
        yield run
    except BaseException as error:
        run.tags({ERROR_TAG: f"{error or type(error).__name__}"[:ERROR_CHARACTERS]})
        run.end("FAILED")
        raise
    run.end("FINISHED")


def _open_run(stage: str) -> Run:
    try:
        require_server()
    except PosgapError as error:
        log.warning("%s. Going on without tracking; results are kept locally", error)
        return Run()
    if joined := os.environ.get("MLFLOW_RUN_ID"):
        return Run(joined, ours=False)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store").setLevel(logging.WARNING)
    tags = {"mlflow.user": getpass.getuser(), "mlflow.source.name": "posgap", "mlflow.source.type": "LOCAL"}
    if parent := os.environ.get(PARENT_VARIABLE):
        tags["mlflow.parentRunId"] = parent
    try:
        client = MlflowClient()
        return Run(client.create_run(experiment_id(client), run_name=stage, tags=tags).info.run_id)
    except MlflowException as error:
        reason = str(error).splitlines()[0]
        log.warning("MLflow refuses a run (%s). Going on without tracking; results are kept locally", reason)
        return Run()
