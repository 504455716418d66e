"""`posgap doctor --model`: the factors that a loaded model really applies, beside those in its config."""

import functools
import importlib.util
import json
import math
import os
from pathlib import Path

from posgap.foundation.errors import BadModel, MissingPackage
from posgap.foundation.printing import join_lines, show
from posgap.mitigations.in_force import load_model
from posgap.models import CONFIG_KEY
from posgap.models.closing import read_config
from posgap.scaling.vllm_plugin import read_factors


def serve_check(model: str | Path, backend: str = "auto") -> None:
    """Loads the model and prints one line per layer; raises `PosgapError` if config and model disagree."""
    configured = read_config(Path(model)).get(CONFIG_KEY)
    model = str(model)
    if backend == "auto":
        backend = "vllm" if importlib.util.find_spec("vllm") else "transformers"
    real = (_factors_in_vllm if backend == "vllm" else _factors_in_transformers)(model)
    wanted = configured or [1.0] * len(real)
    said = "is not set" if configured is None else json.dumps(configured)
    lines = [f"{model} in {backend}: {CONFIG_KEY} {said}"]
    for layer, (factor, applied_factor) in enumerate(zip(wanted, real)):
        lines.append(f"layer {layer:3d}  config {_format_factor(factor)}  applied {_format_factor(applied_factor)}")
    show(join_lines(lines), {"model": model, "backend": backend, "config": configured, "applied": real})
    unseen = all(factor is None for factor in real)
    if unseen or len(wanted) != len(real) or not all(map(_agree, wanted, real)):
        raise BadModel(f"{model}: {backend} ignores the factors in its config; do not serve the model with it")


def _format_factor(factor: float | None) -> str:
    """A layer's factor, or that it has no rotary positions."""
    return "none: no rotary positions" if factor is None else f"{factor:.4f}"


def _agree(wanted: float, real: float | None) -> bool:
    """Returns whether a layer applies its config's factor; one without rotary positions has nothing to apply."""
    return real is None or math.isclose(wanted, real, rel_tol=1e-3)


def _factors_in_vllm(model: str) -> list[float]:
    # vLLM runs the model in this process, so that `apply_model` can inspect it.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    try:
        from vllm import LLM
    except ImportError:
        raise MissingPackage(
            "vLLM is not installed here: choose `backend` transformers, or run in vLLM's environment"
        ) from None
    try:
        # Factors are read off the model, which a tokenizer has no part in.
        served = LLM(model, dtype="float32", enforce_eager=True, max_model_len=64, skip_tokenizer_init=True)
    except Exception as error:  # of all kinds, by what a model's code and its config have
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        told = next((line for line in lines if "posgap:" in line), lines[0])
        raise BadModel(f"{model}: vLLM does not load this model: {told}") from None
    (factors,) = served.apply_model(read_factors)
    return factors


def _factors_in_transformers(model: str) -> list[float | None]:
    """Returns the factor of each layer, or None if it has no rotary positions.

    They are read off the tables of cos and sin that its attention gets, at position 1.
    """
    import torch

    from posgap.models.layer_scaling import Rungs, layer_scaling

    loaded = load_model(model, "float32")
    scaling = layer_scaling(loaded)
    rope = loaded.config.get_text_config().rope_parameters or {}
    seen: list[float | None] = [None] * scaling.n_layers

    def look(layer: int, attention, args, kwargs) -> None:
        tables = kwargs["position_embeddings"]
        if isinstance(tables, Rungs):  # of ms-poe: the first rung has the layer's own factor
            tables = [table[tables.which[0]] for table in tables.tables]
        if isinstance(tables, torch.Tensor):  # complex numbers
            angle = tables[0, 1, 0].angle()
        else:
            cos, sin = (table[0, ..., 1, 0].flatten()[0] for table in tables)
            angle = torch.atan2(sin, cos)
        own = rope.get(scaling.layer_types[layer], rope) if scaling.layer_types else rope
        slower = own["factor"] if own.get("rope_type") == "linear" else 1.0
        # At position 1 the first frequency turns by 1 / factor radian, less by `slower` under linear scaling.
        seen[layer] = round(1 / (slower * float(angle)), 4)

    for layer, attention in scaling.attentions():
        attention.register_forward_pre_hook(functools.partial(look, layer), with_kwargs=True)
    with torch.inference_mode():
        loaded(input_ids=torch.tensor([[0, 0]]), use_cache=False)
    return seen
