"""The vLLM plugin: a served model reads `posgap_rope_factors` from its config.json as transformers does.

vLLM finds `register` through the entry point group `vllm.general_plugins`. Each layer's rotary embedding holds a table
of cos and sin by position. After a model is loaded, layer l gets a table of its own with its frequencies divided by
factor l. That equals dividing the positions, keeps the effect of the model's own `rope_scaling`, and changes nothing
else in serving. vLLM serves families without a model of its own (GPT-NeoX, OLMo, Phi, StarCoder2, ...) by transformers'
model with vLLM's attention; that is scaled as transformers' is. `FactorSetter` changes the factors of a model that is
served already, for a search. vLLM's internals are no public interface, so test_vllm.py compares log-probabilities with
transformers'. vLLM is installed in an environment of its own, so this module imports only vLLM, torch and, if such a
model is served, the scaling of transformers' models.
"""

import copy
import functools
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from posgap.models import CLOSED_TYPE, CONFIG_KEY, MITIGATIONS_KEY, OWN_TABLES_KEY
from posgap.models.closing import load_closed_config
from posgap.models.factors import check_factors

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def register() -> None:
    """Makes every vLLM model loader scale the models it loads, and lets transformers read closed configs.

    A closed config (`posgap.models.closing`) hides the model from loaders that would ignore its factors; in this
    process only the wrapped loaders load models. vLLM calls this once or more in each process.
    """
    import vllm.model_executor.model_loader  # noqa: F401  defines all loaders
    from transformers import AutoConfig, PretrainedConfig
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader

    class ClosedConfig(PretrainedConfig):
        model_type = CLOSED_TYPE

        @classmethod
        def from_dict(cls, config_dict, return_unused_kwargs=False, **options):
            config = load_closed_config(config_dict, options.get("name_or_path", ""))
            return (config, options) if return_unused_kwargs else config

    AutoConfig.register(CLOSED_TYPE, ClosedConfig, exist_ok=True)

    for loader in (BaseModelLoader, *_find_subclasses(BaseModelLoader)):
        load = vars(loader).get("load_model")
        if load is not None and not hasattr(load, "_posgap"):
            loader.load_model = _wrap_loader(load)


class FactorSetter:
    """Extends the workers of a search's vLLM."""

    get_model: Callable[[], nn.Module]  # the worker's own

    def set_factors(self, factors: Sequence[float]) -> None:
        """Sets factors `[L]` in a model whose layers have their own tables.

        Tables are written in place, since compiled code and CUDA graphs keep reading there.
        """
        model = self.get_model()
        inner = _transformers_model(model)
        with torch.inference_mode():
            if inner is not None:
                inner.posgap_scaling.factors.copy_(torch.tensor(factors))
                return
            for layer, attention in _attentions(model).items():
                attention.rotary_emb.cos_sin_cache.copy_(_make_table(attention.rotary_emb, factors[layer]))


def scale_served_model(model: nn.Module, factors: Sequence[float], own_tables: bool = False) -> list[float]:
    """Scales a vLLM model in place and returns the factor of each layer, read off its new table.

    Layers of one factor share a table, unless `own_tables` are to be changed later (`FactorSetter`). Raises
    `ValueError` if the model cannot be scaled as its config says, so that it is not served unscaled.
    """
    check_factors(factors, len(factors), f"posgap: {CONFIG_KEY}")
    inner = _transformers_model(model)
    if inner is not None:
        return _scale_inner(inner, factors)
    attentions = _attentions(model)
    if sorted(attentions) != list(range(len(factors))):
        raise ValueError(
            f"posgap: {CONFIG_KEY} has {len(factors)} factors, but this model has rotary embeddings that can be scaled "
            f"in layers {sorted(attentions)}; vLLM serves one factor per layer of Llama-like models, and of others "
            "perhaps with --model-impl transformers"
        )
    made: dict[tuple[int, float], Any] = {}
    for layer, factor in enumerate(factors):
        rotary = attentions[layer].rotary_emb
        key = (id(rotary), layer if own_tables else factor)
        if key not in made:
            made[key] = copy.deepcopy(rotary)
            made[key].cos_sin_cache = _make_table(rotary, factor)
        attentions[layer].rotary_emb = made[key]
    return read_factors(model)


def _attentions(model: nn.Module) -> dict[int, Any]:
    """Returns the modules, by layer, whose rotary embedding holds a table."""
    found = {}
    for name, module in model.named_modules():
        in_layer = _LAYER.search(f"{name}.")
        if in_layer and hasattr(getattr(module, "rotary_emb", None), "cos_sin_cache"):
            found[int(in_layer[1])] = module
    return found


