"""Curves over depth: few control points in, one factor per layer out.

Every kind of curve is linear in the heights of its control points: `factors = basis @ points`,
where each row of the basis `[L, k]` is non-negative and sums to one. So the factors lie within the
bounds of the points, and rise with depth where the points rise, whatever the kind.
"""

from dataclasses import dataclass, field
from math import comb
from typing import Any

import numpy as np

from posgap.choices import CURVES

MONOTONE = ("none", "increasing", "decreasing")
# Finer than any difference that a search can tell, and coarse enough for equal candidates to be equal.
DECIMALS = 4


@dataclass(frozen=True)
class Curve:
    """A family of curves: its kind by name, the kind's own parameters (its defaults where they are left out) and the
    constraints on control points."""

    kind: str = "bezier"
    parameters: dict[str, Any] = field(default_factory=dict)
    low: float = 1.0
    high: float = 2.0
    monotone: str = "none"

    def n_points(self, n_layers: int) -> int:
        """k: how many control points a curve over `n_layers` has."""
        kind = CURVES[self.kind]
        return kind.n_points(kind.parameters(**self.parameters), n_layers)

    def basis(self, n_layers: int) -> np.ndarray:
        """What each control point contributes to each layer: `[L, k]`, rows summing to one."""
        depth = np.arange(n_layers) / max(n_layers - 1, 1)
        return CURVES[self.kind].basis(depth, self.n_points(n_layers))

    def described(self) -> dict[str, Any]:
        """The family as `scaling.json` records it."""
        return {"kind": self.kind, **self.parameters, "low": self.low, "high": self.high, "monotone": self.monotone}

    def factors(self, points: np.ndarray, n_layers: int) -> tuple[float, ...]:
        """The factor of each layer, for control points `[k]`."""
        return tuple(np.round(self.basis(n_layers) @ points, DECIMALS).tolist())

    def constrain(self, points: np.ndarray) -> np.ndarray:
        """The nearest points that keep the bounds, put in order where the curve must be monotone."""
        points = np.clip(np.round(points, DECIMALS), self.low, self.high)
        if self.monotone == "none":
            return points
        ordered = np.sort(points)
        return ordered if self.monotone == "increasing" else ordered[::-1].copy()


def bernstein(x: np.ndarray, order: int) -> np.ndarray:
    """Bernstein polynomials `[X, order + 1]` at `x [X]` in [0, 1]: the weights of Bezier points."""
    i = np.arange(order + 1)
    binomial = np.array([comb(order, j) for j in i])
    x = np.asarray(x, dtype=np.float64)[:, None]
    return binomial * x**i * (1 - x) ** (order - i)
