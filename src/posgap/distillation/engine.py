"""The training loop of all methods: each step weighs its rows' losses by the objective and updates with AdamW.

Through Accelerate the same loop serves one process, several, and DeepSpeed, depending on how it is launched.
"""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from posgap.distillation.batches import Batch, Collator, Row, chunks, share
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
    """AdamW and the learning rate's course; recipes.py has the values that the paper and the authors' code give.

    The rate rises linearly to `learning_rate` in `warmup_steps` steps, or, if that is below 1, in that share of all
    steps. From there it falls by `schedule` (linear, cosine, constant) to `final_rate` times the peak. Weight decay is
    of matrices alone, not of biases and norms. `micro_batch_size` is the number of prompts that a process reads at
    once; 0 means its whole share of a step.
    """

    learning_rate: float
    schedule: str = "linear"
    warmup_steps: float = 0
    final_rate: float = 0.0
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    micro_batch_size: int = 0

    def rate(self, step: int, steps: int) -> float:
        """The learning rate at `step`, counted from 0, of `steps`, as a share of the peak rate."""
        warmup = math.ceil(self.warmup_steps * steps) if self.warmup_steps < 1 else int(self.warmup_steps)
        if step < warmup:
            return (step + 1) / warmup
        left = (steps - step) / max(steps - warmup, 1)
        fall = {"linear": left, "cosine": (1 - math.cos(math.pi * left)) / 2, "constant": 1.0}[self.schedule]
        return self.final_rate + (1 - self.final_rate) * fall

    def optimizer(self, model: torch.nn.Module) -> torch.optim.AdamW:
        """AdamW over the parameters of `model` that are trained."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        groups: list[dict[str, Any]] = [{"params": trained, "weight_decay": 0.0}]
        if self.weight_decay:
            matrices = [parameter for parameter in trained if parameter.dim() > 1]
            others = [parameter for parameter in trained if parameter.dim() <= 1]
            groups = [{"params": matrices}, {"params": others, "weight_decay": 0.0}]
        betas = self.adam_beta1, self.adam_beta2
        return torch.optim.AdamW(
            groups, lr=self.learning_rate, betas=betas, eps=self.adam_epsilon, weight_decay=self.weight_decay
        )


class NotFinite(PosgapError):
    """The loss or the gradient is not finite. `rows` are those with such a loss, or all of the step's."""

    def __init__(self, message: str, step: int, rows: Sequence[Row], losses: Sequence[float]):
        super().__init__(message)
        self.step, self.rows, self.losses = step, rows, losses


def train(
    student: Student,
    steps: Sequence[Sequence[Row]],
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
    wrapped, optimizer = accelerator.prepare(student, optimization.optimizer(student))
    wrapped.train()
    history = checkpoints.load(accelerator, wrapped, optimizer) if checkpoints else []
    for figures in history:
        on_step(figures)
    loop = _Loop(wrapped, optimizer, objective, collate, optimization, accelerator)
    rest = range(len(history), len(steps))
    with deferred_termination() as termination:
        for step in track(rest, len(rest), "distillation steps"):
            rate = optimization.learning_rate * optimization.rate(step, len(steps))
            figures = loop.step(step + 1, steps[step], rate)
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

    def step(self, number: int, rows: Sequence[Row], rate: float) -> dict[str, float]:
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

    def _everyones(self, losses: list[Tensor], rows: Sequence[Row], number: int) -> Tensor:
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