def _transformers_model(model: nn.Module) -> Any:
    """The model of transformers that vLLM runs, if it has none of its own for the family."""
    inner = getattr(model, "model", None)
    return inner if any(kind.__name__ == "PreTrainedModel" for kind in type(inner).__mro__) else None


def _scale_inner(inner: Any, factors: Sequence[float]) -> list[float]:
    from posgap.foundation.errors import BadModel, PosgapError
    from posgap.models.layer_scaling import LayerScaling

    try:
        # vLLM's attention works in vLLM alone, so it cannot be tried here; the factors read below show the effect.
        scaling = LayerScaling(inner, tried=False)
        if len(factors) != scaling.n_layers:
            raise BadModel(f"{CONFIG_KEY} has {len(factors)} factors, and the model has {scaling.n_layers} layers")
        if scaling.length_dependent:
            raise BadModel("its RoPE depends on the longest prompt of a batch, but vLLM batches prompts of all lengths")
        scaling.set(factors)
    except PosgapError as error:
        raise ValueError(f"posgap: vLLM cannot serve this model with {CONFIG_KEY}: {error}") from None
    inner.posgap_scaling = scaling
    return read_inner_factors(inner)


def read_inner_factors(inner: Any) -> list[float]:
    """Reads the factor of each layer of a transformers model in vLLM from the tables that its rotary embedding makes
    for it at position 1."""
    config = inner.config.get_text_config()
    rope = config.rope_parameters or {}
    scaling = getattr(inner, "posgap_scaling", None)
    layer_types: Any = getattr(config, "layer_types", None)
    rotary = next(module for name, module in inner.named_modules() if "RotaryEmbedding" in type(module).__name__)
    takes_type = "layer_type" in inspect.signature(type(rotary).forward).parameters
    positions = torch.tensor([[0, 1]], device=next(inner.parameters()).device)
    states = torch.zeros(1, 2, config.hidden_size, device=positions.device)
    factors = []
    for layer in range(config.num_hidden_layers):
        kind = layer_types[layer] if takes_type else None
        made = rotary(states, position_ids=positions, **({"layer_type": kind} if takes_type else {}))
        cos, sin = made if scaling is None else made[layer]
        own = rope.get(kind, rope) if kind else rope
        slower = own["factor"] if own.get("rope_type") == "linear" else 1.0
        factors.append(round(1 / (slower * float(sin[0, 1, 0].atan2(cos[0, 1, 0]))), 4))
    return factors


def read_factors(model: nn.Module) -> list[float]:
    """The factor of each layer, read off its table: unscaled, the highest frequency is one radian per position, or
    less under linear `rope_scaling`."""
    inner = _transformers_model(model)
    if inner is not None:
        return read_inner_factors(inner)
    factors = []
    for _, attention in sorted(_attentions(model).items()):
        table = attention.rotary_emb.cos_sin_cache[1].float().cpu()
        cos, sin = table.chunk(2)
        linear = getattr(attention.rotary_emb, "scaling_factors", [1.0])[0]
        factors.append(round(1 / (linear * float(sin[0].atan2(cos[0]))), 4))
    return factors


def _make_table(rotary: Any, factor: float) -> torch.Tensor:
    """A rotary embedding's table with its frequencies divided by `factor`."""
    frequencies = type(rotary)._compute_inv_freq
    now = rotary.cos_sin_cache
    rotary._compute_inv_freq = lambda *arguments: frequencies(rotary, *arguments) / factor
    with now.device:
        table = rotary._compute_cos_sin_cache()
    del rotary._compute_inv_freq
    return table.to(now.dtype)


def _wrap_loader(load: Callable) -> Callable:
    @functools.wraps(load)
    def load_scaled(self, vllm_config, model_config, *arguments, **options):
        listed = getattr(model_config.hf_config, MITIGATIONS_KEY, None)
        if listed:
            names = ", ".join(str(each["name"]) for each in listed)
            raise ValueError(
                f"posgap: {MITIGATIONS_KEY} has {names}, which vLLM cannot do; serve the model with transformers "
                "(posgap.load_model)"
            )
        model = load(self, vllm_config, model_config, *arguments, **options)
        factors = getattr(model_config.hf_config, CONFIG_KEY, None)
        own_tables = getattr(model_config.hf_config, OWN_TABLES_KEY, False)
        if own_tables and factors is None:
            factors = [1.0] * model_config.hf_text_config.num_hidden_layers
        if factors is not None:
            scale_served_model(model, factors, own_tables)
            print(f"posgap | RoPE factors by layer: {factors}", flush=True)  # a table of 16 bits has 0.9998 for 1
        return model

    vars(load_scaled)["_posgap"] = True
    return load_scaled


def _find_subclasses(loader: type[Any]) -> list[type[Any]]:
    return [each for child in loader.__subclasses__() for each in (child, *_find_subclasses(child))]
