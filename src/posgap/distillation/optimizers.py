"""The optimizers by name, of torch alone, and what each keeps of a parameter."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from posgap.distillation.sharding import layers_of

ADAMW, MUON = "adamw", "muon"


class Muon(torch.optim.Optimizer):
    """Muon for the matrices of a model's layers, and AdamW for all else: embedding, head, norms, biases.

    Muon's update is scaled to the size that AdamW's has, so that learning rate and weight decay mean the same. Both are
    torch's own, and work with the groups and the state of this one, which schedules and checkpoints look at.
    """

    def __init__(self, matrices: list[nn.Parameter], others: list[dict[str, Any]], **adamw: Any):
        rate, decay = adamw["lr"], adamw["weight_decay"]
        self.muon = torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw")
        self.adamw = torch.optim.AdamW(others, **adamw)
        super().__init__([*self.muon.param_groups, *self.adamw.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Makes one update of all parameters that have a gradient."""
        # Whoever loads a state, as Accelerate does at once, puts other groups in place of those that were here.
        self.muon.param_groups = [group for group in self.param_groups if is_by_muon(group)]
        self.adamw.param_groups = [group for group in self.param_groups if not is_by_muon(group)]
        for optimizer in (self.muon, self.adamw):
            optimizer.state = self.state
            optimizer.step()


def is_by_muon(group: dict[str, Any]) -> bool:
    """Whether a group of parameters is Muon's: it has the number of its iterations."""
    return "ns_steps" in group


def matrices_of_layers(model: PreTrainedModel) -> Iterator[nn.Parameter]:
    """The trained matrices of a language model's layers."""
    for layer in layers_of(model):
        yield from (parameter for parameter in layer.parameters() if parameter.requires_grad and parameter.dim() == 2)
