"""One MLflow run per stage.

A stage that cannot reach the tracking server says so once, goes on and keeps its results: hours of training are worth
more than their log. What MLflow does not have when the stage ends is kept beside the output, and logged when the
command is run again. Without a tracking server nothing is tracked; `posgap doctor` says how to change that.
"""

import getpass
import json
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from posgap.foundation import files
from posgap.foundation.errors import PosgapError
from posgap.foundation.heavy_types import DatasetInput, MlflowClient
from posgap.foundation.printing import join_lines, printable
from posgap.foundation.redaction import redact
from posgap.foundation.retries import RetryPolicy
from posgap.storage.datasets import EVALUATION, Dataset
from posgap.tracking.parents import JOINED_VARIABLE, PARENT_TAG, PIPELINE_TAG, STAGE_TAG, parent_of
from posgap.tracking.server import (
    BYTES_PER_SECOND,
    CALL_SECONDS,
    HOW_TO_TRACK,
    MAX_CHARACTERS,
    ONCE,
    STAGE,
    RequestRefused,
    TrackingError,
    address,
    call_mlflow,
    experiment_id,
    is_tracking,
    upload_file,
)

log = logging.getLogger(__name__)
PARENT_VARIABLE = "POSGAP_PARENT_RUN_ID"  # set by a command that runs several stages as one
PIPELINE_VARIABLE = "POSGAP_PIPELINE_RUN"  # the KFP run that a stage is a step of
WEBHOOK_VARIABLE = "POSGAP_WEBHOOK_URL"  # where the report of a run is posted
ERROR_TAG = "posgap.error"
NOTE_TAG = "mlflow.note.content"  # the description that MLflow shows of a run, in Markdown of several lines
NAME_TAG, LABEL_TAG = "mlflow.runName", "posgap.label"
KEY_TAG = "posgap.run_key"  # by which a run is found on the server
KILLED = "KILLED"
ERROR_CHARACTERS = 1000  # of an error, in a tag
TOGETHER_SECONDS = 1.0  # for which metrics wait for others, once some were sent
SHARE = 20  # metrics wait that many times as long as the last ones took, so that a slow server costs a twentieth


def milliseconds() -> int:
    """The time, as MLflow counts it."""
    return int(time.time() * 1000)


def pipeline_run() -> str:
    """Id of the KFP run that this process is a step of; empty outside of one. `PosgapError` if it is no id, since as
    part of a search in MLflow it could change what is searched for."""
    identity = os.environ.get(PIPELINE_VARIABLE, "")
    if not re.fullmatch(r"[\w.-]*", identity):
        raise PosgapError(f"{PIPELINE_VARIABLE}: {identity!r} is not the id of a run; unset it")
    return identity


class RunRecord(BaseModel):
    """A run, and what MLflow does not have of it yet.

    It is a new run, or joins the run `joins`, which another process closes. `id` is empty until MLflow has it, and
    `end` until it has ended; times are in milliseconds. A metric is its name, value, time and step, and the id of a
    logged model that it is of, too, if any. Files to upload are beside the record, in the folder `files`.
    """

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")

    name: str
    began: int
    about: dict[str, str]  # tags of the run, unless it is joined
    joins: str = ""
    id: str = ""
    params: dict[str, str] = {}
    tags: dict[str, str] = {}
    datasets: list[Dataset] = []
    metrics: list[tuple[str, float, int, int, str]] = []
    measured_on: Dataset | None = None  # the data that models' metrics are of
    end: str = ""
    ended: int = 0


