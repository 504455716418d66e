"""Makes the page of a verdict for decision makers: the result and the reasons, in words, with the curve, on one HTML
page."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posgap.gating.guards import rule_named
from posgap.gating.rules import Ruling
from posgap.gating.verdict import MORE, Verdict, share_of_error
from posgap.measurement.evidence import Evidence
from posgap.measurement.page_examples import PageExamples, pack_folders
from posgap.measurement.report import render_page
from posgap.measurement.statistics import LEVEL
from posgap.measurement.sweeps import Sweep
from posgap.tasks.positions import format_positions

GATE_PAGE = "gate.html"


def explored_roles(judged: Mapping[str, Path | None]) -> PageExamples:
    """Returns the page's part of the examples of the sweeps of these roles. The champion, else the base, comes before
    the candidate, since the map shows the second sweep's difference to the first."""
    evidence = {role: Evidence(path) for role, path in judged.items() if path}
    for role, each in evidence.items() if len(evidence) > 1 else ():
        each.sweep = each.sweep.model_copy(update={"label": label_with_role(role, each.sweep)})
    references = [role for role in ("champion", "base") if role in evidence]
    order = [*references[:1], "candidate", *references[1:]]
    return pack_folders([evidence[role] for role in order])


def decision_page(verdict: Verdict, sweeps: Mapping[str, Sweep], explored: PageExamples | None = None) -> str:
    """Returns the page as text, self-contained. `sweeps` has those of `candidate` and, if they exist, of `base` and
    `champion`; `explored` is the page's part of their examples."""
    candidate = sweeps["candidate"]
    shown = list(sweeps.values())
    if len(sweeps) > 1:
        shown = [sweep.model_copy(update={"label": label_with_role(role, sweep)}) for role, sweep in sweeps.items()]
    return render_page(
        "posgap.gating",
        "decision.html.j2",
        shown,
        explored,
        title=f"{candidate.label}: {verdict.outcome}",
        verdict=verdict,
        percent_wrong=100 * LEVEL * share_of_error(verdict.look, verdict.candidates),
        candidate=candidate,
        reason=explain_verdict(verdict, candidate),
        rows=[_ruling_row(ruling) for ruling in verdict.rules],
        ends=[_ends(role if len(sweeps) > 1 else "", sweep) for role, sweep in sweeps.items()],
        more=more_examples(verdict, candidate),
    )


def explain_verdict(verdict: Verdict, candidate: Sweep) -> str:
    """Gives the reason for the verdict in one sentence."""
    name = candidate.label
    if verdict.outcome == "refused":
        broken = [_broken(ruling) for ruling in verdict.rules if ruling.outcome == "fail"]
        return f"{name} was refused, because {_join_clauses(broken)}."
    if verdict.outcome == "admitted":
        holding = [rule_named(ruling.name).help for ruling in verdict.rules]
        return f"{name} was admitted: it is certain that {_join_clauses(holding)}."
    if verdict.evidence_gaps:
        return (
            f"{name} was not admitted, because there is too little to judge by: {_join_clauses(verdict.evidence_gaps)}."
        )
    open_questions = [f"whether {rule_named(r.name).help}" for r in verdict.rules if r.outcome == "unsure"]
    return f"{name} was not admitted, because it cannot be told {_join_clauses(open_questions) or 'anything'}."


def more_examples(verdict: Verdict, candidate: Sweep) -> str:
    """Whether more examples would decide it, and how many, in one sentence; empty if nothing is left to decide."""
    if verdict.outcome == "refused":
        if all(ruling.is_counted for ruling in verdict.rules if ruling.outcome == "fail"):
            return (
                "These faults were counted in this sweep, not estimated: change how you ask; more examples will "
                "not help."
            )
        return "More examples would hardly change this: a rule is broken for certain."
    if verdict.outcome == "admitted":
        return ""
    if verdict.needs:
        return f"{candidate.sample_text} are too few to tell. {MORE.format(needs=verdict.needs)}"
    if any(ruling.outcome == "unsure" for ruling in verdict.rules):
        return (
            f"{candidate.sample_text} are enough for a model that is flat and has lost nothing. This one is "
            "too close to the limits: it takes a better model, not more examples."
        )
    return ""


def label_with_role(role: str, sweep: Sweep) -> str:
    """Returns the sweep's label, with its role unless the label names it."""
    return sweep.label if sweep.label == role else f"{sweep.label} ({role})"


def _broken(ruling: Ruling) -> str:
    rule = rule_named(ruling.name)
    (low, high) = ruling.interval
    certain = f"at least {ruling.text(low)}" if ruling.claim == "at most" else f"at most {ruling.text(high)}"
    certain += " for certain"
    found = ruling.text(ruling.estimate) if ruling.is_counted else certain
    figures = f"{ruling.meaning}: {found}, and {ruling.claim} {ruling.threshold:g} is allowed"
    return f"{rule.broken or f'it does not hold that {rule.help}'} ({figures})"


def _join_clauses(clauses: list[str]) -> str:
    *others, last = clauses or [""]
    return f"{', '.join(others)} and {last}" if others else last


def _ruling_row(ruling: Ruling) -> dict[str, Any]:
    """Returns a rule's row of the table: the demand, the measured figure, and the result with its margin."""
    low, high = ruling.interval
    at_most = ruling.claim == "at most"
    spare = ruling.threshold - high if at_most else low - ruling.threshold
    excess = low - ruling.threshold if at_most else ruling.threshold - high
    unit = "points" if ruling.digits == 1 else "nats a token"
    results = {
        "pass": f"holds, with {ruling.text(spare)} {unit} to spare",
        "fail": f"broken by at least {ruling.text(excess)} {unit}",
        "unsure": "cannot be told",
    }
    return {
        "outcome": ruling.outcome,
        "estimate": ruling.text(ruling.estimate),
        "interval": f"{ruling.text(low)} to {ruling.text(high)}",
        "asks": rule_named(ruling.name).help,
        "measured": ruling.meaning,
        "allowed": f"{ruling.claim} {round(ruling.threshold, ruling.digits):g}",
        "result": results[ruling.outcome],
    }


def _ends(role: str, sweep: Sweep) -> str:
    """Describes in a sentence at which positions a model is best and worst; a model alone has no `role`."""
    who = f"The {role}" if sweep.label == role else f"The {role}, {sweep.label},"
    who = who if role else sweep.label
    best, worst = (sweep.placements.index(place) for place in (sweep.advantageous, sweep.worst.placement))
    if sweep.accuracy[best] == sweep.accuracy[worst]:
        return f"{who} reaches an accuracy of {sweep.accuracy[best]:.1f} % at each position that was measured."
    kind = "positions" if sweep.categories else "position"
    low, high = (
        f"{sweep.accuracy[at]:.1f} % ({sweep.ci95[at][0]:.1f} to {sweep.ci95[at][1]:.1f}) with the answer at {kind} "
        f"{format_positions(sweep.placements[at])}"
        for at in (worst, best)
    )
    return f"{who} reaches an accuracy of {high}, its best, and of {low}, its worst."
