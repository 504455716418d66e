"""Keeps training states on disk and in S3, so a killed run can resume, also on other machines.

A checkpoint is a folder `step-<n>` with parameters, optimizer, the random number generators of every process, and the
history so far. The plan of steps and the learning rate are functions of the config and the step, so the step stands for
sampler and scheduler. Parameters and optimizer are written by torch's distributed checkpointing as safetensors. Every
process writes its share, so any other number of processes can resume. `files.json` has the size and sha256 of all
files, and is written when they are on the disk. A checkpoint is complete if each file has its size, and training
resumes from it if each has its sha256. Nodes without a shared disk each have their own processes' files, and need S3 to
put them together.
"""

import functools
import logging
import random
import shutil
import warnings
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from accelerate import Accelerator
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import DeviceMesh

from posgap.distillation import training_state
from posgap.distillation.processes import gather, meet, rank_and_world
from posgap.distillation.training_state import KINDS, State
from posgap.foundation import files
from posgap.foundation.errors import PosgapError, Unreadable, first_line
from posgap.foundation.launch import first_of_its_node
from posgap.storage import manifests
from posgap.storage.folders import ResumableFolder

log = logging.getLogger(__name__)
History = list[dict[str, float]]
FILES = "files.json"


class Checkpoints:
    """The checkpoints of one run in `folder`; the newest two are kept. Every process saves and loads.

    While one is written only the one before it is kept beside it, so that there is never room for more than two.

    Saving copies the state into main memory; it is written while training continues. `wait` ends when it is there; so
    does a block `with checkpoints:`, however the block ends.
    """

    def __init__(self, folder: ResumableFolder | Path):
        self.kept = folder if isinstance(folder, ResumableFolder) else ResumableFolder(folder)
        self.folder = self.kept.folder
        self.writer = ThreadPoolExecutor(1, "checkpoints")
        self.writing: Future[None] | None = None
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)  # said for a single process

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.wait()
        except PosgapError as error:
            if kind is None:
                raise
            log.warning("%s", error)  # the error that ended the block must be reported

    def wait(self) -> None:
        """Waits until the saved state is written; raises `PosgapError` if it could not be."""
        writing = self.writing
        self.writing = None
        if writing:
            writing.result()

    @functools.cached_property
    def _mesh(self) -> DeviceMesh | None:
        """The main memories of all processes, which meet there in a group of their own, beside those that train."""
        if rank_and_world()[1] == 1:
            return None
        return DeviceMesh.from_group(dist.new_group(backend="gloo"), "cpu")

    @property
    def _group(self) -> dist.ProcessGroup | None:
        return self._mesh.get_group() if self._mesh else None

    def latest(self) -> int:
        """The step of the newest checkpoint that is whole on this machine, 0 if there is none."""
        return max(self._here(), default=0)

    def _here(self) -> set[int]:
        return {_step_number(folder.name) for folder in self.folder.glob("step-*") if _is_whole(folder)}

    def save(
        self,
        step: int,
        accelerator: Accelerator,
        model: Any,  # a module, or DeepSpeed's engine
        optimizer: torch.optim.Optimizer,
        history: History,
        best: int = 0,
    ) -> None:
        """Writes the checkpoint of `step`, and keeps the one before it and the one of step `best`.

        A thread writes it. If the previous one could not be written (a full disk), raises `PosgapError`, and the one
        before that stays. If it cannot be uploaded, a warning says so and training continues.
        """
        self.wait()
        state = training_state.copy_state(accelerator, model, optimizer, self._mesh)
        self.writing = self.writer.submit(self._write, step, state, _random_states(), list(history), best)

    def _write(self, step: int, state: State, random_states: dict, history: History, best: int) -> None:
        partial = self.folder / f".partial-{step}"
        complete = self.folder / f"step-{step}"
        rank = rank_and_world()[0]
        group = self._group
        try:
            if first_of_its_node():
                last = max((earlier for earlier in self._here() if earlier != step), default=0)
                for other in self.folder.glob("*"):
                    if other.name not in (f"step-{last}", f"step-{best}"):
                        _delete_folder(other)
            meet(group)
            partial.mkdir(parents=True, exist_ok=True)
            # A file for each kind of tensors, since one that is written is in memory twice.
            index = {name: KINDS.index(name.partition(".")[0]) + 1 for name in state}
            writer = dcp.HuggingFaceStorageWriter(str(partial), index, save_distributed=True)
            dcp.save(state, storage_writer=writer, process_group=group, no_dist=group is None)
            torch.save(random_states, partial / f"random-{rank}.pt")
            if rank == 0:
                files.write_jsonl(partial / "history.jsonl", history)
            meet(group)
            own_files = _share_files(partial, group)[rank]
            for name in own_files:
                files.flush(partial / name)
            recorded = manifests.hash_files(partial, own_files)
        except (OSError, RuntimeError, CheckpointException) as error:
            _delete_folder(partial)
            kept = f"the checkpoint of step {self.latest()} is kept" if self.latest() else "there is no older one"
            raise PosgapError(
                f"{complete}: the checkpoint could not be written ({_first_reason(error)}); {kept}. Make room "
                "and run the same command again"
            ) from None
        everybody_s = gather(recorded, group)
        if first_of_its_node():
            files.write_json(partial / FILES, {name: known for part in everybody_s for name, known in part.items()})
            files.flush(partial)
        meet(group)
        if first_of_its_node():
            _rename_folder(partial, complete)
            files.flush(self.folder, deep=False)
        meet(group)
        self._upload(complete, recorded, best)

    def _upload(self, complete: Path, own_files: Mapping[str, Mapping[str, Any]], best: int) -> None:
        """Uploads this process's share of the files; the list of all goes last, from the first process."""
        if not self.kept.uri:
            return
        (rank, _) = rank_and_world()
        failed = ""
        try:
            if rank == 0:
                self.kept.drop([f"{complete.name}/{FILES}"])
            self.kept.push({complete / name: known["sha256"] for name, known in own_files.items()})
        except PosgapError as error:
            failed = str(error)
        failures = [reason for reason in gather(failed, self._group) if reason]
        if rank:
            return
        try:
            if failures:
                raise PosgapError(failures[0])
            self.kept.push({complete / FILES: files.digest_path(complete / FILES)})
            kept = {_step_number(complete.name), best}
            self.kept.drop([name for name in self.kept.stored_names() if _step_number(name) not in kept])
        except PosgapError as error:
            log.warning("checkpoint %s is on disk only: %s", complete.name, error)

    def _fetch(self) -> int:
        """Returns the step to resume from, on every machine; downloads its checkpoint if S3 has a newer one."""
        names = self.kept.stored_names() if rank_and_world()[0] == 0 else []
        there = max((_step_number(name) for name in gather(names)[0] if name.endswith(f"/{FILES}")), default=0)
        here = max(set.intersection(*gather(self._here())), default=0)
        if there > here:
            log.info("fetching the checkpoint of step %d from %s", there, self.kept.uri)
            if first_of_its_node():
                (self.kept / f"step-{there}").pull()
        elif not here and any(self.folder.glob("step-*")):
            log.warning("%s: no whole checkpoint; without a shared disk `work` must be in S3", self.folder)
        return max(there, here)

    def _sound(self) -> int:
        """Returns the step of the newest checkpoint whose files match their sha256s, 0 if there is none.

        A damaged one is removed: here, and then also in S3 if S3 has no better one.
        """
        removed: set[int] = set()
        while step := self._fetch():
            folder = self.folder / f"step-{step}"
            damaged = self._damaged(folder)
            if not damaged:
                return step
            log.warning("%s: %s is damaged; this checkpoint is skipped", folder, damaged[0])
            if first_of_its_node():
                _delete_folder(folder)
            if step in removed and rank_and_world()[0] == 0:
                self.kept.drop([name for name in self.kept.stored_names() if _step_number(name) == step])
            removed.add(step)
            meet()
        return 0

    def _damaged(self, folder: Path) -> list[str]:
        """Returns the checkpoint's files that do not match their sha256s. Every process reads its share."""
        own_files = _share_files(folder)[rank_and_world()[0]]  # all processes meet here, after the download
        record = manifests.read_record(folder / FILES)
        damaged = []
        for name in own_files:
            if name in record and files.digest_path(folder / name) != record[name]["sha256"]:
                damaged.append(name)
        return list(chain.from_iterable(gather(damaged)))

    def remove(self) -> None:
        """Deletes them all, here and in S3. For one process to call."""
        self.kept.delete()

    def load(self, accelerator: Accelerator, model: Any, optimizer: torch.optim.Optimizer) -> History:
        """Puts the newest checkpoint's state into `model` and `optimizer`; returns its history.

        Returns an empty history, and changes nothing, if there is no checkpoint.
        """
        step = self._sound()
        if not step:
            return []
        log.info("resuming from the checkpoint of step %d in %s", step, self.folder)
        return self._read(step, accelerator, model, optimizer)

    def restore(self, step: int, accelerator: Accelerator, model: Any, optimizer: torch.optim.Optimizer) -> None:
        """Puts the state of this step's checkpoint into `model` and `optimizer`; `PosgapError` if it is damaged."""
        self.wait()
        folder = self.folder / f"step-{step}"
        if not all(gather(_is_whole(folder))):
            if first_of_its_node():
                (self.kept / folder.name).pull()
            meet()
        damaged = self._damaged(folder)
        if damaged:
            raise Unreadable(f"{folder}: {damaged[0]} is damaged; delete {self.folder}, and train again")
        self._read(step, accelerator, model, optimizer)

    def _read(self, step: int, accelerator: Accelerator, model: Any, optimizer: torch.optim.Optimizer) -> History:
        (rank, _) = rank_and_world()
        folder = self.folder / f"step-{step}"
        reader = dcp.HuggingFaceStorageReader(str(folder))
        group = self._group
        fill = functools.partial(dcp.load, storage_reader=reader, process_group=group, no_dist=group is None)
        try:
            training_state.restore_state(accelerator, model, optimizer, self._mesh, fill)
        except CheckpointException as error:
            raise PosgapError(f"{folder}: cannot be resumed from ({_first_reason(error)}); delete it") from None
        # A process that did not exist at the checkpoint continues with its current ones.
        if (states := folder / f"random-{rank}.pt").is_file():
            _set_random_states(torch.load(states, weights_only=True))
        return [row for _, row in files.read_jsonl(folder / "history.jsonl")]