class UnloggedRun:
    """A run in the folder that keeps what MLflow does not have of it; the folder's name is its key on the server."""

    def __init__(self, folder: Path, record: RunRecord):
        self.folder = folder
        self.record = record
        self._files = folder / "files"
        # How often the server was asked to create it; it may be there after one try, and twice after two.
        self.tries = 2 if (folder / "run.json").exists() else 0

    def write(self) -> None:
        """Writes the record, from which a later command goes on."""
        files.write_text(self.folder / "run.json", self.record.model_dump_json(exclude_defaults=True), lasting=False)

    def keep(self, file: Path, name: str) -> None:
        """Keeps a file, which may change or go now, to be uploaded under this name."""
        (self._files / name).unlink(missing_ok=True)
        files.link(file, self._files / name)

    def send(self, retry_policy: RetryPolicy) -> None:
        """Sends what MLflow does not have; what it will never take is left out, with a warning.

        Raises `NoAnswer` or `RequestRefused` where it does not get through; calling it again then goes on. Sending
        twice changes nothing: time and step identify a metric, and its name everything else.
        """
        record = self.record
        self.write()  # for a later command, should this one be killed; when it was written says when this one was alive
        if not record.id:
            record.id = call_mlflow(self._open, retry_policy, CALL_SECONDS)
            self.write()
        pending = record.params, record.tags, record.datasets, record.metrics
        if any(pending):
            _call_or_leave_out(self._log, retry_policy, 0)
            for sent in pending:
                sent.clear()
        for file in sorted(self._files.rglob("*")):
            if file.is_file():
                folder = file.parent.relative_to(self._files).as_posix().removeprefix(".")
                upload = partial(upload_file, run_id=record.id, path=file, folder=folder)
                _call_or_leave_out(upload, retry_policy, file.stat().st_size / BYTES_PER_SECOND)
                file.unlink()
        if record.end and not record.joins:
            call_mlflow(self._end, retry_policy, CALL_SECONDS)

    def delete(self) -> None:
        """Deletes it, as MLflow has everything."""
        files.delete_path(self.folder)
        with suppress(OSError):  # there are others, or work to go on with
            self.folder.parent.rmdir()
            self.folder.parent.parent.rmdir()

    def _open(self, client: MlflowClient) -> str:
        """The run's id: of the joined run, of one that an earlier try has made, or of a new one."""
        record = self.record
        if record.joins:
            return client.get_run(record.joins).info.run_id
        there = self._find(client) if self.tries else []
        if there:
            return there[0]
        self.tries += 1
        experiment = experiment_id(client)
        about = record.about | record.tags
        pipeline = about.get(PIPELINE_TAG)
        if pipeline and PARENT_TAG not in about:
            about |= {PARENT_TAG: parent_of(client, experiment, pipeline, record.about)}
        about |= {KEY_TAG: self.folder.name, NAME_TAG: about.get(NAME_TAG, record.name)}
        return client.create_run(experiment, record.began, about).info.run_id

    def _find(self, client: MlflowClient) -> list[str]:
        """The ids of the runs of this key."""
        there = client.search_runs([experiment_id(client)], f"tags.`{KEY_TAG}` = '{self.folder.name}'")
        return [run.info.run_id for run in there]

    def _end(self, client: MlflowClient) -> None:
        """Closes the run, and deletes one that a server made late, when it was asked again already."""
        client.set_terminated(self.record.id, self.record.end, self.record.ended)
        if self.tries > 1:
            for run_id in set(self._find(client)) - {self.record.id}:
                client.delete_run(run_id)

    def _log(self, client: MlflowClient) -> None:
        """Logs all but files; parameters that the run has already (as under `mlflow run`) stay as they are."""
        from mlflow.entities import Metric, Param, RunTag

        record = self.record
        data = self.record.measured_on
        metrics = []
        for name, value, moment, step, model in record.metrics:
            of_model = (model, data.name, data.digest) if model and data else (model or None, None, None)
            metrics.append(Metric(name, value, moment, step, *of_model))
        there = client.get_run(record.id).data.params if record.params else {}
        params = [Param(name, value) for name, value in record.params.items() if name not in there]
        tags = [RunTag(name, value) for name, value in record.tags.items()]
        client.log_batch(record.id, metrics, params, tags)
        if record.datasets:
            client.log_inputs(record.id, [_as_input(dataset) for dataset in record.datasets])


def _call_or_leave_out(call: Callable[[MlflowClient], None], retry_policy: RetryPolicy, more: float) -> None:
    """Calls MLflow, with `more` seconds than usual; warns of what it will never take."""
    try:
        call_mlflow(call, replace(retry_policy, seconds=retry_policy.seconds + more), CALL_SECONDS + more)
    except RequestRefused as error:
        if not error.is_wrong:
            raise
        log.warning("%s; left out", error)


