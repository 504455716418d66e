"""Low-rank adapters (Hu et al. 2022, through peft): trained beside frozen weights, merged on export."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from posgap.errors import PosgapError


def add_adapters(model: PreTrainedModel, rank: int, alpha: int) -> None:
    """Puts adapters on every linear layer but the output head; the rest of `model` is frozen."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise PosgapError("lora_rank: peft is not installed; pip install 'posgap[train]'") from None
    get_peft_model(model, LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM"))


def merged(state: dict[str, Tensor], rank: int, alpha: int) -> dict[str, Tensor]:
    """The parameters of a model with adapters, with their products added in: W + (alpha / rank) B A.

    On names and tensors alone, so that it serves a `state` gathered from ZeRO-3's pieces.
    """
    plain = {}
    for name, tensor in state.items():
        if name.endswith(".base_layer.weight"):
            layer = name.removesuffix(".base_layer.weight")
            a, b = state[f"{layer}.lora_A.default.weight"], state[f"{layer}.lora_B.default.weight"]
            tensor = tensor + alpha / rank * torch.matmul(b, a)
        if ".lora_" not in name:
            plain[name.replace(".base_layer.", ".")] = tensor
    return plain
