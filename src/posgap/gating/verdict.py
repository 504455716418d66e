"""The gate's verdict: what its rules say of a candidate, together."""

from pathlib import Path
from typing import Any

from posgap import tables
from posgap.choices import GATE_RULES
from posgap.files import Record, read_model
from posgap.gating.evidence import SweepRecord, case_of, lacking, record_of
from posgap.gating.rules import Ruling

GATE_FILE = "gate.json"


class Verdict(Record):
    """All rulings and whether every one passed, and what they rest on.

    `lacking` says why the sweeps are too little to judge by, `asked_otherwise` what was allowed to differ between
    them, and does. `evidence` has the digests of the sweeps of `candidate`, `base` and `champion`.
    """

    passed: bool
    model_digest: str
    lacking: list[str]
    asked_otherwise: list[str]
    demands: dict[str, Any]
    allow: list[str]
    evidence: dict[str, SweepRecord]
    rules: list[Ruling]


def judge(candidate: Path, base: Path, champion: Path | None, config: Any) -> Verdict:
    """Applies all rules, with the thresholds of `config`, to the sweeps at these paths."""
    case, otherwise = case_of(candidate, base, champion, config.allow)
    rulings = [rule.judge(rule.parameters.of(config), case) for rule in GATE_RULES]
    too_little = lacking(case.candidate.sweep, config.least_examples, config.least_placements)
    sweeps = {"candidate": case.candidate, "base": case.base, "champion": case.champion}
    return Verdict(
        passed=not too_little and bool(rulings) and all(ruling.passed for ruling in rulings),
        model_digest=case.candidate.sweep.model_digest,
        lacking=too_little,
        asked_otherwise=otherwise,
        demands={name: getattr(config, name) for name in demands()},
        allow=list(config.allow),
        evidence={role: record_of(sweep) for role, sweep in sweeps.items() if sweep},
        rules=rulings,
    )


def demands() -> list[str]:
    """The names of all parameters of a gate that decide what it demands."""
    thresholds = [name for rule in GATE_RULES for name in rule.parameters.model_fields]
    return [*dict.fromkeys(thresholds), "least_examples", "least_placements"]


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
    little = f"\nThere is too little to judge by: {'; '.join(verdict.lacking)}.\n" if verdict.lacking else ""
    note = f"\nThe sweeps were not asked alike, as was allowed: {', '.join(otherwise)}.\n" if otherwise else ""
    return f"# {'Admitted' if verdict.passed else 'Refused'}\n\n{table}\n{little}{note}"
