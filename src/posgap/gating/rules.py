"""The gate's rules: what a sweep must show before its model enters the registry.

Every rule compares the bound of an interval that speaks against the candidate, never a point
estimate.
"""

from pathlib import Path

import numpy as np
from pydantic import BaseModel

from posgap import tables
from posgap.config.positions import format_positions
from posgap.files import read_json
from posgap.measurement import statistics
from posgap.measurement.sweeps import Evidence

GATE_FILE = "gate.json"


class Rule(BaseModel):
    """One comparison: `value` (the bound that counts) against `threshold`."""

    name: str
    meaning: str
    threshold: float
    estimate: float
    interval: tuple[float, float]
    value: float
    passed: bool


class Verdict(BaseModel):
    """All rules and whether every one passed, and which model they judged."""

    passed: bool
    model_digest: str
    rules: list[Rule]


def gap_rule(candidate: Evidence, max_gap: float) -> Rule:
    """The gap's interval ends at or below `max_gap`."""
    sweep = candidate.sweep
    return Rule(
        name="gap",
        meaning=f"upper end of the gap's interval at most {max_gap:g}",
        threshold=max_gap,
        estimate=sweep.gap,
        interval=sweep.gap_ci95,
        value=sweep.gap_ci95[1],
        passed=sweep.gap_ci95[1] <= max_gap,
    )


def difference_rule(
    name: str, meaning: str, candidate: np.ndarray, reference: np.ndarray, tolerance: float, resamples: int, seed: int
) -> Rule:
    """The paired difference's interval begins at or above minus `tolerance`."""
    rng = np.random.default_rng(seed)
    estimate, interval = statistics.paired_difference(candidate, reference, resamples, rng)
    return Rule(
        name=name,
        meaning=f"{meaning}: lower end of the difference's interval at least {-tolerance:g}",
        threshold=-tolerance,
        estimate=estimate,
        interval=interval,
        value=interval[0],
        passed=interval[0] >= -tolerance,
    )


def judge(
    candidate: Path,
    base: Path,
    champion: Path | None,
    *,
    max_gap: float,
    mean_tolerance: float,
    advantageous_tolerance: float,
    resamples: int,
    seed: int,
) -> Verdict:
    """Applies all rules to the sweeps at these paths. Without a champion the base stands in."""
    new, old = Evidence(candidate), Evidence(base)
    best = Evidence(champion) if champion else old
    new.require_same_questions(old)
    new.require_same_questions(best)
    column = old.sweep.placements.index(old.sweep.advantageous)
    rules = [
        gap_rule(new, max_gap),
        difference_rule(
            "mean",
            f"mean against {'champion' if champion else 'base'}",
            new.correct,
            best.correct,
            mean_tolerance,
            resamples,
            seed,
        ),
        difference_rule(
            "advantageous",
            f"accuracy at position {format_positions(old.sweep.advantageous)} against base",
            new.correct[:, column],
            old.correct[:, column],
            advantageous_tolerance,
            resamples,
            seed,
        ),
    ]
    return Verdict(passed=all(rule.passed for rule in rules), model_digest=new.sweep.model_digest, rules=rules)


def read_verdict(path: Path) -> Verdict:
    """Reads the verdict from the folder `gate` wrote."""
    return Verdict.model_validate(read_json(path / GATE_FILE if path.is_dir() else path))


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
    return f"# {'Admitted' if verdict.passed else 'Refused'}\n\n{table}\n"
