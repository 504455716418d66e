"""The outbox of a run: everything it logs, kept beside the output until MLflow has it.

Each run has a file of JSON lines. Everything is written there before it is sent, and the file is deleted when the run
is closed on the server. If no server answered or the process was killed, the next command on that output, or `posgap
sync`, sends the rest. Sending twice changes nothing: a tag identifies a run, its time and step a metric, and its name
everything else.
"""

import fcntl
import json
import logging
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from posgap.foundation import files
from posgap.foundation.retries import RetryPolicy
from posgap.storage.datasets import Dataset
from posgap.tracking.parents import PARENT_TAG, parent_of
from posgap.tracking.server import (
    BYTES_PER_SECOND,
    RequestRefused,
    call_mlflow,
    experiment_id,
    shown_as_training,
    upload_file,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput

log = logging.getLogger(__name__)
KEY_TAG = "posgap.run_key"  # by which a run is found on the server
PROJECT_TAG = "mlflow.project.entryPoint"  # of the run that `mlflow run` opens
_MADE_UP = re.compile(r"[a-z]+-[a-z]+-\d+")  # the name that MLflow gives a run where nobody names one
KILLED = "KILLED"
METRICS_AT_ONCE = 1000  # that MLflow takes
_ANY = f"{files.HOME_PREFIX}*/outbox"
YOUNG = 60.0  # seconds for which an empty file may be one that is just begun


class Opening(BaseModel):
    """The opening of a run: as a new one in the experiment of this name or id, or by joining the run `joins`, which
    another process closes. `time` is in milliseconds; `server` is the address that the run is for, without a password.
    The parent of a new run whose tags name none is the run of the KFP run `pipeline_run`, if it is a step of one."""

    model_config = ConfigDict(extra="forbid")

    name: str
    tags: dict[str, str]
    time: int
    experiment: str = ""
    experiment_id: str = ""
    server: str = ""
    joins: str = ""
    pipeline_run: str = ""


class Entry(BaseModel):
    """One thing that a run logs; or, in `id`, the run's id that MLflow gave it.

    Metrics are name, value, time and step. With a `model_id` they are logged for that model too, with the data
    `measured_on`. `dataset` is data that the run used. `file` is the name of a copy below the outbox's folder, and
    `folder` its place among the run's artifacts. `end` is the status to close the run with; empty if another process
    closes it.
    """

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="constants")

    open: Opening | None = None
    id: str = ""
    params: dict[str, str] = Field(default_factory=dict)
    metrics: list[tuple[str, float, int, int]] = Field(default_factory=list)
    model_id: str = ""
    measured_on: Dataset | None = None
    tags: dict[str, str] = Field(default_factory=dict)
    dataset: Dataset | None = None
    file: str = ""
    folder: str = ""
    end: str | None = None
    time: int = 0


@dataclass(frozen=True)
class PendingUpload:
    """A file to upload from where it was made, to a folder of the run's artifacts."""

    path: Path
    folder: str


def place_of(out: Path) -> Path:
    """Returns the folder that keeps the runs that made `out` until MLflow has them."""
    return files.workspace(out) / "outbox"


def places_below(folder: Path) -> Iterator[Path]:
    """The places of all outputs below a folder that have runs which MLflow does not have yet."""
    return (place.absolute() for place in folder.rglob(_ANY) if place.is_dir())


def milliseconds() -> int:
    """The time, as MLflow counts it."""
    return int(time.time() * 1000)


