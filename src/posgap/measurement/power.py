"""Computes how many examples a sweep needs to detect a difference in points.

Outcomes on one example are assumed to correlate by rho between any two placements. Those of two models correlate by
`agreement`: 1 if they find the same examples hard, 0 if they have nothing in common. With mean p, a share rho of an
outcome's variance p (1 - p) then belongs to the example and 1 - rho to the placement.
"""

import logging
import math
from typing import NamedTuple

import numpy as np
import scipy

from posgap.measurement.statistics import CONFIDENCE, LEVEL

log = logging.getLogger(__name__)
USUAL = 0.8  # how often a test is usually planned to succeed


class Assumptions(NamedTuple):
    """The expected findings of a sweep: number of placements, mean (0 to 1), correlation and agreement; and the share
    (0 to 1) of the error of 5 % that the gate's verdict on it has."""

    placements: int
    mean: float
    correlation: float
    agreement: float
    share: float = 1.0

    @property
    def error(self) -> float:
        """The error rate of each bound in the gate's rules."""
        return LEVEL * self.share

    @property
    def own_variance(self) -> float:
        """Variance of an outcome that is its placement's alone."""
        return self.mean * (1 - self.mean) * (1 - self.correlation)

    @property
    def shared_variance(self) -> float:
        """Variance of an outcome that is its example's."""
        return self.mean * (1 - self.mean) * self.correlation

    @property
    def between_models(self) -> float:
        """Variance of the difference of two models that is its example's."""
        return 2 * self.shared_variance * (1 - self.agreement)


def examples_by_cochran(gap: float, assumed: Assumptions, power: float) -> float:
    """Returns the examples with which Cochran's Q finds a gap (0 to 1) with this power, at the 5 % level, by the
    noncentral chi-squared distribution: one placement is half of the gap above all others, and one half of it below."""
    return noncentrality(assumed.placements, power) * assumed.own_variance / (gap**2 / 2)


def noncentrality(placements: int, power: float) -> float:
    """Returns the noncentrality at which Cochran's Q with this number of placements reaches the 5 % level with the
    given power."""
    df = placements - 1
    return float(scipy.special.chndtrinc(scipy.special.chdtri(df, 1 - CONFIDENCE), df, 1 - power))


def examples_for_difference(difference: float, variance: float, power: float, graded: bool = False) -> int:
    """Returns the examples needed to find a paired difference (0 to 1) with this variance per example this often.

    The bounds of `graded` differences, such as means over placements, count one more example that lost all
    (`statistics.chance_of_less`).
    """
    z = scipy.special.ndtri(0.5 + CONFIDENCE / 2) + scipy.special.ndtri(power)
    spread = z * math.sqrt(variance)
    lost = 1 + difference if graded else 0.0
    return math.ceil(((spread + math.sqrt(spread**2 + 4 * difference * lost)) / (2 * difference)) ** 2)


def log_assumptions(assumed: Assumptions) -> None:
    """Logs the assumptions of a plan."""
    log.info(
        "assuming a mean of %.1f over %d placements, a correlation of %.2f between placements, an agreement of %.2f "
        "between models", 100 * assumed.mean, assumed.placements, assumed.correlation, assumed.agreement,
    )  # fmt: skip


def assumptions_from_pair(correct: np.ndarray, reference: np.ndarray) -> Assumptions:
    """Returns the assumptions that a model's scores [E, P] and another model's on the same examples show.

    Examples' means contain placement noise, which two models do not share. So the means' correlation is divided by the
    share of variance that comes from the examples (Spearman's correction for attenuation).
    """
    correlation = correlation_of_placements(correct)
    means = np.stack([correct.mean(axis=1), reference.mean(axis=1)])
    shared = math.prod(_share_of_examples(scores) for scores in (correct, reference))
    agreement = np.corrcoef(means)[0, 1] / math.sqrt(shared) if shared and (means.std(axis=1) > 0).all() else 1.0
    return Assumptions(correct.shape[1], float(correct.mean()), correlation, float(np.clip(agreement, 0, 1)))


def _share_of_examples(correct: np.ndarray) -> float:
    """The share of the variance of examples' means, of `correct [E, P]`, that is the examples' (Spearman-Brown)."""
    correlation = correlation_of_placements(correct)
    placements = correct.shape[1]
    return placements * correlation / (1 + (placements - 1) * correlation)


def correlation_of_placements(correct: np.ndarray) -> float:
    """Mean correlation of an example's scores at two placements, of `correct [E, P]`; 0 to 1."""
    varied = correct[:, correct.std(axis=0) > 0]
    if varied.shape[1] < 2:
        return 0.0
    off_diagonal = ~np.eye(varied.shape[1], dtype=bool)
    return float(np.clip(np.corrcoef(varied, rowvar=False)[off_diagonal].mean(), 0, 1))
