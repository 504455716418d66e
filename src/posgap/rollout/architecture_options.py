"""Makes an architecture from its description, and from a measurement that fills in the rest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from posgap.foundation.errors import BadOption
from posgap.rollout.architecture import Architecture
from posgap.rollout.attention import Mask
from posgap.rollout.encodings import alibi_slopes, require_lambdas, rope_angles, rotation_scores
from posgap.rollout.files import Measurement

HEAD_SIZE = 64  # of an unmeasured model, whose planes RoPE rotates
T = TypeVar("T")


@dataclass(frozen=True)
class Description:
    """A user's description of an architecture, as the options of `rollout predict` explain it.

    A measurement supplies sizes of 0, everything that is "measured", and content "heads". `given` names the values that
    the user gave and that are no defaults: each must have an effect.
    """

    sequence_length: int
    layers: int
    heads: int
    mask: str
    window: Sequence[int]
    prefix: int
    encoding: str
    slope: Sequence[Any]
    rope_theta: Sequence[float]
    rope_factors: Sequence[Any]
    residual: Sequence[Any]
    content: Sequence[Any]
    given: frozenset[str] = frozenset()


def build_architecture(description: Description, measured: Measurement | None) -> tuple[Architecture, int]:
    """Returns the architecture that the description and the measurement give, and its number of heads.

    `PosgapError` if they contradict each other, or leave something out.
    """
    sizes = {}
    for name in ("sequence_length", "layers", "heads"):
        sizes[name] = getattr(description, name) or getattr(measured, name, 0)
        if not sizes[name]:
            raise BadOption(f"{name}: must be given, or taken from a `measurement`")
    n, n_layers, n_heads = sizes.values()
    of_measurement = {
        "encoding": description.encoding == "measured",
        "mask": description.mask == "measured",
        "residual": description.residual == ["measured"],
        "content": description.content == ["heads"],
    }
    if measured is None and any(of_measurement.values()):
        wanting = next(name for name, wants in of_measurement.items() if wants)
        raise BadOption(f"{wanting}: needs measured values: give a `measurement`")
    architecture = Architecture(
        n,
        _masks(description, measured, n, n_layers),
        _schedule(description, measured, n_layers),
        diagonal=_content(description, measured, n_layers, n_heads),
        **_encoding(description, measured, n_layers, n_heads),
    )
    return architecture, n_heads


def _encoding(description: Description, measured: Measurement | None, n_layers: int, n_heads: int) -> dict[str, Any]:
    """Returns the fields of an `Architecture` that say how position enters its scores, as described or measured; none
    without positions, and for learned ones, which no architecture determines."""
    kind: str = description.encoding
    facts: Mapping[str, Any] = {}
    if measured and kind == "measured":
        kind = measured.encoding["kind"]
        facts = measured.encoding
    if kind != "rope" and description.rope_factors:
        raise BadOption("rope_factors: need `encoding` rope; give that, or leave them out")
    if kind != "rope" and "rope_theta" in description.given:
        raise BadOption("rope_theta: needs `encoding` rope; give that, or leave it out")
    if description.encoding != "decay" and "slope" in description.given:
        raise BadOption("slope: only `encoding` decay has one: give that, or leave slope out")
    if kind == "rope":
        return _rotation(description, facts, n_layers)
    if kind not in ("decay", "alibi"):
        return {}
    slopes: Sequence[Any] = description.slope
    if kind == "alibi":
        slopes = facts.get("slopes") or alibi_slopes(n_heads).tolist()
    if len(slopes) not in (1, n_heads) or min(slopes) < 0:
        raise BadOption(f"slope: give one that is not negative, for all or for each of {n_heads} heads")
    return {"slopes": np.array([slopes], dtype=float)}


def _rotation(description: Description, facts: Mapping[str, Any], n_layers: int) -> dict[str, Any]:
    """RoPE's scores by distance, of each layer; None of a layer without positions. Layers of the same angles share a
    function, so that they are computed once."""
    bases = description.rope_theta
    size = facts.get("head_size", HEAD_SIZE)
    by = "rope_theta"
    if min(bases, default=-1) < 0:
        raise BadOption("rope_theta: give one that is not negative, for all layers or for each")
    factors = description.rope_factors or facts.get("factors", [])
    seen = facts.get("frequencies", [])
    if seen and None not in seen and len(bases) == 1 and not description.rope_factors:
        # The measured rotation of the layers, including base, scaling and factors.
        angles = seen
        factors = []
        by = "the measured encoding"
    else:
        bases = bases if len(bases) > 1 else [facts.get("theta", bases[0])]
        angles = [rope_angles(base, size) if base else [] for base in bases]
    if all(np.array_equal(turned, angles[0]) for turned in angles):
        angles = [angles[0]] * n_layers  # if alike, they apply to any number of layers
    _require_each_layer(by, angles, n_layers)
    divisors = _require_each_layer("rope_factors", factors, n_layers) if factors else [1.0] * n_layers
    scores = []
    by_angles = dict[tuple[float, ...], Any]()
    for turned, divisor in zip(angles, divisors):
        key = tuple(np.asarray(turned, dtype=float) / divisor)
        scores.append(by_angles.setdefault(key, partial(rotation_scores, angles=key) if any(key) else None))
    return {"scores": scores}


def _masks(description: Description, measured: Measurement | None, n: int, n_layers: int) -> Mask | list[Mask]:
    """The mask of all layers, or of each."""
    if description.window and description.mask != "window":
        raise BadOption("window: only `mask` window has one: give that, or leave window out")
    if measured and description.mask == "measured":
        masks = []
        for layer, seen in enumerate(_require_each_layer("the measured windows", measured.windows, n_layers), start=1):
            if seen is None:
                raise BadOption(
                    f"mask: layer {layer} of the measured model sees no window that ends with the token: give another "
                    "mask"
                )
            # A layer that saw all of the texts counts as one without a window.
            masks.append(Mask.causal(n) if seen >= measured.sequence_length else Mask(seen))
        return masks
    if len(description.window) > 1:
        widths = _require_each_layer("window", description.window, n_layers)
        return [Mask(width) if width else Mask.causal(n) for width in widths]
    width = description.window[0] if description.window else 0
    if {"window": width, "prefix": description.prefix}.get(description.mask) == 0:
        raise BadOption(f"{description.mask}: mask {description.mask} needs a size: give at least 1 token")
    return {
        "causal": Mask.causal(n),
        "full": Mask.full(n),
        "window": Mask(width),
        "prefix": Mask.with_prefix(n, description.prefix),
    }[description.mask]


def _schedule(description: Description, measured: Measurement | None, n_layers: int) -> np.ndarray:
    """The residual strength of each layer."""
    strengths: Any = description.residual
    if measured and strengths == ["measured"]:
        strengths = measured.lambdas
    elif len(strengths) == 1:
        strengths = strengths * n_layers
    return require_lambdas(_require_each_layer("residual", strengths, n_layers))


def _content(description: Description, measured: Measurement | None, n_layers: int, n_heads: int) -> np.ndarray:
    """The extra scores of tokens on themselves: [1, 1] for all layers and heads, [L, 1], or [L, H]."""
    if measured and description.content == ["heads"]:
        scores = np.array(_require_each_layer("content", measured.content, n_layers))
        if scores.shape[1] != n_heads:
            raise BadOption(f"content: {scores.shape[1]} given for {n_heads} heads")
        return scores
    if len(description.content) > 1:
        return np.array([_require_each_layer("content", description.content, n_layers)]).T
    return np.array([description.content])


def _require_each_layer(name: str, values: Sequence[T], n_layers: int) -> Sequence[T]:
    if len(values) != n_layers:
        raise BadOption(f"{name}: {len(values)} given for {n_layers} layers")
    return values
