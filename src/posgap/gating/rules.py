"""The gate's rules: what a sweep must show before its model enters the registry.

Every rule compares the bound of an interval that speaks against the candidate, never a point
estimate.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field

from posgap.choices import Parameters
from posgap.files import Record
from posgap.positions import format_positions

if TYPE_CHECKING:
    import numpy as np

    from posgap.measurement.sweeps import Evidence


class Ruling(Record):
    """What a rule found: `value` (the bound that counts) against `threshold`."""

    name: str
    meaning: str
    threshold: float
    estimate: float
    interval: tuple[float, float]
    value: float
    passed: bool


@dataclass(frozen=True)
class Case:
    """The sweeps a gate looks at. Where there is no champion, the base stands in for it."""

    candidate: "Evidence"
    base: "Evidence"
    champion: "Evidence | None"

    @property
    def best(self) -> "Evidence":
        """The champion, else the base."""
        return self.champion or self.base


@dataclass(frozen=True)
class GateRule:
    """A rule of the gate: `judge(parameters, case)` gives its ruling, under the rule's name."""

    name: str
    help: str
    judge: "Callable[[Any, Case], Ruling]"
    parameters: type[Parameters] = Parameters


class MaxGap(Parameters):
    max_gap: float = Field(10.0, ge=0, le=100, description="highest gap in points that the gap's interval may reach")


class MeanTolerance(Parameters):
    mean_tolerance: float = Field(1.0, ge=0, description="points of mean the candidate may lose to the champion")


class AdvantageousTolerance(Parameters):
    advantageous_tolerance: float = Field(
        3.0, ge=0, description="points it may lose to the base where the base answers best"
    )


def _gap(parameters: MaxGap, case: Case) -> Ruling:
    sweep, most = case.candidate.sweep, parameters.max_gap
    return Ruling(
        name="gap",
        meaning=f"upper end of the gap's interval at most {most:g}",
        threshold=most,
        estimate=sweep.gap,
        interval=sweep.gap_ci95,
        value=sweep.gap_ci95[1],
        passed=sweep.gap_ci95[1] <= most,
    )


def _mean(parameters: MeanTolerance, case: Case) -> Ruling:
    meaning = f"mean against {'champion' if case.champion else 'base'}"
    return _difference("mean", meaning, case.candidate.correct, case.best.correct, parameters.mean_tolerance)


def _advantageous(parameters: AdvantageousTolerance, case: Case) -> Ruling:
    placement = case.base.sweep.advantageous
    column = case.base.sweep.placements.index(placement)
    return _difference(
        "advantageous",
        f"accuracy at position {format_positions(placement)} against base",
        case.candidate.correct[:, column],
        case.base.correct[:, column],
        parameters.advantageous_tolerance,
    )


def _difference(name: str, meaning: str, candidate: "np.ndarray", reference: "np.ndarray", tolerance: float) -> Ruling:
    """The paired difference's interval begins at or above minus `tolerance`."""
    from posgap.measurement import statistics

    estimate, interval = statistics.paired_difference(candidate, reference)
    return Ruling(
        name=name,
        meaning=f"{meaning}: lower end of the difference's interval at least {-tolerance:g}",
        threshold=-tolerance,
        estimate=estimate,
        interval=interval,
        value=interval[0],
        passed=interval[0] >= -tolerance,
    )


GAP = GateRule("gap", "no position is much worse than another", _gap, MaxGap)
MEAN = GateRule("mean", "nothing was lost on average", _mean, MeanTolerance)
ADVANTAGEOUS = GateRule(
    "advantageous", "nothing was lost where the base answers best", _advantageous, AdvantageousTolerance
)
