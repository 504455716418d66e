"""RoPE factors as a model's config has them; nothing here needs torch."""

import math
from collections.abc import Sequence

from posgap.foundation.errors import BadModel
from posgap.foundation.heavy_types import PretrainedConfig
from posgap.models import CONFIG_KEY, MITIGATIONS_KEY


def config_factors(config: PretrainedConfig) -> Sequence[float] | None:
    """The factors that a model's config names."""
    return getattr(config, CONFIG_KEY, None)


def is_altered(config: PretrainedConfig) -> bool:
    """Returns whether a model's config names RoPE factors or mitigations, so that loading it without posgap gives
    another model."""
    return getattr(config, CONFIG_KEY, None) is not None or getattr(config, MITIGATIONS_KEY, None) is not None


def require_rope(config: PretrainedConfig, where: str) -> None:
    """Raises `PosgapError` if, by its config, a model has no rotary positions or its attention rotates by its own
    tables; other families are checked at loading (`layer_scaling`)."""
    text = config.get_text_config()
    if not getattr(text, "rope_parameters", None):
        own = "its rotary positions cannot be scaled by layer: each attention makes its own tables"
        reason = own if getattr(text, "rotary_dim", None) else "no rotary position embedding to scale"
        raise BadModel(f"{where}: {reason}")


def check_factors(factors: Sequence[float], n_layers: int, where: str) -> None:
    """`PosgapError` unless there is one positive number a layer."""
    if len(factors) != n_layers:
        raise BadModel(f"{where}: {len(factors)} RoPE factors for a model of {n_layers} layers; give one per layer")
    for layer, factor in enumerate(factors):
        if isinstance(factor, list | tuple):
            raise BadModel(f"{where}: posgap no longer divides by head; apply ms-poe to the original model")
        if not (isinstance(factor, int | float) and math.isfinite(factor) and factor > 0):
            raise BadModel(f"{where}: the RoPE factor of layer {layer} is {factor!r}; it must be a positive number")
