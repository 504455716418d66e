"""The position encodings that a prediction can assume."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.foundation.registry import Numbers, NumbersOrRows, Parameters, PositiveNumbers, Registry

if TYPE_CHECKING:
    import numpy as np

    Scores = Callable[[np.ndarray], np.ndarray]


HEAD_SIZE = 64  # of a model that was not measured, where RoPE turns a head's planes


class PositionScores(NamedTuple):
    """The part of an attention score that the positions i of the query and j of the key decide.

    Either `slopes`, one per head or a single one for all heads, or a row of those for each layer, which subtract
    slope * |i - j| from the score; or `scores`, a function from signed distances i - j of any shape to scores of that
    shape, or one for each layer, None for a layer without positions. `factors`, one per layer, divide the distances
    of `scores`.
    """

    slopes: Sequence[float | Sequence[float]] = (0.0,)
    scores: "Scores | Sequence[Scores | None] | None" = None
    factors: Sequence[float] = ()


@dataclass(frozen=True)
class PositionEncoding:
    """A position encoding that a prediction can assume.

    `encode(parameters, measured, n_heads)` returns its part of the scores; `measured` is the encoding as it was
    measured on a model (see `Measurement.encoding`), empty if none was measured. `of_measurement` marks the choice of
    whichever encoding the measured model has.
    """

    name: str
    help: str
    encode: Callable[[Any, Mapping[str, Any], int], PositionScores]
    parameters: type[Parameters] = Parameters
    of_measurement: bool = False


class Slope(Parameters):
    slope: NumbersOrRows = Field(
        [0.223],
        description="decay: how much the score falls per token of distance (m): one number, or one for each head, "
        "separated by commas, or a row of those for each layer, separated by semicolons",
    )


class Rotation(Parameters):
    rope_theta: Numbers = Field(
        [10000.0],
        description="rope: base of RoPE's angles (theta): one number, or one for each layer, separated by commas; 0: a "
        "layer without positions",
    )
    rope_factors: PositiveNumbers = Field(
        [], description="rope: one factor per layer that divides positions (LPES); empty: the measured model's, or none"
    )


def _decay(parameters: Slope, measured: Mapping[str, Any], n_heads: int) -> PositionScores:
    least = 0.0 if parameters.slope else -1.0
    for row in parameters.slope:
        least = min([least, *(row if isinstance(row, list) else [row])])
    if least < 0:
        raise PosgapError(f"slope: give one that is not negative, for all or for each of {n_heads} heads")
    return PositionScores(slopes=parameters.slope)


def _alibi(parameters: Parameters, measured: Mapping[str, Any], n_heads: int) -> PositionScores:
    from posgap.rollout.encodings import alibi_slopes

    return PositionScores(slopes=measured["slopes"] if "slopes" in measured else alibi_slopes(n_heads).tolist())


def _rope(parameters: Rotation, measured: Mapping[str, Any], n_heads: int) -> PositionScores:
    from posgap.rollout.encodings import rope_angles, rotation_scores

    bases, size = parameters.rope_theta, measured.get("head_size", HEAD_SIZE)
    if min(bases, default=-1) < 0:
        raise PosgapError("rope_theta: give one that is not negative, for all layers or for each")
    factors = parameters.rope_factors or measured.get("factors", [])
    if any(isinstance(factor, list) for factor in factors):
        raise PosgapError(
            "encoding: the measured model has a RoPE factor per head, but a prediction takes one per layer: give "
            "`rope_factors`"
        )

    def scores_by(angles: "Sequence[float] | np.ndarray") -> "Scores":
        return partial(rotation_scores, angles=angles)

    seen = measured.get("frequencies", [])
    if len(bases) > 1:
        # Layers of one base share a function, so that they are computed once.
        by_base = {base: scores_by(rope_angles(base, size)) if base else None for base in bases}
        return PositionScores(scores=list(map(by_base.get, bases)), factors=factors)
    if seen and None not in seen and not parameters.rope_factors:
        # As the layers were seen to turn, with whatever base, scaling or factors.
        by_angles = {tuple(angles): scores_by(angles) if any(angles) else None for angles in seen}
        each = list(map(by_angles.get, map(tuple, seen)))
        return PositionScores(
            scores=each if len(by_angles) > 1 else each[0]
        )  # of which there may be any number of layers
    base = measured.get("theta", bases[0])
    return PositionScores(scores=scores_by(rope_angles(base, size)) if base else None, factors=factors)


def _nothing(parameters: Parameters, measured: Mapping[str, Any], n_heads: int) -> PositionScores:
    return PositionScores()


def of_model(measured: Mapping[str, Any]) -> PositionEncoding:
    """The encoding that was measured on a model; none for learned positions, which no architecture determines."""
    return POSITION_ENCODINGS[measured["kind"]] if measured["kind"] in POSITION_ENCODINGS.names() else NONE


MEASURED = PositionEncoding("measured", "the measured model's encoding", _nothing, of_measurement=True)
NONE = PositionEncoding("none", "no position encoding", _nothing)
DECAY = PositionEncoding("decay", "scores fall linearly with distance", _decay, Slope)
ALIBI = PositionEncoding("alibi", "the same, with ALiBi's slope for each head", _alibi)
ROPE = PositionEncoding("rope", "queries and keys are rotated by their positions", _rope, Rotation)

POSITION_ENCODINGS: Registry[PositionEncoding] = Registry(
    "position encoding",
    "posgap.position_encodings",
    MEASURED,
    NONE,
    DECAY,
    ALIBI,
    ROPE,
)
