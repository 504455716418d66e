"""A gate rule: even the worst placement is right often enough."""

from pydantic import Field

from posgap.foundation.registry import Parameters
from posgap.gating.rules import GateRule, Ruling


class Floor(Parameters):
    least_worst: float = Field(0.0, ge=0, le=100, description="least accuracy at the worst placement, in points")


def judge(parameters, case):
    from posgap.measurement.statistics import LEVEL, accuracy, mean_interval

    correct = case.candidate.correct  # scores [examples, placements]: what a file says of them is no evidence
    figures = {"estimate": accuracy(correct).min(), "interval": mean_interval(correct, LEVEL).min(axis=0).tolist()}
    return Ruling(name="floor", meaning="worst", claim="at least", threshold=parameters.least_worst, **figures)


FLOOR = GateRule("floor", "the worst placement is right often enough", judge, Floor, needs_reference=False)
