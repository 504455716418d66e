"""How many examples the gate's rules need, and what a number of examples can show at best."""

import json
import logging
import math
from functools import partial

import numpy as np

from posgap.foundation.printing import show
from posgap.gating.config import PlanGateConfig
from posgap.gating.verdict import asked_rules
from posgap.measurement import power
from posgap.measurement.statistics import tango_bound, upper_error
from posgap.storage.inputs import with_local_paths

log = logging.getLogger(__name__)


@with_local_paths
def plan_gate(config: PlanGateConfig) -> dict:
    """Says how many examples each rule needs so that a flat model which lost nothing passes it in `config.power`.

    The policy needs so many that it passes all of them so often, as if they failed independently of each other. JSON
    goes to stdout: `examples` of each rule and of the `policy`, null where no number is enough, and, for
    `config.examples`, what these can certify.
    """
    assumed = power.assumed_of_config(config)
    rules = [(rule.name, rule.pass_rate, parameters) for rule, parameters in asked_rules(config) if rule.pass_rate]

    def rates(n: int) -> dict[str, float]:
        return {name: rate(parameters, assumed, n) for name, rate, parameters in rules}

    needed = {
        name: power.examples_for_rate(partial(rate, parameters, assumed), config.power)
        for name, rate, parameters in rules
    }
    needed["policy"] = power.examples_for_rate(lambda n: math.prod(rates(n).values()), config.power)
    power.log_assumed(assumed)
    often = f"{100 * config.power:.0f} %"
    for name, number in needed.items():
        what = "the policy, that is all of them" if name == "policy" else f"rule {name}"
        enough = f"a flat model passes in {often} with {number} or more" if number else "no number is enough"
        log.info("%s: %s", what, enough)
    plan: dict = {"power": config.power, "examples": needed}
    if config.examples:
        plan["with"] = _with(config.examples, assumed, config.power) | {
            "passes": math.prod(rates(config.examples).values())
        }
        log.info(
            "with %d examples a flat model passes the policy in %.0f %%; of such a model a gap of at most %.1f can be "
            "shown in %s, and of a model that is always right one of at most %.1f",
            config.examples, 100 * plan["with"]["passes"], plan["with"]["gap"], often, plan["with"]["gap_at_best"],
        )  # fmt: skip
    show(json.dumps(plan), plan)
    return plan


def _with(n: int, assumed: power.Assumed, often: float) -> dict[str, float]:
    """What n examples can certify, in points: of a flat model so often, and of one that is always right."""
    at_best = float(tango_bound(np.array(0.0), np.array(0.0), n, upper_error(assumed.placements)))
    return {"examples": n, "gap": 100 * power.certifiable_gap(n, assumed, often), "gap_at_best": 100 * at_best}