def _step_number(name: str) -> int:
    """The step in `step-<n>`, or in the name of a file below it."""
    return int(name.partition("/")[0].removeprefix("step-"))


def _is_whole(folder: Path) -> bool:
    record = manifests.read_record(folder / FILES)
    sizes = {name: (folder / name).stat().st_size for name in record if (folder / name).is_file()}
    return bool(record) and not manifests.damage({"files": record}, sizes)


def _share_files(folder: Path, group: dist.ProcessGroup | None = None) -> list[list[str]]:
    """The files of a checkpoint that each process reads, hashes and uploads: all of them once."""
    names_by_process = gather(
        sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()), group
    )
    return share_out([[name for name in names if name != FILES] for names in names_by_process])


def share_out(names_by_process: list[list[str]]) -> list[list[str]]:
    """Divides the files that the processes see: each file goes, by turns, to a process that sees it."""
    by_process: list[list[str]] = [[] for _ in names_by_process]
    for turn, name in enumerate(sorted(set().union(*names_by_process))):
        owners = [process for process, names in enumerate(names_by_process) if name in names]
        by_process[owners[turn % len(owners)]].append(name)
    return by_process


def _delete_folder(path: Path) -> None:
    """Deletes a folder that the first process of another node, on the same disk, may be deleting too."""
    shutil.rmtree(path, ignore_errors=True)


def _rename_folder(partial: Path, complete: Path) -> None:
    """Renames a folder that the first process of another node, on the same disk, may be renaming too."""
    try:
        partial.rename(complete)
    except FileNotFoundError:
        if not complete.is_dir():
            raise


def _first_reason(error: BaseException) -> str:
    """Returns the first error in a line; torch has them by process."""
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    return first_line(error)


def _random_states() -> dict:
    state: Any = np.random.get_state()
    kind, keys, *rest = state
    return {
        "python": random.getstate(),
        "numpy": (kind, keys.tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all(),
    }


def _set_random_states(states: dict) -> None:
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    torch.cuda.set_rng_state_all(states["cuda"])
