"""A position encoding: scores fall with the logarithm of distance (Kerple's logarithmic kernel)."""

from pydantic import Field

from posgap.foundation.registry import Parameters
from posgap.rollout.position_encodings import PositionEncoding, PositionScores


class Bend(Parameters):
    bend: float = Field(1.0, gt=0, description="kerple: how quickly scores fall near the token")


def encode(parameters, measured, n_heads):
    import numpy as np

    return PositionScores(scores=lambda distances: -np.log1p(parameters.bend * abs(distances)))


KERPLE = PositionEncoding("kerple", "scores fall with the logarithm of distance", encode, Bend)