def _as_input(dataset: Dataset) -> DatasetInput:
    """Returns the dataset as MLflow's entity, with which `mlflow.data.get_source` finds the data."""
    from mlflow.entities import Dataset as Entity
    from mlflow.entities import DatasetInput, InputTag

    kind = "s3" if dataset.source.startswith("s3://") else "local"
    entity = Entity(dataset.name, dataset.digest, kind, json.dumps({"uri": dataset.source}))
    return DatasetInput(entity, [InputTag("mlflow.data.context", dataset.context)])


class Run:
    """A stage's MLflow run. `id` is empty if nothing is tracked, or no server has answered yet; `key` is the value of
    the tag that identifies it on the server.

    Once the server has failed, nothing more is sent before the run ends. Metrics wait for others a second, and longer
    where the server is slow.
    """

    def __init__(self, unlogged: UnloggedRun | None = None):
        self._unlogged = unlogged  # None once the run has ended
        self._record = unlogged.record if unlogged else None
        self.key = unlogged.folder.name if unlogged else ""
        self._failure: TrackingError | None = None  # of MLflow, after which it is asked only once more
        self._metrics_wait_until = 0.0

    @property
    def id(self) -> str:
        return self._record.id if self._record else ""

    def required_id(self) -> str:
        """Returns the run's id. Raises `TrackingError` if MLflow did not take the run, or nothing is tracked."""
        if not self.id:
            raise self._failure or RequestRefused(f"this needs MLflow: {HOW_TO_TRACK}")
        return self.id

    def params(self, values: Mapping[str, object]) -> None:
        """Logs parameters, except those the run has already (as under `mlflow run`)."""
        if self._record:
            self._record.params |= _texts(values)
            self._send()

    def metrics(self, values: Mapping[str, float], step: int = 0, model_id: str = "") -> None:
        """Logs metrics; with the data for evaluation also for the logged model of this id, if one is given."""
        if self._record:
            now = milliseconds()
            self._record.metrics += [(name, float(value), now, step, model_id) for name, value in values.items()]
            if time.monotonic() >= self._metrics_wait_until:
                self._send()

    def tags(self, values: Mapping[str, object]) -> None:
        if self._record:
            self._record.tags |= _texts(values)
            self._send()

    def dataset(self, dataset: Dataset) -> None:
        """Logs which data the run used and for what: name, digest and source, not the data itself."""
        if self._record:
            dataset = Dataset(**_texts(dataset.model_dump()))
            self._record.datasets.append(dataset)
            if dataset.context == EVALUATION:
                self._record.measured_on = dataset
            self._send()

    def label(self, text: str) -> None:
        """Gives the run a label, which tells it from others of its stage. It is part of the run's name too, unless the
        run was joined."""
        renamed = {NAME_TAG: f"{self._record.name} {text}"} if self._record and not self._record.joins else {}
        self.tags({LABEL_TAG: text} | renamed)

    def artifact(self, path: Path) -> None:
        """Logs a file, or a folder's contents."""
        if self._unlogged:
            for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
                if file.is_file():
                    self._unlogged.keep(file, file.relative_to(path if path.is_dir() else path.parent).as_posix())
            self._send()

    def finish(self, status: str) -> None:
        """Closes the run as FINISHED, FAILED or KILLED, unless another process opened it. What is not sent then is
        kept, and so is a run that may have been created twice: the next command deletes the one that came late."""
        if not (self._unlogged and self._record):
            return
        self._record.end = status
        self._record.ended = milliseconds()
        if self._send(last=True) and self._unlogged.tries < 2:
            self._unlogged.delete()
        else:
            self._unlogged.write()
        self._unlogged = None

    def _send(self, last: bool = False) -> bool:
        """Sends what is pending, unless the server failed before, or once more at the end; whether nothing is left."""
        if not (self._unlogged and (last or not self._failure)):
            return False
        began = time.monotonic()
        has_metrics = bool(self._unlogged.record.metrics)
        try:
            self._unlogged.send(ONCE if self._failure else STAGE)
        except TrackingError as error:
            if not self._failure:
                log.warning(
                    "%s. The output will be complete without it; to log its run, run the command again when the "
                    "server answers",
                    error,
                )
            self._failure = error
            return False
        if has_metrics:
            now = time.monotonic()
            self._metrics_wait_until = now + max(TOGETHER_SECONDS, SHARE * (now - began))
        return True


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    """The values as text for MLflow: without secrets, and with escapes for what is not to be printed."""
    texts = {name: redact(str(value)) for name, value in values.items()}
    return {name: join_lines(text.split("\n")) if name == NOTE_TAG else printable(text) for name, text in texts.items()}