class Outbox:
    """The outbox of one run; `pending` is what MLflow does not have yet, in order.

    `run_id` is empty until MLflow has the run. The file is locked while the process that writes it lives. Copies of
    files that could not be uploaded are beside it, in a folder named by the run's key.
    """

    def __init__(self, file: Path, opened: IO[str], opening: Opening, entries: list[Entry]):
        self.file, self.opening = file, opening
        self._opened = opened
        self.run_id = next((entry.id for entry in reversed(entries) if entry.id), "")
        self.pending: list[Entry | PendingUpload] = [entry for entry in entries if not entry.id]
        self._may_be_there = self._may_be_twice = self._left_behind = bool(entries)
        self.asked_twice = False  # by this process, which may end before the first answer comes

    @property
    def key(self) -> str:
        return self.file.stem

    @classmethod
    def create(cls, place: Path, opening: Opening) -> "Outbox":
        """The outbox of a new run."""
        place.mkdir(parents=True, exist_ok=True)
        file = place / f"{uuid.uuid4().hex}.jsonl"
        opened = open(file, "x", encoding="utf-8")  # noqa: SIM115 (until the process ends)
        with suppress(OSError):  # a disk without locks
            fcntl.flock(opened, fcntl.LOCK_EX)
        outbox = cls(file, opened, opening, [])
        outbox.add_entry(Entry(open=opening))
        return outbox

    @classmethod
    def left_behind(cls, place: Path) -> Iterator["Outbox"]:
        """The outboxes in a folder whose processes have ended. A run that was not closed will be closed as KILLED."""
        for file in sorted(place.glob("*.jsonl")):
            opened = _of_the_dead(file)
            if opened is None:
                continue
            changed = file.stat().st_mtime
            entries = _entries(opened)
            if not entries or entries[0].open is None:
                opened.close()
                if time.time() - changed > YOUNG:
                    file.unlink(missing_ok=True)
                continue
            outbox = cls(file, opened, entries[0].open, entries)
            # What follows the end is of a command that sent the rest, and was itself disturbed.
            if all(entry.end is None for entry in entries):
                outbox.add_entry(Entry(end="" if outbox.opening.joins else KILLED, time=int(changed * 1000)))
            yield outbox

    def add_entry(self, entry: Entry) -> None:
        """Adds an entry."""
        self._append(entry)
        self.pending.append(entry)

    def add_upload(self, path: Path, folder: str) -> None:
        """Adds a file to upload. It must stay where it is until it is sent or `keep_files` has copied it."""
        self.pending.append(PendingUpload(path, folder))

    def keep_files(self) -> None:
        """Copies the files that are still to be uploaded, so that the originals may be deleted."""
        for number, entry in enumerate(self.pending):
            if isinstance(entry, PendingUpload):
                name = f"{uuid.uuid4().hex}/{entry.path.name}"
                files.link(entry.path, self._copies / name)
                self.pending[number] = kept = Entry(file=name, folder=entry.folder)
                self._append(kept)

    def send_next(self, retry_policy: RetryPolicy, seconds: float) -> None:
        """Sends the next entry. A try may take so many seconds, and more for an upload.

        Raises `NoAnswer` or `RequestRefused`. An entry that MLflow will never take is left out, with a warning.
        """
        size, entry = self._next()
        try:
            self._tell(entry, retry_policy, seconds)
        except RequestRefused as error:
            opens = isinstance(entry, Entry) and entry.open
            if opens or not error.is_wrong:
                raise
            log.warning("%s; left out", error)
        del self.pending[:size]

    def delete(self) -> None:
        """Deletes it, as MLflow has everything."""
        files.delete_path(self._copies)
        self.file.unlink(missing_ok=True)
        self._opened.close()
        with suppress(OSError):  # there are others
            self.file.parent.rmdir()
            self.file.parent.parent.rmdir()

    def close(self) -> None:
        """Leaves it to a later command."""
        self._opened.close()

    @property
    def _copies(self) -> Path:
        return self.file.with_suffix("")

    def _append(self, entry: Entry) -> None:
        self._opened.write(entry.model_dump_json(exclude_defaults=True) + "\n")
        self._opened.flush()

    def _next(self) -> tuple[int, Entry | PendingUpload]:
        """The next entry to send, and how many pending ones it stands for: metrics are sent together."""
        together: Entry | None = None
        size = 0
        for entry in self.pending:
            if isinstance(entry, PendingUpload) or not entry.metrics:
                break
            metrics = (together.metrics if together else []) + entry.metrics
            if len(metrics) > METRICS_AT_ONCE or (together and together.model_id != entry.model_id):
                break
            together, size = entry.model_copy(update={"metrics": metrics}), size + 1
        return (size, together) if together else (1, self.pending[0])

    def _tell(self, entry: Entry | PendingUpload, retry_policy: RetryPolicy, seconds: float) -> None:
        from mlflow.entities import Metric, Param, RunTag

        if isinstance(entry, PendingUpload) or entry.file:
            path = entry.path if isinstance(entry, PendingUpload) else self._copy_of(entry.file)
            more = path.stat().st_size / BYTES_PER_SECOND
            retry_policy = replace(retry_policy, seconds=retry_policy.seconds + more)
            call_mlflow(
                lambda client: upload_file(client, self.run_id, path, entry.folder), retry_policy, seconds + more
            )
            return

        if entry.open:
            self.run_id = call_mlflow(self._open, retry_policy, seconds)
            self._append(Entry(id=self.run_id))
            return

        def tell(client: "MlflowClient") -> None:
            if entry.params:
                there = client.get_run(self.run_id).data.params
                params = [Param(name, value) for name, value in entry.params.items() if name not in there]
                client.log_batch(self.run_id, params=params)
            if entry.metrics:
                data = entry.measured_on
                name, digest = (data.name, data.digest) if data else (None, None)
                of_model = (entry.model_id or None, name, digest)
                client.log_batch(self.run_id, metrics=[Metric(*metric, *of_model) for metric in entry.metrics])
            if entry.tags:
                client.log_batch(self.run_id, tags=[RunTag(name, value) for name, value in entry.tags.items()])
            if entry.dataset:
                client.log_inputs(self.run_id, [_as_input(entry.dataset)])
            if entry.end:
                client.set_terminated(self.run_id, entry.end, entry.time)
                self._delete_twins(client)

        call_mlflow(tell, retry_policy, seconds)

    def _open(self, client: "MlflowClient") -> str:
        """The run's id: of the joined run, of one that exists already, or of a new one."""
        from mlflow.exceptions import MlflowException

        if self.opening.joins:
            joined = client.get_run(self.opening.joins)
            shown_as_training(client, joined.info.experiment_id)
            if PROJECT_TAG in joined.data.tags and _MADE_UP.fullmatch(joined.info.run_name or ""):
                client.update_run(joined.info.run_id, name=self.opening.name)
            return joined.info.run_id
        if self.run_id:
            try:
                return client.get_run(self.run_id).info.run_id
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise  # else it was made on another server
        if self._may_be_there:
            self._may_be_twice = True
            self.asked_twice |= not self._left_behind
            there = self._find_runs(client)
            if there:
                return there[0]
        self._may_be_there = True
        tags, experiment = self.opening.tags, self._experiment(client)
        shown_as_training(client, experiment)
        pipeline_run = self.opening.pipeline_run
        if pipeline_run and PARENT_TAG not in tags:
            tags = tags | {PARENT_TAG: parent_of(client, experiment, pipeline_run, tags)}
        return client.create_run(
            experiment, self.opening.time, tags | {KEY_TAG: self.key}, self.opening.name
        ).info.run_id

    def _find_runs(self, client: "MlflowClient") -> list[str]:
        """The ids of the runs of this key."""
        there = client.search_runs([self._experiment(client)], f"tags.`{KEY_TAG}` = '{self.key}'")
        return [run.info.run_id for run in there]

    def _experiment(self, client: "MlflowClient") -> str:
        return experiment_id(client, self.opening.experiment, self.opening.experiment_id)

    def _delete_twins(self, client: "MlflowClient") -> None:
        """Deletes a second run: a server that was asked twice may have made the first one late."""
        if self._may_be_twice and not self.opening.joins:
            for run_id in set(self._find_runs(client)) - {self.run_id}:
                client.delete_run(run_id)

    def _copy_of(self, name: str) -> Path:
        path = (self._copies / name).resolve()
        if not (path.is_relative_to(self._copies.resolve()) and path.is_file()):
            raise RequestRefused(
                f"{self.file}: names a file {name}, which is not kept with it", "INVALID_PARAMETER_VALUE"
            )
        return path


