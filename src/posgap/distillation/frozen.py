"""Keeps the frozen weights beneath adapters in bfloat16 if that changes nothing."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel


class _InBfloat16(nn.Linear):
    """A frozen linear layer with a bfloat16 weight; without autocast it computes in its input's precision."""

    def forward(self, states: Tensor) -> Tensor:
        weight = self.weight if torch.is_autocast_enabled(states.device.type) else self.weight.to(states.dtype)
        return F.linear(states, weight, self.bias)


def beneath_adapters(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Linear]]:
    """Yields each adapted module with the linear layer that its adapters stand on."""
    for module in list(model.modules()):
        layer = getattr(module, "base_layer", None)
        if type(layer) is nn.Linear and not layer.weight.requires_grad:
            yield module, layer


def keep_in_bfloat16(model: PreTrainedModel) -> None:
    """Keeps the weights beneath adapters in bfloat16 if bfloat16 can hold them exactly, as for files of that precision.

    For training that computes in bfloat16 by autocast, which rounds weights to it for each product: no number of the
    training is another, and neither the rounded weights nor the exact ones take memory.
    """
    for module, layer in beneath_adapters(model):
        rounded = layer.weight.detach().to(torch.bfloat16)
        # A planner's weights have no numbers; the caller knows theirs.
        if layer.weight.is_meta or torch.equal(rounded.to(layer.weight.dtype), layer.weight):
            frozen = _InBfloat16(layer.in_features, layer.out_features, bias=False, device="meta")
            frozen.weight = nn.Parameter(rounded, requires_grad=False)
            frozen.bias = layer.bias
            module.base_layer = frozen
