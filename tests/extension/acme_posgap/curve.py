"""A curve: flat, then one change at a share of the depth that can be chosen."""

from pydantic import Field

from posgap.foundation.registry import Parameters
from posgap.mitigations.curve_kinds import CurveKind


class Knee(Parameters):
    knees: int = Field(1, ge=1, description="knee: how often the slope changes")


def hats(depth, k):
    import numpy as np

    return np.maximum(0, 1 - abs(depth[:, None] * (k - 1) - np.arange(k)))


KNEE = CurveKind("knee", "straight pieces", lambda parameters, n_layers: parameters.knees + 2, hats, Knee)
