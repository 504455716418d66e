"""The genetic algorithm that proposes control points, and learns from their fitness; higher fitness is better.

It is deterministic: equal arguments and equal fitness values give equal proposals.
"""

from collections.abc import Sequence

import numpy as np

from posgap.mitigations.curves import Curve


class Genetic:
    """The constrained genetic algorithm of LPES.

    The `elite` best candidates, but never all, survive a generation. Parents are the winners of tournaments among
    `tournament` candidates. Each control point of a child lies between those of its parents, and with probability
    `mutation_rate` (but at least one point of each child) it moves by at most `mutation`. Bounds and monotonicity are
    the curve's.
    The first generation is random, except for a flat curve at the lower bound.
    """

    def __init__(
        self,
        curve: Curve,
        n_layers: int,
        population: int,
        seed: int,
        elite: int = 2,
        tournament: int = 3,
        mutation: float = 0.25,
        mutation_rate: float = 0.5,
    ):
        self.curve, self.k, self.population = curve, curve.n_points(n_layers), population
        self.elite, self.tournament = min(elite, population - 1), tournament
        self.mutation, self.mutation_rate = mutation, mutation_rate
        self.rng = np.random.default_rng(seed)
        self.ranked: list[np.ndarray] = []

    def ask(self) -> list[np.ndarray]:
        """The control points `[k]` of the next generation's candidates."""
        if not self.ranked:
            drawn = self.rng.uniform(self.curve.low, self.curve.high, (self.population - 1, self.k))
            return [self.curve.constrain(points) for points in (np.full(self.k, self.curve.low), *drawn)]
        children = [self._child() for _ in range(self.population - self.elite)]
        return self.ranked[: self.elite] + children

    def tell(self, points: Sequence[np.ndarray], fitness: Sequence[float]) -> None:
        """Takes the fitness of each of the `points` that `ask` last proposed."""
        self.ranked = [points[i] for i in np.argsort(-np.asarray(fitness), kind="stable")]

    def _parent(self) -> np.ndarray:
        return self.ranked[self.rng.integers(len(self.ranked), size=self.tournament).min()]

    def _child(self) -> np.ndarray:
        first, second = self._parent(), self._parent()
        crossed = first + self.rng.random(self.k) * (second - first)
        moves = self.rng.random(self.k) < self.mutation_rate
        moves[self.rng.integers(self.k)] = True
        return self.curve.constrain(crossed + moves * self.rng.uniform(-self.mutation, self.mutation, self.k))