def link(run_id: str, server: str = "") -> str:
    """The address of an MLflow run's page, on this server or else the tracking server; empty if there is none. It says
    that the run is a training: otherwise the browser's last choice decides what MLflow shows."""
    server = server or address().rstrip("/")
    if not server.startswith("http"):
        return ""
    try:
        return f"{server}/#/experiments/{call_mlflow(experiment_id, STAGE)}/runs/{run_id}?workflowType=machine_learning"
    except TrackingError:
        return ""


@contextmanager
def start_run(stage: str, tags: Mapping[str, object], out: Path) -> Iterator[Run]:
    """The MLflow run of a stage that makes `out`. If no server answers it only warns; without a server there is no run.

    It joins the run that MLFLOW_RUN_ID names (set by `mlflow run`, or by KFP's MLflow plugin). Otherwise the new run's
    parent is POSGAP_PARENT_RUN_ID, or its pipeline run's MLflow run. If the stage fails, the description and a shorter
    tag say why. A stage that is stopped ends as KILLED.
    """
    if not is_tracking():
        yield Run()
        return
    log_unlogged(out)
    about = {"mlflow.user": user(), "mlflow.source.name": "posgap", "mlflow.source.type": "LOCAL"}
    parent = os.environ.get(PARENT_VARIABLE)
    about |= {PARENT_TAG: parent} if parent else {}
    joins = os.environ.get(JOINED_VARIABLE, "")
    record = RunRecord(name=stage, began=milliseconds(), about=_texts(about), joins=joins)
    run = Run(UnloggedRun(_unlogged_runs(out) / uuid.uuid4().hex, record))
    step_of = {PIPELINE_TAG: pipeline_run()} if pipeline_run() else {}
    run.tags({STAGE_TAG: stage, **step_of, **tags})
    try:
        yield run
    except BaseException as error:
        words = str(error) or type(error).__name__
        run.tags({ERROR_TAG: words[:ERROR_CHARACTERS]} | ({} if joins else {NOTE_TAG: words[:MAX_CHARACTERS]}))
        run.finish(KILLED if isinstance(error, KeyboardInterrupt) else "FAILED")
        raise
    run.finish("FINISHED")


def log_unlogged(out: Path) -> None:
    """Logs what earlier commands on this output could not, and closes as KILLED the runs of those that were killed.

    No other process may be writing the output. Where MLflow does not answer it warns; the next command tries again.
    """
    for folder in sorted(_unlogged_runs(out).glob("*")) if is_tracking() else ():
        file = folder / "run.json"
        try:
            record = RunRecord.model_validate_json(file.read_bytes())
        except (OSError, ValidationError):  # killed before it was written
            files.delete_path(folder)
            continue
        if not record.end:
            record.end = KILLED
            record.ended = int(1000 * file.stat().st_mtime)
        unlogged = UnloggedRun(folder, record)
        try:
            unlogged.send(STAGE)
        except TrackingError as error:
            if not (isinstance(error, RequestRefused) and error.is_missing):
                log.warning("%s. The %s run of an earlier command is not fully logged yet", error, record.name)
                return
            log.warning("%s. What an earlier command could not log in this run is left out", error)
        else:
            log.info("MLflow has the %s run of an earlier command: %s", record.name, record.id)
        unlogged.delete()


def _unlogged_runs(out: Path) -> Path:
    """The folder that keeps the runs that made `out` until MLflow has them."""
    return files.workspace(out) / "unlogged"


def user() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())
