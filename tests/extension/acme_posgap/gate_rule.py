"""A gate rule: even the worst placement is right often enough."""

from pydantic import Field

from posgap.foundation.choices import Parameters
from posgap.gating.rules import GateRule, Ruling


class Floor(Parameters):
    least_worst: float = Field(0.0, ge=0, le=100, description="least accuracy at the worst placement, in points")


def judge(parameters, case):
    sweep, least = case.candidate.sweep, parameters.least_worst
    figures = {"estimate": sweep.worst.accuracy, "interval": min(sweep.ci95)}
    return Ruling(name="floor", meaning="worst placement", claim="at least", threshold=least, **figures)


FLOOR = GateRule("floor", "the worst placement is right often enough", judge, Floor, needs_reference=False)
