"""Training states on disk and in S3, so that a run that is killed goes on where it was, on other machines too.

A checkpoint is a folder `step-<n>` with parameters, optimizer and random number generators of every
process, and the history so far; the plan of steps and the learning rate are functions of the config
and the step, so the step stands for sampler and scheduler. `files.json` names all its files, and is
written when they are there: a checkpoint is complete where it names no file that is missing. Nodes
without a shared disk have each their own processes' files, and need S3 to put them together.
"""

import logging
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator

from posgap import files
from posgap.distillation.processes import first_of_its_node, gather, meet, rank_and_world
from posgap.errors import PosgapError
from posgap.storage.folders import Kept

log = logging.getLogger(__name__)
History = list[dict[str, float]]
FILES = "files.json"


class Checkpoints:
    """The checkpoints of one run in `folder`; the newest is kept. Every process saves and loads."""

    def __init__(self, folder: Kept | Path):
        self.kept = folder if isinstance(folder, Kept) else Kept(folder)
        self.folder = self.kept.folder

    def latest(self) -> int:
        """The step of the newest checkpoint that is complete on this machine, 0 where there is none."""
        return max(self._here(), default=0)

    def _here(self) -> set[int]:
        return {_step(folder.name) for folder in self.folder.glob("step-*") if _whole(folder)}

    def save(
        self,
        step: int,
        accelerator: Accelerator,
        model: Any,  # a module, or DeepSpeed's engine
        optimizer: torch.optim.Optimizer,
        history: History,
    ) -> None:
        """Writes the checkpoint of `step` and deletes older ones.

        Where it cannot be written (a full disk), the older one stays and `PosgapError` is raised.
        Where it cannot be uploaded, a warning says so and training goes on.
        """
        partial, complete = self.folder / f".partial-{step}", self.folder / f"step-{step}"
        rank, _ = rank_and_world()
        try:
            if first_of_its_node():
                _remove(partial)
                # It cannot be complete: a complete checkpoint would have skipped this step.
                _remove(complete)
            meet()
            partial.mkdir(parents=True, exist_ok=True)
            if _is_deepspeed(accelerator):
                (partial / "engine").mkdir(exist_ok=True)
                model.save_checkpoint(str(partial), tag="engine")
            elif rank == 0:
                parameters = accelerator.unwrap_model(model).state_dict()
                torch.save({"model": parameters, "optimizer": optimizer.state_dict()}, partial / "training.pt")
            torch.save(_random_states(), partial / f"random-{rank}.pt")
            if rank == 0:
                files.write_jsonl(partial / "history.jsonl", history)
        except (OSError, RuntimeError) as error:
            _remove(partial)
            kept = f"the checkpoint of step {self.latest()} is kept" if self.latest() else "there is no older one"
            raise PosgapError(
                f"{complete}: the checkpoint could not be written ({str(error).splitlines()[0]}); {kept}. Make room "
                "and run the same command again"
            ) from None
        meet()
        seen = gather(sorted(path.relative_to(partial).as_posix() for path in partial.rglob("*") if path.is_file()))
        if first_of_its_node():
            files.write_json(partial / FILES, sorted(set().union(*seen)))
        meet()
        if first_of_its_node():
            _rename(partial, complete)
        meet()
        if first_of_its_node():
            for other in self.folder.iterdir():
                if other != complete:
                    _remove(other)
        self._upload(complete, seen)
        meet()

    def _upload(self, complete: Path, seen: list[list[str]]) -> None:
        """Each file by one of the processes that `seen` has it, the list of all by the first, last."""
        if not self.kept.uri:
            return
        (rank, _), failed = rank_and_world(), ""
        try:
            if rank == 0:
                self.kept.drop([f"{complete.name}/{FILES}"])
            self.kept.push(complete / name for name in _share(seen, rank))
        except PosgapError as error:
            failed = str(error)
        failures = [reason for reason in gather(failed) if reason]
        if rank:
            return
        try:
            if failures:
                raise PosgapError(failures[0])
            self.kept.push([complete / FILES])
            self.kept.drop([name for name in self.kept.names() if not name.startswith(f"{complete.name}/")])
        except PosgapError as error:
            log.warning("checkpoint %s is on disk only: %s", complete.name, error)

    def _fetch(self) -> int:
        """The step to go on from, on every machine; brings its checkpoint from S3 where that has a newer one."""
        (rank, _), names = rank_and_world(), set()
        if rank == 0:
            names = set(self.kept.names())
        there = max((_step(name) for name in gather(names)[0] if name.endswith(f"/{FILES}")), default=0)
        here = max(set.intersection(*gather(self._here())), default=0)
        if there > here:
            log.info("fetching the checkpoint of step %d from %s", there, self.kept.uri)
            if first_of_its_node():
                (self.kept / f"step-{there}").pull()
            meet()
        elif not here and any(self.folder.glob("step-*")):
            log.warning("%s: no whole checkpoint; without a shared disk `work` must be in S3", self.folder)
        return max(there, here)

    def remove(self) -> None:
        """Deletes them all, here and in S3. For one process to call."""
        self.kept.remove()

    def load(self, accelerator: Accelerator, model: Any, optimizer: torch.optim.Optimizer) -> History:
        """Puts the newest checkpoint's state into `model` and `optimizer`; returns its history.

        Returns an empty history, and changes nothing, where there is no checkpoint.
        """
        step, (rank, _) = self._fetch(), rank_and_world()
        if not step:
            return []
        folder = self.folder / f"step-{step}"
        log.info("going on from the checkpoint of step %d in %s", step, self.folder)
        if _is_deepspeed(accelerator):
            model.load_checkpoint(str(folder), tag="engine")
        else:
            state = torch.load(folder / "training.pt", map_location="cpu", weights_only=True)
            accelerator.unwrap_model(model).load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        _set_random_states(torch.load(folder / f"random-{rank}.pt", weights_only=True))
        return [row for _, row in files.read_jsonl(folder / "history.jsonl")]


def _step(name: str) -> int:
    """The step in `step-<n>`, or in the name of a file below it."""
    return int(name.partition("/")[0].removeprefix("step-"))


def _whole(folder: Path) -> bool:
    return (folder / FILES).is_file() and all((folder / name).is_file() for name in files.read_json(folder / FILES))


def _share(seen: list[list[str]], rank: int) -> list[str]:
    """The files that this process uploads, of those that each process sees: all of them once, by turns."""
    mine = []
    for turn, name in enumerate(sorted(set().union(*seen))):
        owners = [other for other, names in enumerate(seen) if name in names]
        if owners[turn % len(owners)] == rank:
            mine.append(name)
    return mine


def _remove(path: Path) -> None:
    """Deletes a folder that the first process of another node, on the same disk, may be deleting too."""
    shutil.rmtree(path, ignore_errors=True)


def _rename(partial: Path, complete: Path) -> None:
    """Likewise renames it."""
    try:
        partial.rename(complete)
    except FileNotFoundError:
        if not complete.is_dir():
            raise


def _is_deepspeed(accelerator: Accelerator) -> bool:
    return accelerator.state.deepspeed_plugin is not None


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
