"""The search: generations of candidates are scored until the last one, or until they no longer improve."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from posgap.mitigations.curves import Candidate, Curve
from posgap.mitigations.strategies import Genetic

log = logging.getLogger(__name__)
FINALISTS = 3


class Score(NamedTuple):
    """A candidate's fitness; `complete` if it was evaluated on all examples."""

    fitness: float
    complete: bool


@dataclass
class Best:
    """The best candidate of a search, and the search's history.

    `history` has one row per generation: `generation` (from 1), the fitness of the `best` candidate so far,
    `generation_best` and `generation_mean`. `finalists` are the points of the best candidates, this one first.
    """

    points: np.ndarray
    factors: Candidate
    fitness: float
    history: list[dict[str, float]] = field(default_factory=list)
    finalists: dict[Candidate, np.ndarray] = field(default_factory=dict)


def search(
    strategy: Genetic,
    curve: Curve,
    n_layers: int,
    score: Callable[[Sequence[Candidate]], list[Score]],
    generations: int,
    patience: int,
    on_generation: Callable[[dict[str, float]], None] = lambda row: None,
) -> Best:
    """Runs `generations` of `strategy`, and stops early after `patience` of them without improvement (0: never).

    Only candidates whose score is complete can be the best; of equally good ones the first stays.
    """
    best, since = Best(np.empty(0), (), -np.inf), 0
    reached: dict[Candidate, tuple[float, np.ndarray]] = {}  # by every candidate whose score is complete
    for generation in range(1, generations + 1):
        proposed = strategy.ask()
        factors = [curve.factors(points, n_layers) for points in proposed]
        scores = score(factors)
        strategy.tell(proposed, [s.fitness for s in scores])
        since += 1
        for points, candidate, (fitness, complete) in zip(proposed, factors, scores):
            if complete:
                reached.setdefault(candidate, (fitness, points))
            if complete and fitness > best.fitness:
                best, since = Best(points, candidate, fitness, best.history), 0
        row = {
            "generation": generation,
            "best": best.fitness,
            "generation_best": max(s.fitness for s in scores),
            "generation_mean": float(np.mean([s.fitness for s in scores])),
        }
        best.history.append(row)
        on_generation(row)
        log.info("generation %d: best %.2f, mean %.2f", generation, best.fitness, row["generation_mean"])
        if patience and since >= patience:
            log.info("stopped: no better candidate in %d generations", patience)
            break
    ranked = sorted(reached, key=lambda candidate: -reached[candidate][0])
    best.finalists = {candidate: reached[candidate][1] for candidate in ranked[:FINALISTS]}
    return best
