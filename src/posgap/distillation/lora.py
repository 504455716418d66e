"""Low-rank adapters (Hu et al. 2022) by peft: trained beside frozen weights, and on export merged into them."""

import warnings
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posgap.foundation.errors import PosgapError, first_line
from posgap.foundation.heavy_types import PeftModel

ALPHA = 16  # the adapters' product is multiplied by it, over their rank


def add_adapters(model: PreTrainedModel, rank: int) -> PeftModel:
    """Puts adapters on every linear layer but the output head, and freezes the rest of `model`, in place.

    Routers that are linear layers with outputs of their own (Llama 4's) are left out: peft's adapters cannot stand in
    for them. Raises `PosgapError` if peft cannot adapt the model.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise PosgapError("lora_rank: peft is not installed; pip install 'posgap[train]'") from None
    routers = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and "Router" in type(module).__name__
    }
    options = LoraConfig(
        r=rank,
        lora_alpha=ALPHA,
        target_modules="all-linear",
        exclude_modules=sorted(routers) or None,
        task_type="CAUSAL_LM",
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of transposed layers (GPT-2's), which it notices by itself
            return get_peft_model(model, options)  # type: ignore[return-value]  # not of several adapters mixed
    except ValueError as error:
        reason = first_line(error).partition(". ")[0]
        raise PosgapError(
            f"lora_rank: peft cannot adapt {type(model).__name__}: {reason}; train all parameters"
        ) from None


@torch.no_grad()
def merge_adapters(model: PreTrainedModel, adapters: Mapping[str, Tensor], rank: int) -> PreTrainedModel:
    """The base `model` with trained `adapters` merged into its parameters, as peft merges them.

    `adapters` has the parameters that `add_adapters` adds, by name; they may have been gathered from ZeRO-3's
    partitions. The model is used up.
    """
    adapted = add_adapters(model, rank)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            parameter.copy_(adapters[name])
    return adapted.merge_and_unload(safe_merge=True)  # type: ignore[operator,no-any-return]
