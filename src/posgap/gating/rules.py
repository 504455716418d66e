"""The gate's rules: what a sweep must show before its model enters the registry.

Every rule compares the bound of an interval that speaks against the candidate, never a point
estimate.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from posgap import tables
from posgap.choices import GATE_RULES, Parameters
from posgap.files import Record, read_model
from posgap.positions import format_positions

if TYPE_CHECKING:
    import numpy as np

    from posgap.measurement.sweeps import Evidence

GATE_FILE = "gate.json"


class Ruling(Record):
    """What a rule found: `value` (the bound that counts) against `threshold`."""

    name: str
    meaning: str
    threshold: float
    estimate: float
    interval: tuple[float, float]
    value: float
    passed: bool


class Verdict(Record):
    """All rulings and whether every one passed, and which model they judged.

    `asked_otherwise` is what was allowed to differ between the sweeps, and does.
    """

    passed: bool
    model_digest: str
    asked_otherwise: list[str]
    rules: list[Ruling]


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


def judge(candidate: Path, base: Path, champion: Path | None, config: Any) -> Verdict:
    """Applies all rules, with the thresholds of `config`, to the sweeps at these paths."""
    from posgap.measurement.comparability import alike
    from posgap.measurement.sweeps import Evidence

    judged = Evidence(candidate)
    old, otherwise = alike(Evidence(base), judged, config.allow)
    best, best_otherwise = alike(Evidence(champion), judged, config.allow) if champion else (None, [])
    case = Case(judged, old, best)
    rulings = [rule.judge(rule.parameters.of(config), case) for rule in GATE_RULES]
    passed = all(ruling.passed for ruling in rulings)
    return Verdict(
        passed=passed,
        model_digest=case.candidate.sweep.model_digest,
        asked_otherwise=sorted({*otherwise, *best_otherwise}),
        rules=rulings,
    )


def read_verdict(path: Path) -> Verdict:
    """Reads the verdict from the folder `gate` wrote, or from its `gate.json`."""
    return read_model(Verdict, path, GATE_FILE)


def markdown(verdict: Verdict) -> str:
    """The verdict for people: a row a rule."""
    rows = [
        [
            "pass" if r.passed else "**fail**",
            r.meaning,
            f"{r.value:.1f}",
            f"{r.threshold:g}",
            f"{r.estimate:.1f}",
            f"{r.interval[0]:.1f} to {r.interval[1]:.1f}",
        ]
        for r in verdict.rules
    ]
    table = tables.markdown(["", "rule", "value", "threshold", "estimate", "95 % interval"], rows, left=2)
    otherwise = verdict.asked_otherwise
    note = f"\nThe sweeps were not asked alike, as was allowed: {', '.join(otherwise)}.\n" if otherwise else ""
    return f"# {'Admitted' if verdict.passed else 'Refused'}\n\n{table}\n{note}"
