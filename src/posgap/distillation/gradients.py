"""The gradient of a step: accumulated over its micro-batches, and applied."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor

from posgap.distillation.processes import by_deepspeed, rank_and_world

TINY = 1e-12


class Gradient:
    """The gradient of a step, summed over micro-batches and processes.

    The accumulated gradient can be multiplied by a factor later, as `scale` says: the factors are kept as a number, and
    the gradient itself is multiplied once, before it is clipped.
    """

    def __init__(self, accelerator: Accelerator, model: Any, optimizer: torch.optim.Optimizer, max_norm: float):
        self.accelerator = accelerator
        self.model = model
        self.optimizer = optimizer
        self.max_norm = max_norm
        self.by_deepspeed = by_deepspeed(accelerator)  # then each pass adds up the processes' gradients
        self.factor: Tensor | float = 1.0  # the gradient so far is the accumulated one, times this
        self.least_factor: Tensor | float = 1.0
        self.is_scaled = True
        self.reads_factors = not torch.cuda.is_available()  # else the host would wait for the GPU

    @property
    def can_be_scaled(self) -> bool:
        """Whether `scale` works: under DeepSpeed it needs an optimizer of ZeRO, which divides by a loss scale."""
        return self.is_scaled and (not self.by_deepspeed or hasattr(self._zero, "loss_scale"))

    def disable_scaling_if_underflowed(self) -> bool:
        """Whether the last gradient may not have been finite because factors were small, and none is scaled from now
        on. So it is once at most."""
        gives_up = self.is_scaled and bool(self.least_factor < 1e-6)
        self.is_scaled = self.is_scaled and not gives_up
        return gives_up

    @contextmanager
    def of_this_process(self) -> Iterator[None]:
        """Returns a block in which each process accumulates gradients for itself, except under DeepSpeed."""
        with nullcontext() if self.by_deepspeed else self.accelerator.no_sync(self.model):
            yield

    def scale(self, factor: Tensor | float) -> None:
        """Multiplies what has been accumulated in this step. The host does not wait for a factor on a GPU."""
        self.factor = self.factor * factor
        self.least_factor = _lesser(self.factor, self.least_factor)
        if self.by_deepspeed:
            return
        # A tiny factor is applied at once, before the next loss, which is divided by it, overflows.
        if self.reads_factors or not isinstance(self.factor, Tensor):
            if self.factor < TINY:
                self._multiply()
        else:
            is_tiny = self.factor < TINY
            self.factor, rest = torch.where(is_tiny, self.factor, 1.0), torch.where(is_tiny, 1.0, self.factor)
            self._multiply()
            self.factor = rest

    def accumulate(self, loss: Tensor, last: bool) -> None:
        """Adds the gradient of `loss`, this process's share of the step's. After the `last` one DeepSpeed updates."""
        if not self.by_deepspeed:
            self.accelerator.backward(loss / self.factor)
            return
        if last and self.factor != 1:  # under DeepSpeed the host waits for losses anyway
            # The gradient is divided by the loss scale before it is clipped, and the loss multiplied by it.
            self._zero.loss_scale = 1 / float(self.factor)
        else:
            loss = loss / self.factor
        self.accelerator.sync_gradients = last
        # Gradients are averaged over processes, but the shares of the loss must be summed: hence the factor.
        self.accelerator.backward(loss * rank_and_world()[1])

    def update(self) -> float:
        """Updates the parameters and returns the norm that the gradient had before it was clipped.

        If that is not finite, nothing is updated, except under DeepSpeed.
        """
        if not self.by_deepspeed:
            if rank_and_world()[1] > 1:  # once a step, when no process can run out of memory in a pass any more
                for parameter in self.model.parameters():
                    if parameter.requires_grad:
                        if parameter.grad is None:
                            parameter.grad = torch.zeros_like(parameter)
                        dist.all_reduce(parameter.grad)
            self._multiply()
        clipped = self.accelerator.clip_grad_norm_(self.model.parameters(), self.max_norm)
        norm = 0.0 if clipped is None else float(clipped)
        if self.by_deepspeed and self.factor != 1:
            self._zero.loss_scale = 1.0
        if math.isfinite(norm):
            self.optimizer.step()
        self.clear()
        return norm

    def clear(self) -> None:
        """Forgets all accumulated gradients."""
        self.optimizer.zero_grad()
        self.factor = 1.0

    def _multiply(self) -> None:
        is_unread = isinstance(self.factor, Tensor) and not self.reads_factors
        if is_unread or self.factor != 1:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self.factor)
        self.factor = 1.0

    @property
    def _zero(self) -> Any:
        return self.model.optimizer


def _lesser(one: Tensor | float, other: Tensor | float) -> Tensor | float:
    """The lesser of two factors. The host does not wait for one on a GPU."""
    if isinstance(one, Tensor):
        return torch.clamp(one, max=other)
    return torch.clamp(other, max=one) if isinstance(other, Tensor) else min(one, other)
