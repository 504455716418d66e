"""The search: generations of a strategy, scored, until they are over or no longer help."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from posgap.scaling.curves import Curve
from posgap.scaling.fitness import Candidate
from posgap.scaling.scores import Score
from posgap.scaling.strategies import Strategy

log = logging.getLogger(__name__)


@dataclass
class Found:
    """The best candidate of a search, and how the search went.

    `history` has one row a generation: `generation` from 1, `best` so far, `generation_best`,
    `generation_mean`.
    """

    points: np.ndarray
    factors: Candidate
    fitness: float
    history: list[dict[str, float]] = field(default_factory=list)


def search(
    strategy: Strategy,
    curve: Curve,
    n_layers: int,
    score: Callable[[Sequence[Candidate]], list[Score]],
    generations: int,
    patience: int,
    on_generation: Callable[[dict[str, float]], None] = lambda row: None,
) -> Found:
    """Runs `generations` of `strategy`; stops early after `patience` without improvement (0: never).

    Only candidates whose score is complete can be the best; of equals the first found stays.
    """
    best, since = Found(np.empty(0), (), -np.inf), 0
    for generation in range(1, generations + 1):
        asked = strategy.ask()
        factors = [curve.factors(points, n_layers) for points in asked]
        scores = score(factors)
        strategy.tell(asked, [s.fitness for s in scores])
        since += 1
        for points, candidate, found in zip(asked, factors, scores):
            if found.complete and found.fitness > best.fitness:
                best, since = Found(points, candidate, found.fitness, best.history), 0
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
            log.info("no better candidate in %d generations: stopped", patience)
            break
    return best