def _as_input(dataset: Dataset) -> "DatasetInput":
    """The dataset as MLflow's entity, by which `mlflow.data.get_source` finds the data."""
    from mlflow.entities import Dataset as Entity
    from mlflow.entities import DatasetInput, InputTag

    kind = "s3" if dataset.source.startswith("s3://") else "local"
    entity = Entity(dataset.name, dataset.digest, kind, json.dumps({"uri": dataset.source}))
    return DatasetInput(entity, [InputTag("mlflow.data.context", dataset.context)])


def _of_the_dead(file: Path) -> IO[str] | None:
    """The file, opened and locked; None where its process lives, or another command has just sent it."""
    try:
        opened = open(file, "r+", encoding="utf-8")  # noqa: SIM115 (until it is sent)
    except OSError:
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        opened.close()
        return None
    return opened


def _entries(opened: IO[str]) -> list[Entry]:
    """The entries of a file, up to one that a killed process left half-written: that is cut off, so that what is
    written next does not go on from it."""
    entries: list[Entry] = []
    whole, ends = 0, "\n"
    with suppress(ValidationError, UnicodeDecodeError):
        while line := opened.readline():
            entries.append(Entry.model_validate_json(line))
            whole, ends = opened.tell(), line[-1]
    if entries:
        opened.seek(whole)
        opened.truncate()
        opened.write("\n" if ends != "\n" else "")
    return entries
