"""How many examples the gate's rules need, and what a number of examples can show at best."""

import json
import logging

import numpy as np

from posgap.foundation.printing import show
from posgap.gating.config import PlanGateConfig
from posgap.gating.passing import MAX_PROMPTS, POLICY, PassRates
from posgap.gating.policy import policy_of
from posgap.gating.rules import Gap
from posgap.gating.verdict import asked_rules
from posgap.measurement import power
from posgap.measurement.statistics import tango_bound, upper_error
from posgap.storage.inputs import with_local_paths

log = logging.getLogger(__name__)
CHECK = "check"  # the name of the rules that need no base, together


@with_local_paths
def plan_gate(config: PlanGateConfig) -> dict:
    """Says how many examples each rule needs so that a flat model which lost nothing passes it in `config.power`, and
    how many the policy needs so that it passes all of them so often, by simulated sweeps.

    JSON goes to stdout: `examples` of each rule and of the `policy`, null where no number is enough; the `range` in
    which the policy's lies with 95 %, since the sweeps are drawn at random; and, for `config.examples`, what these can
    certify. `check` is of the rules that need no base, by which `posgap check` judges.
    """
    assumed = power.assumptions_from_config(config)
    rules = asked_rules(policy_of(config))
    passing = PassRates(rules, assumed)
    needed = {name: passing.least(name, config.power) for name in passing.rule_names}
    plan: dict = {"power": config.power, "examples": needed, "range": _range(passing, needed[POLICY], config.power)}
    power.log_assumptions(assumed)
    often = f"{100 * config.power:.0f} %"
    for name, number in needed.items():
        what = "the policy, that is all of them" if name == POLICY else f"rule {name}"
        drawn = " ({} to {}, by {:,} simulated sweeps)".format(*plan["range"], passing.sweep_count(number or 1))
        enough = f"a flat model passes in {often} with {number} or more{drawn if name == POLICY else ''}"
        none = f"no number is enough up to {MAX_PROMPTS:,} prompts"
        log.info("%s: %s", what, enough if number else none)
    without_base = PassRates([asked for asked in rules if not asked[0].needs_reference], assumed)
    needed[CHECK] = needed[POLICY]
    if without_base.rule_names != passing.rule_names:
        needed[CHECK] = without_base.least(POLICY, config.power)
        enough = f"a flat model passes in {often} with {needed[CHECK]} or more" if needed[CHECK] else none
        log.info("posgap check, which needs no base: %s", enough)
    if config.examples:
        plan["with"] = _with(config.examples, passing, config.power)
        log.info(
            "with %d examples a flat model passes the policy in %.0f %%; of such a model a gap of at most %.1f can be "
            "shown in %s, and of a model that is always right one of at most %.1f",
            config.examples, 100 * plan["with"]["passes"], plan["with"]["gap"], often, plan["with"]["gap_at_best"],
        )  # fmt: skip
    show(json.dumps(plan), plan)
    return plan


def _range(passing: PassRates, number: int | None, share: float) -> list[int | None]:
    """The least and the largest number that may be the policy's, as far as the simulation can tell."""
    if number is None:
        return [None, None]
    margin = passing.margin(POLICY, number)
    return [passing.least(POLICY, bound) for bound in (share - margin, min(share + margin, 0.999))]


def _with(n: int, passing: PassRates, often: float) -> dict[str, float]:
    """How often n examples pass the policy, 0 to 1, and what they can certify, in points: of a flat model so often, and
    of one that is always right."""
    low, high = 0.0, 100.0
    for _ in range(10):
        middle = (low + high) / 2
        of_gap = PassRates([(Gap(), Gap.Limits(max_gap=middle))], passing.assumed)
        low, high = (low, middle) if of_gap.pass_rate(Gap.name, n) >= often else (middle, high)
    at_best = float(tango_bound(np.array(0.0), np.array(0.0), n, upper_error(passing.assumed.placements)))
    return {"examples": n, "passes": passing.pass_rate(POLICY, n), "gap": high, "gap_at_best": 100 * at_best}
