"""Stores the weights of linear layers in the processor's fastest order for multiplication."""

from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from posgap.models.memory import available_bytes

MIN_WEIGHTS = 1 << 16  # of a layer that gains from it
SHARE = 0.3  # of the free memory: the packed weights come on top of the others
_DTYPES = (torch.float32, torch.bfloat16)


def pack_weights(model: PreTrainedModel) -> None:
    """Makes a model's linear layers multiply by packed copies of their weights while no gradient is needed.

    oneDNN reads a packed weight without reordering it. In bfloat16 the products are bit-identical; in float32 they are
    rounded differently, as in a batch of another size. Does nothing on a GPU, without oneDNN, in bfloat16 if oneDNN has
    no such products on the processor, or if the copies would take more than `SHARE` of the free memory.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.Linear) and _gains(module)]
    size = sum(layer.weight.nbytes for layer in layers)
    if torch.backends.mkldnn.is_available() and size <= SHARE * available_bytes():
        for layer in layers:
            layer.forward = _PackedLinear(layer)  # type: ignore[method-assign]


def _gains(module: nn.Linear) -> bool:
    if type(module) is not nn.Linear or "forward" in vars(module):  # another kind of linear layer, or a wrapped one
        return False
    weight = module.weight
    if weight.is_inference():  # it does not count its changes
        return False
    if weight.dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    return weight.device.type == "cpu" and weight.dtype in _DTYPES and weight.numel() >= MIN_WEIGHTS


class _PackedLinear:
    """The forward pass of a linear layer. If the weight was changed since, the layer multiplies by itself."""

    def __init__(self, layer: nn.Linear):
        self.layer = layer
        self.weight = layer.weight
        self.version = layer.weight._version
        self.packed: Any = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach())

    def __call__(self, input: torch.Tensor) -> torch.Tensor:
        layer = self.layer
        unchanged = layer.weight is self.weight and layer.weight._version == self.version
        if not unchanged or torch.is_grad_enabled() or input.dtype != self.packed.dtype:
            return nn.functional.linear(input, layer.weight, layer.bias)
        return torch.ops.mkldnn._linear_pointwise(input, self.packed, layer.bias, "none", [], "")
