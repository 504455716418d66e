"""The kinds of curves over depth; `posgap.mitigations.curves` describes their common properties."""

from collections.abc import Callable
from dataclasses import dataclass
from math import comb
from typing import TYPE_CHECKING, Any

from pydantic import Field

from posgap.foundation.registry import Parameters, Registry

if TYPE_CHECKING:
    import numpy as np


class CurveOrder(Parameters):
    order: int = Field(3, ge=0, description="bezier, step: number of control points minus 1; 3 gives the cubic Bezier")


@dataclass(frozen=True)
class CurveKind:
    """A kind of curve.

    `n_points(parameters, n_layers)` is k, the number of its control points. `basis(depth [L], k)` is the weight of
    each control point in each layer's factor, `[L, k]` with rows that sum to one. `depth` runs evenly from 0 at the
    first layer to 1 at the last.
    """

    name: str
    help: str
    n_points: Callable[[Any, int], int]
    basis: "Callable[[np.ndarray, int], np.ndarray]"
    parameters: type[Parameters] = Parameters
    smooth: bool = False  # whether the control points lie evenly over depth, so that a plot can show them


def bernstein(x: "np.ndarray", order: int) -> "np.ndarray":
    """Bernstein polynomials `[X, order + 1]` at `x [X]` in [0, 1]: the weights of Bezier points."""
    import numpy as np

    i = np.arange(order + 1)
    binomial = np.array([comb(order, j) for j in i])
    return binomial * x[:, None] ** i * (1 - x[:, None]) ** (order - i)


def _bernstein(depth: "np.ndarray", k: int) -> "np.ndarray":
    return bernstein(depth, k - 1)


def _run_weights(depth: "np.ndarray", k: int) -> "np.ndarray":
    import numpy as np

    # The deepest layer, at depth 1, belongs to the last run.
    return np.eye(k)[np.minimum((depth * k).astype(int), k - 1)]


def _one_each(depth: "np.ndarray", k: int) -> "np.ndarray":
    import numpy as np

    return np.eye(k)


def _constant(depth: "np.ndarray", k: int) -> "np.ndarray":
    import numpy as np

    return np.ones((len(depth), 1))


BEZIER = CurveKind("bezier", "a Bezier curve", lambda p, n_layers: p.order + 1, _bernstein, CurveOrder, smooth=True)
LINEAR = CurveKind("linear", "a straight line", lambda p, n_layers: 2, _bernstein, smooth=True)
STEP = CurveKind(
    "step", "equal runs of layers with one factor per run", lambda p, n_layers: p.order + 1, _run_weights, CurveOrder
)
FREE = CurveKind("free", "an independent factor for each layer", lambda p, n_layers: n_layers, _one_each)
UNIFORM = CurveKind("uniform", "one factor for all layers", lambda p, n_layers: 1, _constant)

CURVES: Registry[CurveKind] = Registry(
    "curve",
    "posgap.curves",
    BEZIER,
    LINEAR,
    STEP,
    FREE,
    UNIFORM,
)
