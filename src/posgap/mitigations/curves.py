"""Bezier curves over depth: a few control points give one factor per layer.

A curve is linear in the heights of its control points: `factors = basis @ points`. Each row of the basis `[L, k]` is
non-negative and sums to one, so the factors lie within the bounds of the points.
"""

from dataclasses import asdict, dataclass
from math import comb
from typing import Any

import numpy as np

Candidate = tuple[float, ...]  # one factor per layer
# Finer than any difference that a search can resolve, and coarse enough for equal candidates to compare as equal.
DECIMALS = 4


def bernstein(x: np.ndarray, order: int) -> np.ndarray:
    """Bernstein polynomials `[X, order + 1]` at `x [X]` in [0, 1]: the weights of Bezier points."""
    i = np.arange(order + 1)
    binomial = np.array([comb(order, j) for j in i])
    return binomial * x[:, None] ** i * (1 - x[:, None]) ** (order - i)


@dataclass(frozen=True)
class Curve:
    """The Bezier curves of an `order`: 0 is one factor for all layers, 1 a straight line. `low` and `high` are the
    bounds of control points."""

    order: int = 3
    low: float = 1.0
    high: float = 2.0

    @property
    def n_points(self) -> int:
        """k, the number of control points."""
        return self.order + 1

    def basis(self, n_layers: int) -> np.ndarray:
        """The weight of each control point in each layer's factor: `[L, k]`, with rows that sum to one."""
        return bernstein(np.arange(n_layers) / max(n_layers - 1, 1), self.order)

    def as_record(self) -> dict[str, Any]:
        """The family as `scaling.json` records it."""
        return {"kind": "bezier", **asdict(self)}

    def factors(self, points: np.ndarray, n_layers: int) -> tuple[float, ...]:
        """The factor of each layer for the control points `points [k]`, rounded to `DECIMALS`."""
        return tuple(np.round(self.basis(n_layers) @ points, DECIMALS).tolist())

    def constrain(self, points: np.ndarray) -> np.ndarray:
        """The points moved into the bounds."""
        return np.clip(np.round(points, DECIMALS), self.low, self.high)
