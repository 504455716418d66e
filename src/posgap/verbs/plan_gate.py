"""Computes how many examples the gate's rules need."""

import json
import logging

from posgap.foundation.printing import show
from posgap.gating.passing import MAX_PROMPTS, POLICY, PassRates
from posgap.gating.verdict import asked_rules
from posgap.measurement import power
from posgap.options.plan_gate import PlanGateConfig
from posgap.verbs.demanded import policy_of
from posgap.verbs.inputs import with_local_paths
from posgap.verbs.plan_sweep import assumptions_from_config

log = logging.getLogger(__name__)
CHECK = "check"  # the name of the rules that need no base, together


@with_local_paths
def plan_gate(config: PlanGateConfig) -> dict:
    """Says how many examples each rule needs so that a flat model without losses passes it in `config.power`, and how
    many the policy needs so that it passes all rules as often, by simulated sweeps.

    JSON goes to stdout: `examples` of each rule and of the `policy`, null if no number is enough, and the `range` that
    contains the policy's with 95 %, since the sweeps are drawn at random. `check` plans for `posgap check`, whose rules
    need no base.
    """
    assumed = assumptions_from_config(config)
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
    show(json.dumps(plan), plan)
    return plan


def _range(passing: PassRates, number: int | None, share: float) -> list[int | None]:
    """The least and the largest number that may be the policy's, as far as the simulation can tell."""
    if number is None:
        return [None, None]
    margin = passing.margin(POLICY, number)
    return [passing.least(POLICY, bound) for bound in (share - margin, min(share + margin, 0.999))]
