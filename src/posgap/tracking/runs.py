"""One MLflow run per stage.

The tracking server is named by MLflow's usual variables (MLFLOW_TRACKING_URI,
MLFLOW_EXPERIMENT_NAME). A stage that cannot reach it says so once, works on and keeps its
results: hours of training are worth more than their log.
"""

import logging
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from posgap.errors import PosgapError

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")

log = logging.getLogger(__name__)
EXPERIMENT = "posgap"
PARENT_VARIABLE = "POSGAP_PARENT_RUN_ID"  # set by whoever runs several stages as one
REACHABLE_SECONDS = 5


class Run:
    """A stage's MLflow run. `id` is empty where there is no tracking."""

    def __init__(self, run_id: str = ""):
        self.id = run_id

    def params(self, values: Mapping[str, object]) -> None:
        """Logs parameters, except those the run has already (as under `mlflow run`)."""
        import mlflow

        def write():
            known = mlflow.get_run(self.id).data.params
            mlflow.log_params({k: v for k, v in values.items() if k not in known})

        self._attempt(write)

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        import mlflow

        self._attempt(lambda: mlflow.log_metrics(dict(values), step=step))

    def tags(self, values: Mapping[str, object]) -> None:
        import mlflow

        self._attempt(lambda: mlflow.set_tags(dict(values)))

    def artifact(self, path: Path, folder: str | None = None) -> None:
        """Logs a file, or a folder's contents."""
        import mlflow

        log_it = mlflow.log_artifacts if path.is_dir() else mlflow.log_artifact
        self._attempt(lambda: log_it(str(path), folder))

    def _attempt(self, write: Callable[[], object]) -> None:
        if not self.id:
            return
        from mlflow.exceptions import MlflowException

        try:
            write()
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


def use_experiment() -> None:
    """Selects the experiment, creating it; a new SQLite store keeps its artifacts beside itself."""
    import mlflow

    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    if mlflow.get_experiment_by_name(name) is None:
        uri, artifacts = mlflow.get_tracking_uri(), None
        if uri.startswith("sqlite:///"):
            artifacts = (Path(uri.removeprefix("sqlite:///")).resolve().parent / "mlartifacts").as_uri()
        mlflow.create_experiment(name, artifact_location=artifacts)
    mlflow.set_experiment(name)


@contextmanager
def start_run(stage: str, tags: Mapping[str, object]) -> Iterator[Run]:
    """The MLflow run of one stage, or an empty `Run` and a warning where no server answers.

    Joins the run that MLFLOW_RUN_ID names (set by `mlflow run`, or by KFP's MLflow plugin), and
    hangs a new one below the run that POSGAP_PARENT_RUN_ID names.
    """
    try:
        require_server()
    except PosgapError as error:
        log.warning("%s. Going on without tracking; results are kept locally", error)
        yield Run()
        return
    import mlflow

    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store").setLevel(logging.WARNING)
    parent = os.environ.get(PARENT_VARIABLE)
    if "MLFLOW_RUN_ID" not in os.environ:
        use_experiment()
    with mlflow.start_run(run_name=stage, tags={"mlflow.parentRunId": parent} if parent else None) as active:
        run = Run(active.info.run_id)
        run.tags({"posgap.stage": stage, **tags})
        yield run
