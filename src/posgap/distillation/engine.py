"""The training loop of all methods: each step weighs its rows' losses by the objective and updates with AdamW.

Through Accelerate the same loop serves one process, several, and DeepSpeed, depending on how it is launched.
"""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from accelerate import Accelerator
from torch import Tensor

from posgap.distillation.batches import Batch, Collator, Draw, Row, chunks, share
from posgap.distillation.checkpoints import Checkpoints, History
from posgap.distillation.objectives import Objective
from posgap.distillation.processes import gather, rank_and_world
from posgap.distillation.student import Student
from posgap.errors import PosgapError, Stopped
from posgap.interruption import deferred_termination
from posgap.progress import track

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Optimization:
    """The optimizer: AdamW without weight decay, with linear warm-up and then linear decay of the rate to zero.

    `micro_batch_size` is the number of prompts that a process reads at once; 0 means its whole share of a step.
    """

    learning_rate: float
    warmup_steps: int = 0
    max_grad_norm: float = 1.0
    micro_batch_size: int = 0

    def rate(self, step: int, steps: int) -> float:
        """The learning rate at `step`, counted from 0, of `steps`, as a share of the peak rate."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        return (steps - step) / max(steps - self.warmup_steps, 1)


class NotFinite(PosgapError):
    """The loss or the gradient is not finite. `rows` are those with such a loss, or all of the step's."""

    def __init__(self, message: str, step: int, rows: Sequence[Row], losses: Sequence[float]):
        super().__init__(message)
        self.step, self.rows, self.losses = step, rows, losses


def train(
    student: Student,
    steps: Sequence[Sequence[Draw]],
    objective: Objective,
    collate: Collator,
    optimization: Optimization,
    accelerator: Accelerator,
    checkpoints: Checkpoints | None = None,
    save_steps: int = 0,
    on_step: Callable[[dict[str, float]], None] = lambda figures: None,
) -> tuple[torch.nn.Module, History]:
    """Trains `student` in place; returns it as wrapped by Accelerate, and the figures of every step.

    If there is a checkpoint, training goes on from it. `on_step(figures)` is called with each step's figures,
    those of the checkpoint's steps included. Checkpoints are written every `save_steps` steps, and at SIGTERM.

    Raises `NotFinite` before the update, and `Stopped` after SIGTERM, when the checkpoint is written.
    """
    trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=optimization.learning_rate, weight_decay=0.0)
    wrapped, optimizer = accelerator.prepare(student, optimizer)
    wrapped.train()
    history = checkpoints.load(accelerator, wrapped, optimizer) if checkpoints else []
    for figures in history:
        on_step(figures)
    loop = _Loop(wrapped, optimizer, objective, collate, optimization, accelerator)
    rest = range(len(history), len(steps))
    with deferred_termination() as termination:
        for step in track(rest, len(rest), "distillation steps"):
            rate = optimization.learning_rate * optimization.rate(step, len(steps))
            figures = loop.step(step + 1, objective.rows(steps[step]), rate)
            history.append({"step": step + 1, **figures, "learning_rate": rate})
            on_step(history[-1])
            stopping = any(gather(termination.requested))
            due = save_steps and (step + 1) % save_steps == 0 and step + 1 < len(steps)
            if checkpoints and (stopping or due):
                checkpoints.save(step + 1, accelerator, wrapped, optimizer, history)
            if stopping:
                raise Stopped(f"stopped by SIGTERM after step {step + 1} of {len(steps)}")
    return wrapped, history


class _Loop:
    """Computes optimizer steps, each in micro-batches of the configured size."""

    def __init__(self, model, optimizer, objective, collate, optimization: Optimization, accelerator: Accelerator):
        self.model, self.optimizer, self.objective, self.collate = model, optimizer, objective, collate
        self.optimization, self.accelerator = optimization, accelerator
        self.rank, self.world = rank_and_world()

    def step(self, number: int, rows: list[Row], rate: float) -> dict[str, float]:
        """Makes one update from the global batch `rows` and returns its figures."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        own_rows = share(rows, self.rank, self.world)
        batches = [
            self.collate(part).to(self.accelerator.device)
            for part in chunks(own_rows, self.optimization.micro_batch_size or len(own_rows))
        ]
        if not self.objective.weighs_by_loss:
            weights = self.objective.weights(rows, torch.zeros(len(rows), device=self.accelerator.device))
        elif len(batches) > 1:
            # A row's weight depends on the losses of all rows, so these are computed first, without gradients.
            with torch.no_grad():
                losses = [self.model(batch) for batch in batches]
            weights = self.objective.weights(rows, self._everyones(losses, rows, number))
        losses, start = [], 0
        for batch in batches:
            last = batch is batches[-1]
            row_losses = self.model(batch)
            losses.append(row_losses.detach())
            if last:
                everyones = self._everyones(losses, rows, number)
                if self.objective.weighs_by_loss and len(batches) == 1:
                    weights = self.objective.weights(rows, everyones)
            own = self._own(weights, start, len(batch.rows))
            self._backward((own * row_losses).sum(), batch, last)
            start += len(batch.rows)
        norm = float(self.accelerator.clip_grad_norm_(self.model.parameters(), self.optimization.max_grad_norm) or 0.0)
        if not math.isfinite(norm):
            raise NotFinite(
                f"step {number}: the gradient is not finite; lower learning_rate", number, rows, everyones.tolist()
            )
        self.optimizer.step()
        self.optimizer.zero_grad()
        loss = float((weights * everyones).sum())
        return {"loss": loss, **self.objective.figures(rows, everyones), "grad_norm": norm}

    def _backward(self, loss: Tensor, batch: Batch, last: bool) -> None:
        self.accelerator.sync_gradients = last
        with nullcontext() if last else self.accelerator.no_sync(self.model):
            # Gradients are averaged over processes, but the rows' weighted losses must be summed: hence the factor.
            self.accelerator.backward(loss * self.world)

    def _own(self, weights: Tensor, start: int, count: int) -> Tensor:
        """The weights of `count` of this process's rows from `start` on; rows that fill up its share weigh nothing."""
        own = weights[self.rank :: self.world][start : start + count]
        return torch.nn.functional.pad(own, (0, count - len(own)))

    def _everyones(self, losses: list[Tensor], rows: list[Row], number: int) -> Tensor:
        """The losses `[N]` of all rows of the global batch, in their order, on every process."""
        own_losses = torch.cat(losses).tolist()
        everyones = torch.empty(len(rows), device=self.accelerator.device)
        for rank, theirs in enumerate(gather(own_losses)):
            target = everyones[rank :: self.world]
            target.copy_(torch.tensor(theirs[: len(target)]))
        if not everyones.isfinite().all():
            bad = (~everyones.isfinite()).nonzero().flatten().tolist()
            raise NotFinite(
                f"step {number}: the loss of {len(bad)} of {len(rows)} prompts is not finite; lower learning_rate, or "
                "look at those prompts",
                number,
                [rows[i] for i in bad],
                everyones[bad].tolist(),
            )
        return everyones
