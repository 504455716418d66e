"""The optimizers by name, and what each keeps of a parameter."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posgap.distillation.sharding import layers_of
from posgap.foundation.extras import needed

ADAMW, ADAMW_8BIT, MUON = "adamw", "adamw8bit", "muon"
# The bytes that an optimizer keeps of a number in layers' matrices; AdamW keeps two means in float32. One in 8 bits has
# a scale in float32 for each block of 256 numbers.
BYTES_KEPT = {ADAMW: 8.0, ADAMW_8BIT: 2 * (1 + 4 / 256), MUON: 4.0}


def adamw(groups: list[dict[str, Any]], **options: Any) -> torch.optim.AdamW:
    """torch's AdamW in one kernel a parameter, on a GPU as on a CPU; its step needs no memory beside what it keeps."""
    return torch.optim.AdamW(groups, fused=True, **options)


class OfMatrices(torch.optim.Optimizer):
    """Muon, or AdamW with means in 8 bits, for the `matrices` of a model's layers, and AdamW for all else: embedding,
    head, norms, biases.

    Muon's update is scaled to the size that AdamW's has, so that learning rate and weight decay mean the same. The two
    that are at work have the groups and the state of this one, which schedules and checkpoints look at.
    """

    def __init__(self, name: str, matrices: list[nn.Parameter], others: list[dict[str, Any]], **options: Any):
        marked = [{"params": matrices, "of_matrices": True}]
        self.of_matrices = _muon(marked, **options) if name == MUON else _in_8_bits(marked, **options)
        self.adamw = adamw(others, **options)
        super().__init__([*self.of_matrices.param_groups, *self.adamw.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Makes one update of all parameters that have a gradient."""
        self._share()
        self.of_matrices.step()
        self.adamw.step()

    def begin(self, parameter: Tensor) -> None:
        """Makes what is kept of a matrix before its first step."""
        self._share()
        if isinstance(self.of_matrices, torch.optim.Muon):
            self.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
        else:
            self.of_matrices.init_state(self.of_matrices.param_groups[0], parameter, 0, 0)  # type: ignore[attr-defined]

    def _share(self) -> None:
        # Whoever loads a state, as Accelerate does at once, puts other groups in place of those that were here.
        for optimizer, whose in ((self.of_matrices, True), (self.adamw, False)):
            optimizer.param_groups = [group for group in self.param_groups if ("of_matrices" in group) == whose]
            optimizer.state = self.state


def unmoved(parameter: Tensor) -> dict[str, Tensor]:
    """What AdamW keeps of a parameter before its first step."""
    means = {mean: torch.zeros_like(parameter) for mean in ("exp_avg", "exp_avg_sq")}
    return {"step": torch.zeros((), device=parameter.device), **means}


def begin(optimizer: Any, parameters: Iterable[Tensor]) -> None:
    """Has an optimizer, which Accelerate may have wrapped, keep what it would of `parameters` before its first step."""
    optimizer = getattr(optimizer, "optimizer", optimizer)
    marked = {each for group in optimizer.param_groups if "of_matrices" in group for each in group["params"]}
    for parameter in parameters:
        if parameter in marked:
            optimizer.begin(parameter)
        else:
            optimizer.state[parameter] = unmoved(parameter)


def _muon(groups: list[dict[str, Any]], lr: float, weight_decay: float, **_: Any) -> torch.optim.Optimizer:
    return torch.optim.Muon(groups, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")


def _in_8_bits(groups: list[dict[str, Any]], **options: Any) -> torch.optim.Optimizer:
    return needed("bitsandbytes").optim.AdamW8bit(groups, **options)


def matrices_of_layers(model: PreTrainedModel) -> Iterator[nn.Parameter]:
    """The trained matrices of a language model's layers."""
    for layer in layers_of(model):
        yield from (parameter for parameter in layer.parameters() if parameter.requires_grad and parameter.dim() == 2)
