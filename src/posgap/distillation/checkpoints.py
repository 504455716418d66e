"""Training states on disk, so that a run that is killed goes on where it was.

A checkpoint is a folder `step-<n>`, complete as soon as it has that name. It holds parameters,
optimizer and random number generators, and the history so far; the plan of steps and the learning
rate are functions of the config and the step, so the step stands for sampler and scheduler.
"""

import logging
import random
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator

from posgap import files
from posgap.distillation.processes import meet, rank_and_world
from posgap.errors import PosgapError

log = logging.getLogger(__name__)
History = list[dict[str, float]]


class Checkpoints:
    """The checkpoints of one run in `folder`; the newest is kept."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)

    def latest(self) -> int:
        """The step of the newest complete checkpoint, 0 where there is none."""
        return max((int(path.name.removeprefix("step-")) for path in self.folder.glob("step-*")), default=0)

    def save(
        self,
        step: int,
        accelerator: Accelerator,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        history: History,
    ) -> None:
        """Writes the checkpoint of `step` and deletes older ones. Every process calls it.

        Where it cannot be written (a full disk), the older one stays and `PosgapError` is raised.
        """
        partial, complete = self.folder / f".partial-{step}", self.folder / f"step-{step}"
        rank, _ = rank_and_world()
        try:
            if rank == 0:
                files.remove(partial)
                partial.mkdir(parents=True)
            meet()
            if _is_deepspeed(accelerator):
                model.save_checkpoint(str(partial), tag="engine")
            elif rank == 0:
                parameters = accelerator.unwrap_model(model).state_dict()
                torch.save({"model": parameters, "optimizer": optimizer.state_dict()}, partial / "training.pt")
            torch.save(_random_states(), partial / f"random-{rank}.pt")
            if rank == 0:
                files.write_jsonl(partial / "history.jsonl", history)
        except (OSError, RuntimeError) as error:
            files.remove(partial)
            kept = f"the checkpoint of step {self.latest()} is kept" if self.latest() else "there is no older one"
            raise PosgapError(
                f"{complete}: the checkpoint could not be written ({str(error).splitlines()[0]}); {kept}. Make room "
                "and run the same command again"
            ) from None
        meet()
        if rank == 0:
            files.replace(partial, complete)
            for other in self.folder.iterdir():
                if other != complete:
                    files.remove(other)
        meet()

    def load(self, accelerator: Accelerator, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> History:
        """Puts the newest checkpoint's state into `model` and `optimizer`; returns its history.

        Returns an empty history, and changes nothing, where there is no checkpoint.
        """
        step, (rank, _) = self.latest(), rank_and_world()
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


def _is_deepspeed(accelerator: Accelerator) -> bool:
    return accelerator.state.deepspeed_plugin is not None


def _random_states() -> dict:
    kind, keys, *rest = np.random.get_state()
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
