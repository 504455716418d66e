"""The frozen weights beneath adapters, in less memory: in bfloat16 where that changes nothing, or in 4 bits (QLoRA,
Dettmers et al. 2023)."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from posgap.foundation.extras import needed

NF4 = "nf4"
# Bytes of a number in NF4: 4 bits, and for each block of 64 a scale in 8 bits, of which each 256 have one in float32.
NF4_BYTES = 1 / 2 + 1 / 64 + 4 / (64 * 256)


class _InBfloat16(nn.Linear):
    """A frozen linear layer whose weight is in bfloat16; without autocast it computes in its input's precision."""

    def forward(self, states: Tensor) -> Tensor:
        weight = self.weight if torch.is_autocast_enabled(states.device.type) else self.weight.to(states.dtype)
        return F.linear(states, weight, self.bias)


class _InNf4(nn.Module):
    """A frozen linear layer whose weight is in NF4, of which a matrix is made for each product, and let go of."""

    def __init__(self, layer: nn.Linear, device: torch.device):
        super().__init__()
        functional = needed("bitsandbytes.functional")
        weight = layer.weight.detach().to(device)
        self.packed, self.about = functional.quantize_4bit(weight, quant_type=NF4, compress_statistics=True)
        self.dequantize, self.bias = functional.dequantize_4bit, layer.bias

    def matrix(self, dtype: torch.dtype) -> Tensor:
        """The weight `[out, in]` that the 4 bits stand for."""
        return self.dequantize(self.packed, self.about).to(dtype)

    def forward(self, states: Tensor) -> Tensor:
        kind = states.device.type
        if torch.is_autocast_enabled(kind):
            states = states.to(torch.get_autocast_dtype(kind))
        product: Tensor = _Product.apply(states, self.matrix)
        return product if self.bias is None else product + self.bias.to(product.dtype)


class _Product(torch.autograd.Function):
    """The product with a matrix that has no gradient and is made anew for each pass."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, matrix: Callable[[torch.dtype], Tensor]) -> Tensor:
        ctx.matrix = matrix
        return F.linear(states, matrix(states.dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] @ ctx.matrix(gradients[0].dtype), None


def beneath_adapters(model: nn.Module) -> Iterator[tuple[nn.Module, nn.Linear]]:
    """The linear layers that have adapters, each with peft's module that holds it as `base_layer`."""
    for module in list(model.modules()):
        layer = getattr(module, "base_layer", None)
        if type(layer) is nn.Linear and not layer.weight.requires_grad:
            yield module, layer


def keep_in_bfloat16(model: PreTrainedModel) -> None:
    """Keeps in bfloat16 what stands beneath adapters and is made of bfloat16's numbers, as in files of that precision.

    For training that computes in bfloat16 by autocast, which rounds weights to it for each product: no number of the
    training is another, and neither the rounded weights nor the exact ones take memory.
    """
    for _, layer in beneath_adapters(model):
        rounded = layer.weight.detach().to(torch.bfloat16)
        # Of a planner's weights, which have no numbers, the caller knows.
        if layer.weight.is_meta or torch.equal(rounded.to(layer.weight.dtype), layer.weight):
            layer.weight = nn.Parameter(rounded, requires_grad=False)
            layer.__class__ = _InBfloat16


def keep_in_nf4(model: PreTrainedModel, device: torch.device) -> None:
    """Puts what stands beneath adapters into NF4 on `device`, one matrix after the other.

    Raises `PosgapError` without bitsandbytes.
    """
    for module, layer in beneath_adapters(model):
        module.base_layer = _InNf4(layer, device)


def is_in_nf4(model: nn.Module) -> bool:
    """Whether weights of the model are in NF4."""
    return any(isinstance(module, _InNf4) for module in model.modules())
