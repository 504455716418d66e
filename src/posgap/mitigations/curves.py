"""Curves over depth: a few control points give one factor per layer.

Every kind of curve is linear in the heights of its control points: `factors = basis @ points`. Each row of the basis
`[L, k]` is non-negative and sums to one. So for every kind the factors lie within the bounds of the points.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from posgap.mitigations.curve_kinds import CURVES

Candidate = tuple[float, ...]  # one factor per layer
# Finer than any difference that a search can resolve, and coarse enough for equal candidates to compare as equal.
DECIMALS = 4


@dataclass(frozen=True)
class Curve:
    """A family of curves: the name of its kind, the kind's own parameters (by default the kind's defaults) and the
    bounds `low` and `high` of control points."""

    kind: str = "bezier"
    parameters: dict[str, Any] = field(default_factory=dict)
    low: float = 1.0
    high: float = 2.0

    def n_points(self, n_layers: int) -> int:
        """k, the number of control points of a curve over `n_layers` layers."""
        kind = CURVES[self.kind]
        return kind.n_points(kind.parameters(**self.parameters), n_layers)

    def basis(self, n_layers: int) -> np.ndarray:
        """The weight of each control point in each layer's factor: `[L, k]`, with rows that sum to one."""
        depth = np.arange(n_layers) / max(n_layers - 1, 1)
        return CURVES[self.kind].basis(depth, self.n_points(n_layers))

    def as_record(self) -> dict[str, Any]:
        """The family as `scaling.json` records it."""
        return {"kind": self.kind, **self.parameters, "low": self.low, "high": self.high}

    def factors(self, points: np.ndarray, n_layers: int) -> tuple[float, ...]:
        """The factor of each layer for the control points `points [k]`, rounded to `DECIMALS`."""
        return tuple(np.round(self.basis(n_layers) @ points, DECIMALS).tolist())

    def constrain(self, points: np.ndarray) -> np.ndarray:
        """The points moved into the bounds."""
        return np.clip(np.round(points, DECIMALS), self.low, self.high)
