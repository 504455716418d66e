"""Search strategies behind one interface: they propose control points, and learn from the fitness of these.

A strategy is deterministic: equal arguments and equal fitness values give equal proposals.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from posgap.foundation.errors import PosgapError
from posgap.scaling.curves import Curve


class Strategy(Protocol):
    """Proposes one generation of control points at a time; higher fitness is better."""

    def ask(self) -> list[np.ndarray]:
        """The control points `[k]` of the next generation's candidates."""
        ...

    def tell(self, points: Sequence[np.ndarray], fitness: Sequence[float]) -> None:
        """Takes the fitness of each of the `points` that `ask` last proposed."""
        ...


class Genetic:
    """The constrained genetic algorithm of LPES.

    The `elite` best candidates survive a generation. Parents are the winners of tournaments among `tournament`
    candidates. Each control point of a child lies between those of its parents, and with probability `mutation_rate`
    (but at least one point of each child) it moves by at most `mutation`. Bounds and monotonicity are the curve's.
    The first generation is random, except for a flat curve at the lower bound.
    """

    def __init__(
        self,
        curve: Curve,
        n_layers: int,
        population: int,
        elite: int,
        tournament: int,
        mutation: float,
        mutation_rate: float,
        seed: int,
    ):
        self.curve, self.k, self.population = curve, curve.n_points(n_layers), population
        self.elite, self.tournament = elite, tournament
        self.mutation, self.mutation_rate = mutation, mutation_rate
        self.rng = np.random.default_rng(seed)
        self.ranked: list[np.ndarray] = []

    def ask(self) -> list[np.ndarray]:
        if not self.ranked:
            drawn = self.rng.uniform(self.curve.low, self.curve.high, (self.population - 1, self.k))
            return [self.curve.constrain(points) for points in (np.full(self.k, self.curve.low), *drawn)]
        children = [self._child() for _ in range(self.population - self.elite)]
        return self.ranked[: self.elite] + children

    def tell(self, points: Sequence[np.ndarray], fitness: Sequence[float]) -> None:
        self.ranked = [points[i] for i in np.argsort(-np.asarray(fitness), kind="stable")]

    def _parent(self) -> np.ndarray:
        return self.ranked[self.rng.integers(len(self.ranked), size=self.tournament).min()]

    def _child(self) -> np.ndarray:
        first, second = self._parent(), self._parent()
        crossed = first + self.rng.random(self.k) * (second - first)
        moves = self.rng.random(self.k) < self.mutation_rate
        moves[self.rng.integers(self.k)] = True
        return self.curve.constrain(crossed + moves * self.rng.uniform(-self.mutation, self.mutation, self.k))


class CMAES:
    """CMA-ES from the library `cma` (Hansen 2016), for comparison with the genetic algorithm.

    It starts in the middle between the bounds, with a quarter of the distance between them as standard deviation.
    """

    def __init__(self, curve: Curve, n_layers: int, population: int, seed: int):
        import cma

        k, rng = curve.n_points(n_layers), np.random.default_rng(seed)
        if k < 2:
            raise PosgapError(f"cma needs two control points or more, and a {curve.kind} curve has {k}; use genetic")
        self.curve = curve
        options = {
            **{"bounds": [curve.low, curve.high], "popsize": population, "verbose": -9},
            **{"seed": np.nan, "randn": lambda *shape: rng.standard_normal(shape)},
        }
        middle, width = (curve.low + curve.high) / 2, curve.high - curve.low
        self.cma = cma.CMAEvolutionStrategy(np.full(k, middle), width / 4, options)
        self.proposed: list[np.ndarray] = []

    def ask(self) -> list[np.ndarray]:
        self.proposed = self.cma.ask()
        return [self.curve.constrain(points) for points in self.proposed]

    def tell(self, points: Sequence[np.ndarray], fitness: Sequence[float]) -> None:
        # Report each fitness under the unconstrained point that CMA-ES itself proposed.
        self.cma.tell(self.proposed, [-value for value in fitness])
