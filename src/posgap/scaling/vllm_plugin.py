"""The vLLM plugin: a served model reads `posgap_rope_factors` from its config.json as transformers does.

vLLM finds `register` through the entry point group `vllm.general_plugins`. Each layer's rotary embedding
holds a table of cos and sin by position. After a model is loaded, layer l gets a table of its own with its
frequencies divided by factor l. That equals dividing the positions, keeps the effect of the model's own
`rope_scaling`, and changes nothing else in serving. vLLM's internals are no public interface, so tests/test_vllm.py
compares log-probabilities with transformers'. Only vLLM and torch are imported here, because vLLM is installed in
an environment of its own.
"""

import copy
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from posgap.models import CONFIG_KEY, MITIGATIONS_KEY

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def register() -> None:
    """Makes every vLLM model loader scale the models it loads. vLLM calls it once or more in each process."""
    import vllm.model_executor.model_loader  # noqa: F401  defines all loaders
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    for loader in (BaseModelLoader, *_subclasses(BaseModelLoader)):
        load = vars(loader).get("load_model")
        if load is not None and not hasattr(load, "_posgap"):
            loader.load_model = _scaling(load)


def scale(model: nn.Module, factors: Sequence[float]) -> list[float]:
    """Scales a vLLM model in place and returns the factor of each layer, read off its new table.

    Raises `ValueError` if the model cannot be scaled as its config says, so that it is not served unscaled.
    """
    attentions = {}
    for name, module in model.named_modules():
        if (in_layer := _LAYER.search(f"{name}.")) and hasattr(getattr(module, "rotary_emb", None), "cos_sin_cache"):
            attentions[int(in_layer[1])] = module
    if sorted(attentions) != list(range(len(factors))) or any(isinstance(factor, list) for factor in factors):
        raise ValueError(
            f"posgap: {CONFIG_KEY} has {len(factors)} factors, but this model has rotary embeddings that can be scaled "
            f"in layers {sorted(attentions)}; vLLM serves one factor per layer of Llama-like models"
        )
    made: dict[tuple[int, float], nn.Module] = {}
    for layer, factor in enumerate(factors):
        rotary = attentions[layer].rotary_emb
        if (id(rotary), factor) not in made:
            made[id(rotary), factor] = rotary if factor == 1 else _scaled(rotary, factor)
        attentions[layer].rotary_emb = made[id(rotary), factor]
    return applied(model)


def applied(model: nn.Module) -> list[float]:
    """The factor of each layer, read off its table: unscaled, the highest frequency is one radian per position, or
    less under linear `rope_scaling`."""
    factors = {}
    for name, module in model.named_modules():
        if (in_layer := _LAYER.search(f"{name}.")) and hasattr(getattr(module, "rotary_emb", None), "cos_sin_cache"):
            table = module.rotary_emb.cos_sin_cache[1].float().cpu()
            cos, sin = table.chunk(2)
            linear = getattr(module.rotary_emb, "scaling_factors", [1.0])[0]
            factors[int(in_layer[1])] = 1 / (linear * float(sin[0].atan2(cos[0])))
    return [round(factors[layer], 4) for layer in sorted(factors)]


def _scaled(rotary: Any, factor: float) -> Any:
    """A copy of a rotary embedding with its frequencies divided by `factor`."""
    copied = copy.deepcopy(rotary)
    frequencies = type(rotary)._compute_inv_freq
    copied._compute_inv_freq = lambda *arguments: frequencies(copied, *arguments) / factor
    table = copied._compute_cos_sin_cache()
    copied.cos_sin_cache = table.to(rotary.cos_sin_cache.device, rotary.cos_sin_cache.dtype)
    del copied._compute_inv_freq
    return copied


def _scaling(load: Callable) -> Callable:
    @functools.wraps(load)
    def load_scaled(self, vllm_config, model_config, *arguments, **options):
        if listed := getattr(model_config.hf_config, MITIGATIONS_KEY, None):
            names = ", ".join(str(each["name"]) for each in listed)
            raise ValueError(
                f"posgap: {MITIGATIONS_KEY} has {names}, which vLLM cannot do; serve the model with transformers "
                "(posgap.load_model)"
            )
        model = load(self, vllm_config, model_config, *arguments, **options)
        factors = getattr(model_config.hf_config, CONFIG_KEY, None)
        if factors is not None:
            print(f"posgap | RoPE factors by layer: {scale(model, factors)}", flush=True)
        return model

    vars(load_scaled)["_posgap"] = True
    return load_scaled


def _subclasses(loader: type[Any]) -> list[type[Any]]:
    return [c for child in loader.__subclasses__() for c in (child, *_subclasses(child))]
