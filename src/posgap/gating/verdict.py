"""The gate's verdict: what its rules say of a candidate, together."""

from pathlib import Path
from typing import Any

from posgap import tables
from posgap.choices import GATE_RULES
from posgap.files import Record, read_model
from posgap.gating.rules import Case, Ruling
from posgap.measurement.comparability import alike
from posgap.measurement.sweeps import Evidence

GATE_FILE = "gate.json"


class Verdict(Record):
    """All rulings and whether every one passed, and which model they judged.

    `asked_otherwise` is what was allowed to differ between the sweeps, and does.
    """

    passed: bool
    model_digest: str
    asked_otherwise: list[str]
    rules: list[Ruling]


def judge(candidate: Path, base: Path, champion: Path | None, config: Any) -> Verdict:
    """Applies all rules, with the thresholds of `config`, to the sweeps at these paths."""
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
