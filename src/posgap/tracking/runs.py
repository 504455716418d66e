"""One MLflow run per stage.

A stage that cannot reach the tracking server says so once, goes on and keeps its results: hours of training are worth
more than their log. The log is not lost either: it stays in the outbox beside the output. Without a tracking server
nothing is tracked, and the first stage of a process says how to change that.
"""

import getpass
import logging
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from posgap.foundation.errors import PosgapError
from posgap.foundation.locations import cache_folder
from posgap.foundation.redaction import redact
from posgap.storage.datasets import EVALUATION, Dataset
from posgap.tracking.outbox import METRICS_AT_ONCE, Entry, Opening, Outbox, milliseconds, place_of
from posgap.tracking.parents import PARENT_TAG, PIPELINE_TAG, STAGE_TAG
from posgap.tracking.server import (
    BYTES_PER_SECOND,
    CALL_SECONDS,
    HOW_TO_TRACK,
    ONCE,
    OPENING_SECONDS,
    STAGE,
    NoAnswer,
    TrackingError,
    address,
    call_mlflow,
    experiment,
    experiment_id,
    is_tracking,
)

log = logging.getLogger(__name__)
PARENT_VARIABLE = "POSGAP_PARENT_RUN_ID"  # set by a command that runs several stages as one
PIPELINE_VARIABLE = "POSGAP_PIPELINE_RUN"  # the KFP run that a stage is a step of
PRICE_VARIABLE = "POSGAP_GPU_PRICE"  # what a GPU of the step's pod costs an hour
WEBHOOK_VARIABLE = "POSGAP_WEBHOOK_URL"  # where the report of a run is posted
ERROR_TAG = "posgap.error"
GPUS_TAG, PRICE_TAG = "posgap.gpus", "posgap.gpu_price"
NAME_TAG, LABEL_TAG = "mlflow.runName", "posgap.label"
DAY = 86400.0  # seconds
ERROR_CHARACTERS = 1000  # of an error, in a tag
TOGETHER_SECONDS = 1.0  # for which metrics wait for others, once some were sent
ALLOWED_SECONDS, ALLOWED_SHARE = 20.0, 1 / 20  # of a stage's time that tracking may take, beside its uploads


def pipeline_run() -> str:
    """Id of the KFP run that this process is a step of; empty outside of one. `PosgapError` if it is no id, since as
    part of a search in MLflow it could change what is searched for."""
    identity = os.environ.get(PIPELINE_VARIABLE, "")
    if not re.fullmatch(r"[\w.-]*", identity):
        raise PosgapError(f"{PIPELINE_VARIABLE}: {identity!r} is not the id of a run; unset it")
    return identity


class Sender:
    """Sends what outboxes hold, and gives up before that costs too much time.

    It may take 20 s, a twentieth of the time since it began, and what uploads need. It warns the first time that an
    entry cannot be sent. From then on it tries each entry once, until the server answers again.
    """

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._spent, self._uploads, self._answers, self._warned = 0.0, 0.0, True, False

    def expect(self, file: Path) -> None:
        """Adds the time that the upload of a file may take."""
        self._uploads += file.stat().st_size / BYTES_PER_SECOND

    def send_pending(self, outbox: Outbox) -> bool:
        """Sends what it can; whether nothing is left in the outbox."""
        while outbox.pending:
            began = time.monotonic()
            try:
                self._send_next(outbox)
            except TrackingError as error:
                if not self._warned:
                    log.warning(
                        "%s. Going on without tracking: results are kept locally, and the run in %s, from where the "
                        "next command on this output sends it, or `posgap sync`",
                        error, outbox.file.parent,
                    )  # fmt: skip
                self._answers, self._warned = False, True
                return False
            finally:
                self._spent += time.monotonic() - began
            if not self._answers:
                log.info("MLflow answers again")
                self._answers = True
        return True

    def _send_next(self, outbox: Outbox) -> None:
        allowed = ALLOWED_SECONDS if address().startswith("http") else OPENING_SECONDS
        allowed += self._uploads + ALLOWED_SHARE * (time.monotonic() - self._began)
        left = allowed - self._spent
        if left <= 0:
            raise NoAnswer(f"MLflow at {address()}: took {self._spent:.0f} s, which is too much")
        trying = replace(STAGE, seconds=min(left, STAGE.seconds)) if self._answers else ONCE
        outbox.send_next(trying, max(1.0, min(left, CALL_SECONDS)))


