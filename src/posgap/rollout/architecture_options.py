"""From the options of `rollout predict`, and a measurement that supplies what they leave out, to an architecture."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from posgap.foundation.errors import PosgapError
from posgap.options.rollout_predict import RolloutPredictConfig
from posgap.rollout.architecture import Architecture
from posgap.rollout.attention import Mask
from posgap.rollout.encodings import alibi_slopes, require_lambdas, rope_angles, rotation_scores
from posgap.rollout.files import Measurement

HEAD_SIZE = 64  # of a model that was not measured, where RoPE turns a head's planes
T = TypeVar("T")


def build_architecture(config: RolloutPredictConfig, measured: Measurement | None) -> tuple[Architecture, int]:
    """Returns the architecture that the config and the measurement describe, and its number of heads.

    `PosgapError` where they contradict each other, or leave something out.
    """
    sizes = {}
    for name in ("sequence_length", "layers", "heads"):
        sizes[name] = getattr(config, name) or getattr(measured, name, 0)
        if not sizes[name]:
            raise PosgapError(f"{name}: must be given, or taken from a `measurement`")
    n, n_layers, n_heads = sizes.values()
    of_measurement = {
        "encoding": config.encoding == "measured",
        "mask": config.mask == "measured",
        "residual": config.residual == ["measured"],
        "content": config.content == ["heads"],
    }
    if measured is None and any(of_measurement.values()):
        wanting = next(name for name, wants in of_measurement.items() if wants)
        raise PosgapError(f"{wanting}: needs measured values: give a `measurement`")
    architecture = Architecture(
        n,
        _masks(config, measured, n, n_layers),
        _schedule(config, measured, n_layers),
        diagonal=_content(config, measured, n_layers, n_heads),
        **_encoding(config, measured, n_layers, n_heads),
    )
    return architecture, n_heads


def _encoding(
    config: RolloutPredictConfig, measured: Measurement | None, n_layers: int, n_heads: int
) -> dict[str, Any]:
    """The fields of an `Architecture` that say how position enters its scores, from the config or as it was measured
    on the model; none without positions, and for learned ones, which no architecture determines."""
    kind: str = config.encoding
    facts: Mapping[str, Any] = {}
    if measured and kind == "measured":
        kind = measured.encoding["kind"]
        facts = measured.encoding
    if kind != "rope" and config.rope_factors:
        raise PosgapError("rope_factors: they divide RoPE's positions: give `encoding` rope, or leave them out")
    if kind != "rope" and config.rope_theta != config.default("rope_theta"):
        raise PosgapError("rope_theta: is the base of RoPE: give `encoding` rope, or leave it out")
    if config.encoding != "decay" and config.slope != config.default("slope"):
        raise PosgapError("slope: is that of a decay: give `encoding` decay, or leave it out")
    if kind == "rope":
        return _rotation(config, facts, n_layers)
    if kind not in ("decay", "alibi"):
        return {}
    slopes: Sequence[Any] = config.slope
    if kind == "alibi":
        slopes = facts.get("slopes") or alibi_slopes(n_heads).tolist()
    table = _table("slope", slopes if _has_rows(slopes) else [slopes], n_layers, n_heads)
    if table.min() < 0:
        raise PosgapError(f"slope: give one that is not negative, for all or for each of {n_heads} heads")
    return {"slopes": table}


def _rotation(config: RolloutPredictConfig, facts: Mapping[str, Any], n_layers: int) -> dict[str, Any]:
    """RoPE's scores by distance, of each layer; None of a layer without positions. Layers of the same angles share a
    function, so that they are computed once."""
    bases = config.rope_theta
    size = facts.get("head_size", HEAD_SIZE)
    by = "rope_theta"
    if min(bases, default=-1) < 0:
        raise PosgapError("rope_theta: give one that is not negative, for all layers or for each")
    factors = config.rope_factors or facts.get("factors", [])
    seen = facts.get("frequencies", [])
    if _has_rows(factors):
        raise PosgapError(
            "encoding: the measured model has a RoPE factor per head, but a prediction takes one per layer: give "
            "`rope_factors`"
        )
    if seen and None not in seen and len(bases) == 1 and not config.rope_factors:
        # As the layers were seen to turn, with whatever base, scaling or factors.
        angles = seen
        factors = []
        by = "the measured encoding"
    else:
        bases = bases if len(bases) > 1 else [facts.get("theta", bases[0])]
        angles = [rope_angles(base, size) if base else [] for base in bases]
    if all(np.array_equal(turned, angles[0]) for turned in angles):
        angles = [angles[0]] * n_layers  # alike, they are those of any number of layers
    _require_each_layer(by, angles, n_layers)
    divisors = _require_each_layer("rope_factors", factors, n_layers) if factors else [1.0] * n_layers
    scores = []
    by_angles = dict[tuple[float, ...], Any]()
    for turned, divisor in zip(angles, divisors):
        key = tuple(np.asarray(turned, dtype=float) / divisor)
        scores.append(by_angles.setdefault(key, partial(rotation_scores, angles=key) if any(key) else None))
    return {"scores": scores}


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
            masks.append(Mask.causal(n) if seen >= measured.sequence_length else Mask(seen))
        return masks
    if len(config.window) > 1:
        widths = _require_each_layer("window", config.window, n_layers)
        return [Mask(width) if width else Mask.causal(n) for width in widths]
    width = config.window[0] if config.window else 0
    if {"window": width, "prefix": config.prefix}.get(config.mask) == 0:
        raise PosgapError(f"{config.mask}: mask {config.mask} needs a size: give at least 1 token")
    return {
        "causal": Mask.causal(n),
        "full": Mask.full(n),
        "window": Mask(width),
        "prefix": Mask.with_prefix(n, config.prefix),
    }[config.mask]


def _schedule(config: RolloutPredictConfig, measured: Measurement | None, n_layers: int) -> np.ndarray:
    """The residual strength of each layer."""
    strengths: Any = config.residual
    if measured and strengths == ["measured"]:
        strengths = measured.lambdas
    elif len(strengths) == 1:
        strengths = strengths * n_layers
    return require_lambdas(_require_each_layer("residual", strengths, n_layers))


def _content(config: RolloutPredictConfig, measured: Measurement | None, n_layers: int, n_heads: int) -> np.ndarray:
    """The extra scores of tokens on themselves: [1, 1] for all layers and heads, [L, 1], or [L, H]."""
    if measured and config.content == ["heads"]:
        return _table("content", measured.content, n_layers, n_heads)
    if _has_rows(config.content):
        return _table("content", config.content, n_layers, n_heads)
    if len(config.content) > 1:
        return np.array([_require_each_layer("content", config.content, n_layers)]).T
    return np.array([config.content])


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
