"""Accuracy by where several gold documents begin and by the distance between them, apart."""

from collections.abc import Sequence
from itertools import product
from typing import Self

import numpy as np
from pydantic import model_validator

from posgap.foundation.files import Record
from posgap.measurement import statistics
from posgap.measurement.statistics import Points, ends
from posgap.tasks.spans import distance


class Margin(Record):
    """Accuracy by one side of the grid, averaged over the other: at each of `values`, and best minus worst of these.

    `gap_noise` is the gap expected by chance alone, and `p` that of the flatness test, small where accuracy is not the
    same at all values.
    """

    values: list[int]
    accuracy: list[Points]
    ci95: list[tuple[Points, Points]]
    gap: Points
    gap_ci95: tuple[Points, Points]
    gap_noise: Points
    p: float

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        if not len(self.values) == len(self.accuracy) == len(self.ci95):
            raise ValueError(f"{len(self.accuracy)} accuracies for {len(self.values)} values")
        return self


class Grid(Record):
    """The figures of a sweep of every first position with every distance.

    Since all distances were asked at every position, the one is not confounded with the other. `far_minus_near` is the
    accuracy at the largest distance minus that at the smallest, of the same examples at the same first positions.
    """

    by_position: Margin
    by_distance: Margin
    far_minus_near: float
    far_minus_near_ci95: tuple[float, float]

    def effect_sentences(self) -> list[str]:
        """Returns the effects of position and of distance as sentences."""
        position, apart = self.by_position, self.by_distance
        return [
            f"By absolute position, averaged over distances, the gap is {_in_words(position)}.",
            f"By the distance between the gold documents, averaged over positions, it is {_in_words(apart)}; at "
            f"distance {apart.values[-1]} accuracy differs from that at {apart.values[0]} by "
            f"{self.far_minus_near:+.1f} points ({ends(self.far_minus_near_ci95, '+.1f')}).",
        ]


def _in_words(margin: Margin) -> str:
    return f"{margin.gap:.1f} points ({ends(margin.gap_ci95)}; by chance about {margin.gap_noise:.1f})"


def grid_of(correct: np.ndarray, placements: Sequence[Sequence[int]], seed: int) -> Grid | None:
    """The figures of `correct [E, P]`; None unless the placements are every first position with every distance, of
    evenly spaced gold documents, at least two of each."""
    cells = {(distance(positions), positions[0]): i for i, positions in enumerate(placements) if len(positions) > 1}
    distances, firsts = sorted({step for step, _ in cells}), sorted({first for _, first in cells})
    if 0 in distances or min(len(distances), len(firsts)) < 2 or len(cells) != len(placements):
        return None
    if len(cells) != len(distances) * len(firsts):
        return None
    order = [cells[cell] for cell in product(distances, firsts)]
    scores = np.asarray(correct, np.float64)[:, order]
    scores = scores.reshape(len(scores), len(distances), len(firsts))
    difference, interval = statistics.paired_difference(scores[:, -1], scores[:, 0])
    return Grid(
        by_position=_margin(firsts, scores.mean(axis=1), seed),
        by_distance=_margin(distances, scores.mean(axis=2), seed),
        far_minus_near=difference,
        far_minus_near_ci95=interval,
    )


def _margin(values: list[int], scores: np.ndarray, seed: int) -> Margin:
    accuracy = statistics.accuracy(scores)
    return Margin(
        values=values,
        accuracy=accuracy.tolist(),
        ci95=statistics.mean_interval(scores).tolist(),
        gap=statistics.gap(accuracy),
        gap_ci95=statistics.gap_interval(scores),
        gap_noise=statistics.gap_noise(scores, np.random.default_rng(seed)),
        p=statistics.flatness_p(scores),
    )
