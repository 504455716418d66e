"""The one place where MLflow is asked: every call has a deadline and a retry policy, and fails in one line.

MLflow's usual variables name the tracking server (MLFLOW_TRACKING_URI) and the experiment (MLFLOW_EXPERIMENT_NAME).
Without a server nothing is tracked: MLflow itself would make a database in the current folder.
"""

import functools
import json
import logging
import os
import re
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from posgap.foundation import files
from posgap.foundation.errors import NoServer, PosgapError, Refused
from posgap.foundation.heavy_types import MlflowClient
from posgap.foundation.redaction import redact, without_user
from posgap.foundation.retries import RetryPolicy, TransientError, Waits, retrying, within

os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # they may hold a password
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
# MLflow's own retries are silent, wait for as long as a server asks, and make a second run if an answer was lost.
os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] = "0"

T = TypeVar("T")
EXPERIMENT = "posgap"
CALL_SECONDS = 10.0  # for a call to a server
OPENING_SECONDS = 120.0  # for a database on this machine to be created, and for a call to it
MAX_CHARACTERS = 5000  # of a description, or of a registered model's tag, in MLflow's database
BYTES_PER_SECOND = 1 << 20  # an upload may take a second more for each
VERB = RetryPolicy(seconds=60, longest_wait=10)  # of a command that needs the server
STAGE = RetryPolicy(seconds=15, longest_wait=5)  # of a stage, which has other things to do
ONCE = RetryPolicy(tries=1)
_TRANSIENT = {"INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "DEADLINE_EXCEEDED", "REQUEST_LIMIT_EXCEEDED",
            "RESOURCE_EXHAUSTED", "ABORTED", "CANCELLED"}  # fmt: skip
_MISSING = {"RESOURCE_DOES_NOT_EXIST", "NOT_FOUND"}
_LOGIN = {
    "PERMISSION_DENIED": "{user} may not do this; promotion, rollback, approval and watching need a log-in that may "
    "change the registered model",
    "UNAUTHENTICATED": "{user} is refused; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
}
_WRONG = {"INVALID_PARAMETER_VALUE", "BAD_REQUEST"}
_LOCKED = "another process has locked the database; wait until it is done, or stop it, and run this again"
HOW_TO_TRACK = "set MLFLOW_TRACKING_URI to a server's address, or to sqlite:///mlflow.db for a file in this folder"


class TrackingError(PosgapError):
    """MLflow did not do what it was asked."""


class NoAnswer(TrackingError):
    """The server was not reached, failed, or was too slow; a later try may succeed."""

    code = NoServer.code
    may_pass = True


class RequestRefused(TrackingError):
    """The server refused. `is_missing`: it has no such object. `is_wrong`: it will never take what was sent."""

    code = Refused.code

    def __init__(self, complaint: str, status: str = ""):
        super().__init__(complaint)
        self.is_missing = status in _MISSING
        self.is_wrong = status in _WRONG


def is_tracking() -> bool:
    """Whether runs are tracked: whether the environment says where, which `mlflow.set_tracking_uri` sets too."""
    return bool(os.environ.get("MLFLOW_TRACKING_URI"))


def track_at(place: str) -> None:
    """Has runs tracked from now on at the address `place`, unless the environment names another one."""
    if not is_tracking():
        os.environ["MLFLOW_TRACKING_URI"] = place


def address() -> str:
    """The tracking server's address, as MLflow understands the environment; without a password."""
    import mlflow

    return without_user(mlflow.get_tracking_uri())


def call_mlflow(
    call: Callable[[MlflowClient], T], retry_policy: RetryPolicy = VERB, seconds: float = CALL_SECONDS
) -> T:
    """Calls `call` with MLflow's client, perhaps several times, and returns what it returns.

    Each try may take `seconds`, and all together as long as `retry_policy` allows. First a missing database on this
    machine is created, which a slow machine takes longer for. Raises `NoAnswer` or `RequestRefused`, a line each; the
    latter also where nothing is tracked.
    """
    if not is_tracking():
        raise RequestRefused(f"this needs MLflow: {HOW_TO_TRACK}")
    uri = address()
    limit = seconds if uri.startswith("http") else max(seconds, OPENING_SECONDS)
    if _sqlite_file(uri):
        with suppress(TransientError):  # which the first try below meets again
            _answer(_client, OPENING_SECONDS, uri)
    began = time.monotonic()

    def once() -> T:
        left = retry_policy.seconds - (time.monotonic() - began)
        return _answer(lambda: call(_client()), min(limit, max(left, seconds / 10)), uri)

    try:
        return retrying(retry_policy, Waits(f"MLflow at {uri}"))(once)
    except TransientError as error:
        raise NoAnswer(f"MLflow at {uri}: {error}") from None


def look_up(call: Callable[[MlflowClient], T]) -> T | None:
    """What `call_mlflow` returns of a call; None if the server has no such object, or takes no such name."""
    try:
        return call_mlflow(call)
    except RequestRefused as error:
        if error.is_missing or error.is_wrong:
            return None
        raise


def _answer(call: Callable[[], T], seconds: float, uri: str) -> T:
    """Returns what a call to MLflow returns within its time; raises its error in one line."""
    try:
        return within(seconds, call)
    except Exception as error:
        if isinstance(error, TimeoutError) and _is_locked(_sqlite_file(uri)):
            raise TransientError(_LOCKED) from None
        raise _explain_error(error, uri) from None


