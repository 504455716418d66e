"""How many examples a sweep needs to see a difference of so many points.

Outcomes on one example are taken to correlate by rho at any two placements, and those of two models
as `agreement` says: 1 where they find the same examples hard, 0 where they have nothing in common.
With p the mean, an outcome's variance p (1 - p) is then rho parts the example's and 1 - rho parts
its own at that placement.
"""

import json
import logging
import math
from typing import NamedTuple

import click
import numpy as np
from scipy import special

from posgap.config import PlanConfig
from posgap.errors import PosgapError
from posgap.measurement.statistics import CONFIDENCE
from posgap.measurement.sweeps import Evidence
from posgap.storage.inputs import with_local_paths

log = logging.getLogger(__name__)


class Assumed(NamedTuple):
    """What a sweep is expected to find: number of placements, mean (0 to 1), correlation and agreement."""

    placements: int
    mean: float
    correlation: float
    agreement: float

    @property
    def own_variance(self) -> float:
        """Variance of an outcome that is its placement's alone."""
        return self.mean * (1 - self.mean) * (1 - self.correlation)

    @property
    def shared_variance(self) -> float:
        """Variance of an outcome that is its example's."""
        return self.mean * (1 - self.mean) * self.correlation


def examples_for_gap(gap: float, assumed: Assumed, power: float) -> int:
    """Examples for which Cochran's Q finds a gap (0 to 1) with this power, at the 5 % level.

    Counted for the gap that is hardest to see: one placement half of it above and one half of it
    below all others. Under it Q is noncentral chi-squared.
    """
    df = assumed.placements - 1
    needed = special.chndtrinc(special.chdtri(df, 1 - CONFIDENCE), df, 1 - power)
    return math.ceil(needed * assumed.own_variance / (gap**2 / 2))


def examples_for_difference(difference: float, variance: float, power: float) -> int:
    """Examples for which a paired difference (0 to 1) of this variance per example is found so often."""
    z = special.ndtri(0.5 + CONFIDENCE / 2) + special.ndtri(power)
    return math.ceil(z**2 * variance / difference**2)


@with_local_paths
def plan(config: PlanConfig) -> dict[str, int]:
    """Says how many examples are needed to see `config.detect` points; JSON goes to stdout."""
    assumed = _assumed(config)
    if not 0 < assumed.mean < 1 or assumed.own_variance < 1e-9:
        raise PosgapError("a mean of 0 or 100, or a correlation of 1, leaves nothing to chance: one example is enough")
    size, between_models = config.detect / 100, 2 * assumed.shared_variance * (1 - assumed.agreement)
    at_one, over_all = 2 * assumed.own_variance, 2 * assumed.own_variance / assumed.placements
    needed = {
        "gap": examples_for_gap(size, assumed, config.power),
        "mean_difference": examples_for_difference(size, between_models + over_all, config.power),
        "placement_difference": examples_for_difference(size, between_models + at_one, config.power),
    }
    log.info(
        "assuming a mean of %.1f over %d placements, a correlation of %.2f between placements, an agreement of %.2f "
        "between models", 100 * assumed.mean, assumed.placements, assumed.correlation, assumed.agreement,
    )  # fmt: skip
    words = {
        "gap": "a gap of one model",
        "mean_difference": "a difference of two models in the mean",
        "placement_difference": "a difference of two models at one placement",
    }
    for name, number in needed.items():
        log.info("%s of %g points: %d examples (power %.0f %%)", words[name], config.detect, number, 100 * config.power)
    click.echo(json.dumps({"detect": config.detect, "power": config.power, "examples": needed}))
    return needed


def _assumed(config: PlanConfig) -> Assumed:
    if config.sweep is None:
        return Assumed(config.n_docs, config.mean / 100, config.correlation, config.agreement)
    found = Evidence(config.sweep).correct
    mean, correlation = found.mean(), correlation_of_placements(found)
    return Assumed(found.shape[1], float(mean), correlation, config.agreement)


def correlation_of_placements(correct: np.ndarray) -> float:
    """Mean correlation of an example's scores at two placements, of `correct [E, P]`; 0 to 1."""
    varied = correct[:, correct.std(axis=0) > 0]
    if varied.shape[1] < 2:
        return 0.0
    off_diagonal = ~np.eye(varied.shape[1], dtype=bool)
    return float(np.clip(np.corrcoef(varied, rowvar=False)[off_diagonal].mean(), 0, 1))
