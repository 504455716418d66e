"""The search for factors: a genetic algorithm proposes generations of control points, which are scored until the last
generation, or until they no longer improve.

It is deterministic: equal arguments and equal fitness values give equal proposals. Higher fitness is better.
"""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from posgap.mitigations.curves import Candidate, Curve

log = logging.getLogger(__name__)
FINALISTS = 3  # best candidates, which a search returns
PATIENCE = 4  # generations without improvement that end a search
ELITE = 2  # best candidates, which survive a generation
TOURNAMENT = 3  # candidates that compete to be a parent
MUTATION = 0.25  # largest change of a control point by mutation
MUTATION_RATE = 0.5  # share of the control points that mutate


class Genetic:
    """A constrained genetic algorithm, posgap's own, after LPES.

    The `ELITE` best candidates, but never all, survive a generation. Parents are the winners of tournaments among
    `TOURNAMENT` candidates. Each control point of a child lies between its parents' points. With probability
    `MUTATION_RATE` (but at least one point of each child) it moves by at most `MUTATION`. Bounds are the curve's. The
    first generation is random, except for a flat curve at the lower bound.
    """

    def __init__(self, curve: Curve, n_layers: int, population: int, seed: int):
        self.curve = curve
        self.k = curve.n_points(n_layers)
        self.population = population
        self.elite = min(ELITE, population - 1)
        self.rng = np.random.default_rng(seed)
        self.ranked: list[np.ndarray] = []

    def propose_points(self) -> list[np.ndarray]:
        """The control points `[k]` of the next generation's candidates."""
        if not self.ranked:
            drawn = self.rng.uniform(self.curve.low, self.curve.high, (self.population - 1, self.k))
            return [self.curve.constrain(points) for points in (np.full(self.k, self.curve.low), *drawn)]
        children = [self._child() for _ in range(self.population - self.elite)]
        return self.ranked[: self.elite] + children

    def rank_points(self, points: Sequence[np.ndarray], fitness: Sequence[float]) -> None:
        """Takes the fitness of each of the `points` that `propose_points` last gave."""
        self.ranked = [points[at] for at in np.argsort(-np.asarray(fitness), kind="stable")]

    def _parent(self) -> np.ndarray:
        return self.ranked[self.rng.integers(len(self.ranked), size=TOURNAMENT).min()]

    def _child(self) -> np.ndarray:
        first = self._parent()
        second = self._parent()
        crossed = first + self.rng.random(self.k) * (second - first)
        moves = self.rng.random(self.k) < MUTATION_RATE
        moves[self.rng.integers(self.k)] = True
        return self.curve.constrain(crossed + moves * self.rng.uniform(-MUTATION, MUTATION, self.k))


@dataclass
class BestCandidate:
    """The best candidate of a search, and the search's history.

    `history` has one row per generation: `generation` (from 1), the fitness of the `best` candidate so far,
    `generation_best` and `generation_mean`. `finalists` are the points of the best candidates, this one first.
    """

    points: np.ndarray
    factors: Candidate
    fitness: float
    history: list[dict[str, float]] = field(default_factory=list)
    finalists: dict[Candidate, np.ndarray] = field(default_factory=dict)


def search_genetically(
    strategy: Genetic,
    curve: Curve,
    n_layers: int,
    score: Callable[[Sequence[Candidate]], list[float]],
    generations: int,
    on_generation: Callable[[dict[str, float]], None] = lambda row: None,
    patience: int = PATIENCE,
) -> BestCandidate:
    """Runs `generations` of `strategy`, and stops early after `patience` of them without improvement.

    `score` returns the fitness of each candidate, or, if time is over, of the first ones alone, which ends the search.
    Among equally good candidates the first stays the best.
    """
    best = BestCandidate(np.empty(0), (), -np.inf)
    since = 0
    reached: dict[Candidate, tuple[float, np.ndarray]] = {}
    for generation in range(1, generations + 1):
        proposed = strategy.propose_points()
        factors = [curve.factors(points, n_layers) for points in proposed]
        scores = score(factors)
        since += 1
        for points, candidate, fitness in zip(proposed, factors, scores):
            reached.setdefault(candidate, (fitness, points))
            if fitness > best.fitness:
                best = BestCandidate(points, candidate, fitness, best.history)
                since = 0
        if len(scores) < len(proposed):
            log.info("stopped: time is over, in generation %d", generation)
            break
        strategy.rank_points(proposed, scores)
        row = {
            "generation": generation,
            "best": best.fitness,
            "generation_best": max(scores),
            "generation_mean": float(np.mean(scores)),
        }
        best.history.append(row)
        on_generation(row)
        log.info("generation %d: best %.2f, mean %.2f", generation, best.fitness, row["generation_mean"])
        if since >= patience:
            log.info("stopped: no better candidate in %d generations", patience)
            break
    ranked = sorted(reached, key=lambda candidate: -reached[candidate][0])
    best.finalists = {candidate: reached[candidate][1] for candidate in ranked[:FINALISTS]}
    return best