def _is_locked(file: Path | None) -> bool:
    """Whether another process keeps a SQLite database from being written."""
    if file is None or not file.is_file():
        return False
    try:
        with closing(sqlite3.connect(file, timeout=0.1, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE").execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        return "locked" in str(error)
    return False


def experiment() -> tuple[str, str]:
    """Name and id of the experiment, from MLFLOW_EXPERIMENT_NAME or MLFLOW_EXPERIMENT_ID; one of them is empty."""
    known = os.environ.get("MLFLOW_EXPERIMENT_ID")
    if known:
        return "", known
    return os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT), ""


def experiment_id(client: MlflowClient) -> str:
    """The id of the environment's experiment, which is created if it is missing.

    A SQLite store keeps the artifacts of a new experiment beside its file.
    """
    from mlflow.exceptions import MlflowException

    name, known = experiment()
    if known:
        return known
    there = client.get_experiment_by_name(name)
    if there:
        return there.experiment_id
    file = _sqlite_file(client.tracking_uri)
    try:
        return client.create_experiment(name, (file.parent / "mlartifacts").as_uri() if file else None)
    except MlflowException:
        there = client.get_experiment_by_name(name)
        if there:  # made by another command, or by a try whose answer was lost
            return there.experiment_id
        raise


def upload_file(client: MlflowClient, run_id: str, path: Path, folder: str = "") -> None:
    """Uploads a file to a folder among a run's files, and checks that a server has it: MLflow's client takes a log-in
    page for success."""
    client.log_artifact(run_id, str(path), folder or None)
    if not client.tracking_uri.startswith("http"):
        return
    if path.name not in {Path(file.path).name for file in client.list_artifacts(run_id, folder or None)}:
        raise ConnectionError(f"it accepted {path.name}, but does not have it")


@contextmanager
def tries_of_mlflow() -> Iterator[None]:
    """Within the block MLflow retries its own requests: for calls that make many requests and cannot be repeated."""
    ours = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "4", "MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER": "false"}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _client() -> MlflowClient:
    import mlflow

    return _client_of(mlflow.get_tracking_uri(), mlflow.get_registry_uri())


@functools.lru_cache(maxsize=4)
def _client_of(uri: str, registry_uri: str) -> MlflowClient:
    from mlflow import MlflowClient

    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow.store").setLevel(logging.ERROR)
    file = _sqlite_file(uri)
    if file:
        make_ready(file)
    return MlflowClient(uri, registry_uri)


def _sqlite_file(uri: str) -> Path | None:
    return Path(uri.removeprefix("sqlite:///")).resolve() if uri.startswith("sqlite:///") else None


def make_ready(file: Path) -> None:
    """Creates a SQLite store if there is none, atomically.

    MLflow creates one in fifty steps. Two processes that do so disturb each other, and an interrupted one leaves a
    broken store. So each process creates its own elsewhere, and the first complete one takes the place.
    """
    if file.is_file():
        with open(file, "rb") as opened:
            start = opened.read(16)
        if start not in (b"", b"SQLite format 3\0"):
            raise RequestRefused(f"{file}: is not a SQLite database; move it away, or correct MLFLOW_TRACKING_URI")
        return
    from mlflow import MlflowClient

    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_name(f".partial-{os.getpid()}-{file.name}")
    with tempfile.TemporaryDirectory(prefix="posgap-") as folder:
        made = Path(folder) / "mlflow.db"
        MlflowClient(f"sqlite:///{made}")
        try:
            shutil.copyfile(made, partial)
            os.link(partial, file)
        except FileExistsError:
            pass  # made by another process meanwhile, which is as good
        finally:
            files.delete_path(partial)


def _explain_error(error: Exception, uri: str) -> Exception:
    """An error of MLflow's client as a `TransientError`, or as a `PosgapError` if a retry cannot help."""
    import requests
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import OperationalError
    from urllib3.exceptions import MaxRetryError, NewConnectionError

    if isinstance(error, PosgapError):
        return error
    causes = list(_causes(error))
    unreached = next((cause for cause in causes if isinstance(cause, NewConnectionError)), None)
    if unreached:
        return NoAnswer(
            f"MLflow tracking server {uri} cannot be reached ({_line(unreached).rsplit(': ', 1)[-1]}): start it, or "
            "correct or unset MLFLOW_TRACKING_URI"
        )
    reason = next((_line(cause.reason) for cause in causes if isinstance(cause, MaxRetryError)), _line(error))
    reason = next((cause.strerror for cause in causes if isinstance(cause, ConnectionError) and cause.strerror), reason)
    reason = re.sub(r"too many (\d+) error responses", r"it answers \1", reason)
    if isinstance(error, MlflowException):
        login = _LOGIN.get(error.error_code)
        if login:
            name = os.environ.get("MLFLOW_TRACKING_USERNAME")
            user = f"the log-in {name}" if name else "a request without a log-in"
            return RequestRefused(f"MLflow at {uri}: {login.format(user=user)}", error.error_code)
        if error.error_code in _TRANSIENT:
            return TransientError(reason)
        return RequestRefused(f"MLflow at {uri}: {reason}", error.error_code)
    if isinstance(error, requests.HTTPError) and error.response is not None:
        status = error.response.status_code
        if status < 500 and status not in (408, 429):
            return RequestRefused(f"MLflow at {uri}: {reason}")
    if isinstance(error, FileNotFoundError):
        return RequestRefused(f"{error.filename}: is not there any more", "INVALID_PARAMETER_VALUE")
    if isinstance(error, OperationalError) and "database is locked" in str(error):
        return TransientError(_LOCKED)
    if isinstance(error, OSError | OperationalError | json.JSONDecodeError):
        return TransientError(reason)
    return RequestRefused(f"MLflow at {uri}: {reason}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and those that led to it."""
    while error:
        yield error
        error = error.__cause__ or error.__context__


def _line(error: object) -> str:
    """The first line of an error's message, at most 300 characters, without secrets."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return redact(lines[0])[:300]
