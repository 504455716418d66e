"""A gate rule: even the worst placement is right often enough."""

from pydantic import Field

from posgap.foundation.registry import Parameters
from posgap.gating.rules import GateRule, Ruling


class Floor(GateRule):
    name, help, needs_reference = "floor", "the worst placement is right often enough", False

    class Limits(Parameters):
        least_worst: float = Field(0.0, ge=0, le=100, description="least accuracy at the worst placement, in points")

    parameters = Limits

    def judge(self, limits, inputs):
        from posgap.measurement.statistics import LEVEL, accuracy, mean_interval

        correct = inputs.candidate.correct  # scores [examples, placements]: what a file says of them is no evidence
        figures = {"estimate": accuracy(correct).min(), "interval": mean_interval(correct, LEVEL).min(axis=0).tolist()}
        return Ruling(name=self.name, meaning="worst", claim="at least", threshold=limits.least_worst, **figures)


FLOOR = Floor()
