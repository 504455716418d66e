"""From the options of `rollout predict`, and a measurement that supplies what they leave out, to an architecture."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from posgap.foundation.errors import PosgapError
from posgap.rollout.architecture import Architecture
from posgap.rollout.attention import Mask
from posgap.rollout.config import RolloutPredictConfig
from posgap.rollout.encodings import require_lambdas
from posgap.rollout.files import Measurement
from posgap.rollout.position_encodings import POSITION_ENCODINGS, PositionScores, of_model

T = TypeVar("T")


def build_architecture(config: RolloutPredictConfig, measured: Measurement | None) -> tuple[Architecture, int]:
    """Returns the architecture that the config and the measurement describe, and its number of heads.

    `PosgapError` where they contradict each other, or leave something out.
    """

    def from_measurement(value: int, name: str) -> int:
        if value:
            return value
        if measured is None:
            raise PosgapError(f"{name}: must be given, or taken from a `measurement`")
        return getattr(measured, name)

    n = from_measurement(config.sequence_length, "sequence_length")
    n_layers, n_heads = from_measurement(config.layers, "layers"), from_measurement(config.heads, "heads")
    of_measurement = {
        "encoding": POSITION_ENCODINGS[config.encoding].of_measurement,
        "mask": config.mask == "measured",
        "residual": config.residual == ["measured"],
        "content": config.content in (["mean"], ["heads"]),
    }
    if measured is None and any(of_measurement.values()):
        wanting = next(name for name, wants in of_measurement.items() if wants)
        raise PosgapError(f"{wanting}: needs measured values: give a `measurement`")
    encoded = _encoding(config, measured, n_heads)
    _require_used(config, encoded, n_layers)
    slopes = encoded.slopes if _has_rows(encoded.slopes) else [encoded.slopes]
    architecture = Architecture(
        n,
        _masks(config, measured, n, n_layers),
        _schedule(config, measured, n_layers),
        _table("slope", slopes, n_layers, n_heads),
        scores=encoded.scores,
        factors=encoded.factors,
        diagonal=_content(config, measured, n_layers, n_heads),
    )
    return architecture, n_heads


def _require_used(config: RolloutPredictConfig, encoded: PositionScores, n_layers: int) -> None:
    """`PosgapError` where an option is of another encoding, or not of the architecture's `n_layers`."""
    if config.rope_factors and encoded.scores is None:
        raise PosgapError("rope_factors: they divide RoPE's positions: give `encoding` rope, or leave them out")
    taken = POSITION_ENCODINGS[config.encoding].parameters.model_fields
    if config.slope != config.default("slope") and "slope" not in taken:
        raise PosgapError("slope: is that of a decay: give `encoding` decay, or leave it out")
    if config.rope_theta != config.default("rope_theta") and encoded.scores is None:
        raise PosgapError("rope_theta: is the base of RoPE: give `encoding` rope, or leave it out")
    if encoded.factors:
        _require_each_layer("rope_factors", encoded.factors, n_layers)
    if isinstance(encoded.scores, Sequence):
        by = "rope_theta" if len(config.rope_theta) > 1 else "the measured encoding"
        _require_each_layer(by, encoded.scores, n_layers)


def _masks(config: RolloutPredictConfig, measured: Measurement | None, n: int, n_layers: int) -> Mask | list[Mask]:
    """The mask of all layers, or of each."""
    if config.window and config.mask != "window":
        raise PosgapError("window: is that of a mask: give `mask` window, or leave it out")
    if measured and config.mask == "measured":
        masks = []
        for layer, seen in enumerate(_require_each_layer("the measured windows", measured.windows, n_layers), start=1):
            if seen is None:
                raise PosgapError(
                    f"mask: layer {layer} of the measured model sees no window that ends with the token: give another "
                    "mask"
                )
            # What saw all of the texts is taken for a layer without a window.
            masks.append(Mask.causal(n) if seen >= measured.sequence_length else Mask.window(seen))
        return masks
    if len(config.window) > 1:
        widths = _require_each_layer("window", config.window, n_layers)
        return [Mask.window(width) if width else Mask.causal(n) for width in widths]
    width = config.window[0] if config.window else 0
    if {"window": width, "prefix": config.prefix}.get(config.mask) == 0:
        raise PosgapError(f"{config.mask}: mask {config.mask} needs a size: give at least 1 token")
    return {
        "causal": lambda: Mask.causal(n),
        "full": lambda: Mask.full(n),
        "window": lambda: Mask.window(width),
        "prefix": lambda: Mask.with_prefix(n, config.prefix),
    }[config.mask]()


def _encoding(config: RolloutPredictConfig, measured: Measurement | None, n_heads: int) -> PositionScores:
    """The position encoding's part of the scores, from the config or as it was measured on the model."""
    encoding, facts = POSITION_ENCODINGS[config.encoding], dict[str, Any]()
    if measured and encoding.of_measurement:
        encoding, facts = of_model(measured.encoding), dict(measured.encoding)
    return encoding.encode(encoding.parameters.of(config), facts, n_heads)


def _schedule(config: RolloutPredictConfig, measured: Measurement | None, n_layers: int) -> np.ndarray:
    if measured and config.residual == ["measured"]:
        if len(measured.lambdas) != n_layers:
            raise PosgapError(f"residual: measured for {len(measured.lambdas)} layers, but `layers` is {n_layers}")
        return require_lambdas(measured.lambdas)
    strengths: Any = config.residual  # numbers, where no word stands alone
    if len(strengths) > 1:
        return require_lambdas(_require_each_layer("residual", strengths, n_layers))
    return require_lambdas(np.full(n_layers, strengths[0]))


def _require_each_layer(name: str, values: Sequence[T], n_layers: int) -> Sequence[T]:
    if len(values) != n_layers:
        raise PosgapError(f"{name}: {len(values)} given for {n_layers} layers")
    return values


def _has_rows(values: Sequence[Any]) -> bool:
    return any(isinstance(row, list) for row in values)


def _table(name: str, rows: Sequence[Any], n_layers: int, n_heads: int) -> np.ndarray:
    """A number for each layer and head: a single row counts for all layers, a single number in each for all heads."""
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Sequence):
            raise PosgapError(f"{name}: some layers have a row, and layer {number} has a single number")
        if len(row) not in (1, n_heads) or len(row) != len(rows[0]):
            raise PosgapError(f"{name}: {len(row)} given for {n_heads} heads" + f" in layer {number}" * (len(rows) > 1))
    if len(rows) not in (1, n_layers):
        raise PosgapError(f"{name}: {len(rows)} rows given for {n_layers} layers")
    return np.array(rows, dtype=float)


def _content(config: RolloutPredictConfig, measured: Measurement | None, n_layers: int, n_heads: int) -> np.ndarray:
    """The extra scores of tokens on themselves: [1, 1] for all layers and heads, [L, 1], or [L, H]."""
    if measured and config.content == ["heads"]:
        return np.array(measured.content)
    if measured and config.content == ["mean"]:
        return np.array([[np.mean(measured.content)]])
    if _has_rows(config.content):
        return _table("content", config.content, n_layers, n_heads)
    if len(config.content) > 1:
        return np.array([_require_each_layer("content", config.content, n_layers)]).T
    return np.array([config.content])
