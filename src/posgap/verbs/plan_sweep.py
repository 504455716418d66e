"""plan sweep: how many examples a sweep needs."""

import json
import logging

from posgap.foundation.errors import PosgapError
from posgap.foundation.printing import show
from posgap.measurement.evidence import Evidence
from posgap.measurement.power import (
    Assumptions,
    correlation_of_placements,
    examples_for_difference,
    log_assumptions,
)
from posgap.measurement.simulated_sweeps import examples_for_gap
from posgap.options.plan_sweep import ExpectedConfig, PlanConfig
from posgap.verbs.inputs import with_local_paths

log = logging.getLogger(__name__)


@with_local_paths
def plan_sweep(config: PlanConfig) -> dict[str, int]:
    """Says how many examples are needed to see `config.detect` points; JSON goes to stdout."""
    assumed = assumptions_from_config(config)
    if not 0 < assumed.mean < 1 or assumed.own_variance < 1e-9:
        raise PosgapError("a mean of 0 or 100, or a correlation of 1, leaves nothing to chance: one example is enough")
    size = config.detect / 100
    between_models = assumed.between_models
    at_one = 2 * assumed.own_variance
    over_all = 2 * assumed.own_variance / assumed.placements
    needed = {
        "gap": examples_for_gap(size, assumed, config.power),
        "mean_difference": examples_for_difference(
            size, between_models + over_all, config.power, graded=assumed.placements > 1
        ),
        "placement_difference": examples_for_difference(size, between_models + at_one, config.power),
    }
    log_assumptions(assumed)
    words = (
        "a gap of one model",
        "a difference of two models in the mean",
        "a difference of two models at one placement",
    )
    for what, number in zip(words, needed.values()):
        log.info("%s of %g points: %d examples (power %.0f %%)", what, config.detect, number, 100 * config.power)
    planned = {"detect": config.detect, "power": config.power, "examples": needed}
    show(json.dumps(planned), planned)
    return needed


def assumptions_from_config(config: ExpectedConfig) -> Assumptions:
    """Returns the assumptions in the options, or those from the sweep that they name."""
    if config.sweep is None:
        return Assumptions(config.n_docs, config.mean / 100, config.correlation, config.agreement)
    correct = Evidence(config.sweep).correct
    return Assumptions(correct.shape[1], float(correct.mean()), correlation_of_placements(correct), config.agreement)
