"""Low-rank adapters (Hu et al. 2022) by peft: trained beside frozen weights, and merged into them on export."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from posgap.errors import PosgapError


def add_adapters(model: PreTrainedModel, rank: int, alpha: int) -> None:
    """Puts adapters on every linear layer but the output head, and freezes the rest of `model`."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise PosgapError("lora_rank: peft is not installed; pip install 'posgap[train]'") from None
    get_peft_model(model, LoraConfig(r=rank, lora_alpha=alpha, target_modules="all-linear", task_type="CAUSAL_LM"))


def merged(state: dict[str, Tensor], rank: int, alpha: int) -> dict[str, Tensor]:
    """The parameters of a model after its adapters are merged into its weights: W + (alpha / rank) B A.

    It works on names and tensors alone, so that `state` may have been gathered from ZeRO-3's partitions.
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
