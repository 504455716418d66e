"""The one training loop: steps of rows in, an objective's loss, AdamW, over Accelerate.

Accelerate makes the same loop serve one process, several, and DeepSpeed, by how it is launched.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedModel

from posgap.distillation.batches import Batch, Collator, Draw, share
from posgap.distillation.processes import rank_and_world
from posgap.errors import PosgapError
from posgap.progress import track

log = logging.getLogger(__name__)


class Objective(Protocol):
    """What a method contributes: the rows of a step and the loss of their logits."""

    def rows(self, draws: Sequence[Draw]) -> list[tuple[int, int]]: ...

    def loss(self, logits: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]: ...


@dataclass(frozen=True)
class Optimization:
    """How parameters move: AdamW without decay, linear warm-up, then linear decay to zero."""

    learning_rate: float
    warmup_steps: int
    max_grad_norm: float

    def rate(self, step: int, steps: int) -> float:
        """Share of the peak learning rate at `step`, counted from 0, of `steps`."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        return (steps - step) / max(steps - self.warmup_steps, 1)


def train(
    model: PreTrainedModel,
    steps: Sequence[Sequence[Draw]],
    objective: Objective,
    collate: Collator,
    optimization: Optimization,
    accelerator: Accelerator,
    on_step: Callable[[int, dict[str, float]], None],
) -> torch.nn.Module:
    """Trains `model` in place; `on_step(step, figures)` is called after every step, from 1.

    Returns the model as Accelerate wrapped it, which is what knows where its parameters are.

    Logits are computed where the response is and nowhere else. Raises `PosgapError`, before the
    update, where the loss is not finite.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=optimization.learning_rate, weight_decay=0.0)
    wrapped, optimizer = accelerator.prepare(model, optimizer)
    wrapped.train()
    rank, world = rank_and_world()
    if (fewest := min(map(len, steps))) < world:
        raise PosgapError(f"{world} processes cannot share a step of {fewest} examples; raise batch_size")
    for step, draws in enumerate(track(steps, len(steps), "distillation steps")):
        for group in optimizer.param_groups:
            group["lr"] = optimization.learning_rate * optimization.rate(step, len(steps))
        batch = collate(objective.rows(share(draws, rank, world))).to(accelerator.device)
        logits = wrapped(**batch.model_inputs(), use_cache=False, logits_to_keep=batch.window).logits
        loss, figures = objective.loss(logits, batch)
        if not math.isfinite(figures["loss"]):
            raise PosgapError(f"step {step + 1}: the loss is {figures['loss']}; lower the learning rate")
        # Processes average their gradients; the objective's parts are to be summed.
        accelerator.backward(loss * world)
        norm = accelerator.clip_grad_norm_(wrapped.parameters(), optimization.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        on_step(
            step + 1, {**figures, "grad_norm": float(norm or 0.0), "learning_rate": optimizer.param_groups[0]["lr"]}
        )
    accelerator.wait_for_everyone()
    return wrapped