class Run:
    """A stage's MLflow run. `id` is empty if nothing is tracked, or no server has answered yet; `key` is the value of
    the tag that identifies it on the server.

    Everything goes to the outbox first, and from there to the server. Metrics that come within a second of others are
    sent with what is logged next, in one call.
    """

    def __init__(self, outbox: Outbox | None = None, sender: Sender | None = None):
        self._outbox, self._sender = outbox, sender or Sender()
        self._ended = outbox is None
        self._evaluated_on: Dataset | None = None
        self._metrics_sent = float("-inf")

    @property
    def id(self) -> str:
        return self._outbox.run_id if self._outbox else ""

    def required_id(self) -> str:
        """Returns the run's id. Raises `PosgapError` if nothing is tracked."""
        if not self.id:
            raise PosgapError("no MLflow run: the registry needs a tracking server; start it and promote again")
        return self.id

    @property
    def key(self) -> str:
        return self._outbox.key if self._outbox else ""

    def params(self, values: Mapping[str, object]) -> None:
        """Logs parameters, except those the run has already (as under `mlflow run`)."""
        self._tell(Entry(params=_texts(values)))

    def metrics(self, values: Mapping[str, float], step: int = 0, model_id: str = "") -> None:
        """Logs metrics; with the data for evaluation also for the logged model of this id, if one is given."""
        now, measured_on = milliseconds(), self._evaluated_on if model_id else None
        logged = [(name, float(value), now, step) for name, value in values.items()]
        for at in range(0, len(logged), METRICS_AT_ONCE):
            part = logged[at : at + METRICS_AT_ONCE]
            self._tell(Entry(metrics=part, model_id=model_id, measured_on=measured_on))

    def tags(self, values: Mapping[str, object]) -> None:
        self._tell(Entry(tags=_texts(values)))

    def dataset(self, dataset: Dataset) -> None:
        """Logs which data the run used and for what: name, digest and source, not the data itself."""
        dataset = Dataset(**_texts(dataset.model_dump()))
        self._tell(Entry(dataset=dataset))
        if dataset.context == EVALUATION:
            self._evaluated_on = dataset

    def label(self, text: str) -> None:
        """Gives the run a label, which tells it from others of its stage. It is part of the run's name too, unless the
        run was joined."""
        opening = self._outbox.opening if self._outbox else None
        self.tags({LABEL_TAG: text} | ({NAME_TAG: f"{opening.name} {text}"} if opening and not opening.joins else {}))

    def artifact(self, path: Path) -> None:
        """Logs a file, or a folder's contents."""
        if self._outbox is None or self._ended:
            return
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                folder = file.parent.relative_to(path).as_posix() if file != path else "."
                self._outbox.add_upload(file, folder.removeprefix("."))
                self._sender.expect(file)
        if not self._sender.send_pending(self._outbox):
            self._outbox.keep_files()

    def finish(self, status: str) -> None:
        """Closes the run as FINISHED or FAILED, unless another process opened it. The outbox stays if it is not empty.

        It also stays if the server was asked for the run twice: the next command deletes the one that came late.
        """
        if self._outbox is None or self._ended:
            return
        self._tell(Entry(end="" if self._outbox.opening.joins else status, time=milliseconds()))
        self._ended = True
        if self._outbox.pending or self._outbox.asked_twice:
            self._outbox.close()
        else:
            self._outbox.delete()

    def _tell(self, entry: Entry) -> None:
        if self._outbox is not None and not self._ended:
            self._outbox.add_entry(entry)
            if entry.metrics:
                if time.monotonic() - self._metrics_sent < TOGETHER_SECONDS:
                    return
                self._metrics_sent = time.monotonic()
            self._sender.send_pending(self._outbox)


def _texts(values: Mapping[str, object]) -> dict[str, str]:
    """The values as text for MLflow: without secrets, and with `?` for what UTF-8 cannot hold, as in names of files."""
    return {name: redact(str(value)).encode("utf-8", "replace").decode() for name, value in values.items()}


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

    It joins the run that MLFLOW_RUN_ID names (set by `mlflow run`, or by KFP's MLflow plugin). Otherwise the parent of
    the new run is the one that POSGAP_PARENT_RUN_ID names, or that of the pipeline run whose step it is. If the stage
    fails, a tag says why.
    """
    if not is_tracking():
        _say_untracked()
        yield Run()
        return
    sender = Sender()
    send_left_behind(out, sender)
    run = Run(Outbox.create(place_of(out), _opening(stage)), sender)
    step_of = {PIPELINE_TAG: pipeline_run()} if pipeline_run() else {}
    run.tags({STAGE_TAG: stage, **step_of, **(_spent_on() if step_of else {}), **tags})
    try:
        yield run
    except BaseException as error:
        run.tags({ERROR_TAG: f"{error or type(error).__name__}"[:ERROR_CHARACTERS]})
        run.finish("FAILED")
        raise
    run.finish("FINISHED")


def _spent_on() -> dict[str, object]:
    """Tags of a step: the number of GPUs of its pod, and the price of one for an hour, if known."""
    gpus, price = len([*Path("/dev").glob("nvidia[0-9]*")]), os.environ.get(PRICE_VARIABLE, "")
    return {GPUS_TAG: gpus, **({PRICE_TAG: price} if price else {})} if gpus else {}


def send_left_behind(out: Path, sender: Sender | None = None) -> None:
    """Sends what earlier commands on this output could not, and closes runs that were killed; does nothing if
    nothing is tracked."""
    if is_tracking():
        send_kept(place_of(out), sender or Sender())


def send_kept(place: Path, sender: Sender) -> None:
    """Sends what the outboxes in a folder hold whose processes have ended."""
    for outbox in Outbox.left_behind(place):
        if sender.send_pending(outbox):
            outbox.delete()
            log.info(
                "MLflow has the %s run that an earlier command left behind: %s", outbox.opening.name, outbox.run_id
            )
        else:
            outbox.close()


def _say_untracked() -> None:
    """Says once a day how runs can be tracked."""
    mark = cache_folder() / "said-untracked"
    with suppress(OSError):
        if time.time() - mark.stat().st_mtime < DAY:
            return
    log.info("runs are not tracked in MLflow: %s", HOW_TO_TRACK)
    with suppress(OSError):  # a disk that cannot be written is told once more
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()


def _opening(stage: str) -> Opening:
    tags = {"mlflow.user": user(), "mlflow.source.name": "posgap", "mlflow.source.type": "LOCAL"}
    parent = os.environ.get(PARENT_VARIABLE)
    if parent:
        tags[PARENT_TAG] = parent
    name, experiment_id = experiment()
    return Opening(
        name=stage,
        tags=_texts(tags),
        time=milliseconds(),
        experiment=name,
        experiment_id=experiment_id,
        server=address(),
        joins=os.environ.get("MLFLOW_RUN_ID", ""),
        pipeline_run=pipeline_run(),
    )


def user() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return str(os.getuid())
