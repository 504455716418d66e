"""The gate's verdict: the joint result of its rules on a candidate."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, computed_field

from posgap.foundation import tables
from posgap.foundation.errors import GateRefusal, NotEnoughEvidence, PosgapError
from posgap.foundation.files import Record, read_model
from posgap.foundation.registry import Parameters
from posgap.gating.demands import Policy
from posgap.gating.evidence import (
    ANCHOR,
    BASE,
    DISTRACTORS,
    SweepRecord,
    evidence_gaps,
    read_gate_inputs,
    sweep_record,
    unanswered_references,
    unknown_copies,
)
from posgap.gating.guards import GuardFigure, Sources, is_of_guard, judge_guards, scope
from posgap.gating.passing import POLICY, PassRates
from posgap.gating.policy import policy_digest
from posgap.gating.rules import CHECK_RULES, GATE_RULES, GateInputs, GateRule, Ruling
from posgap.measurement import power
from posgap.measurement.sweeps import Sweep
from posgap.tasks.examples import AnyExample
from posgap.tracking.runs import Run

GATE_FILE = "gate.json"
# A first look has the whole error of 5 %, and each later one this part of the previous look's. All looks together then
# err in at most 6.7 %.
LATER = 1 / 4
SMALLEST_STEP = 1.6  # of the number of examples, from one look to the next
_SIMULATED = 320  # simulated sweeps for each number of examples: few, so a verdict is quick
OFTEN = f"{100 * power.USUAL:.0f} %"  # how often a flat model passes with the reported number of examples
MORE = (
    "With {needs} examples (each group of related ones counts once), a model that is flat and has lost nothing "
    f"would be admitted in {OFTEN} of all cases."
)


Outcome = Literal["admitted", "refused", "not enough evidence"]
Needed = Callable[[str], int | None]  # the number of examples that a rule, or the policy, needs


def outcome_of(rulings: Sequence[Ruling], evidence_gaps: Sequence[str] = ()) -> Outcome:
    """Returns refused if a rule failed, admitted if all passed and no evidence is missing, else not enough evidence."""
    if any(ruling.outcome == "fail" for ruling in rulings):
        return "refused"
    convinced = rulings and all(ruling.passed for ruling in rulings) and not evidence_gaps
    return "admitted" if convinced else "not enough evidence"


_TOO_LITTLE = "There is too little to judge by"


class Verdict(Record):
    """All rulings, their conclusion, and their evidence."""

    model_digest: str = Field(description="sha256 of the candidate's folder")
    evidence_gaps: list[str] = Field(description="why the evidence is too little to judge")
    asked_otherwise: list[str] = Field(
        description="allowed differences that exist; also base or anchor if they were left out"
    )
    policy: Policy = Field(description="the policy that was applied")
    evidence: dict[str, SweepRecord] = Field(
        description="of candidate, base, champion and anchor (the best champion so far)"
    )
    rules: list[Ruling] = Field(description="one ruling for each rule")
    measured: str = Field("", description="what the verdict covers: task, documents in a prompt, and guards")
    guards: list[GuardFigure] = Field([], description="the loss at each guard; binding guards are also among the rules")
    needs: int | None = Field(
        None,
        description="if no rule is broken: examples that admit a flat model in 80 % of cases",
    )
    look: int = Field(1, ge=1, description="number of this look at the model, from 1")
    candidates: int = Field(1, ge=1, description="number of candidates in the run, which share the error")
    name: str = Field("", description="registered name that the candidate is for; empty: none")
    judged_at: str = Field("", description="time of the verdict, in UTC")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def policy_digest(self) -> str:
        """sha256 of the policy."""
        return policy_digest(self.policy)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def outcome(self) -> Outcome:
        """The conclusion from the rulings and the evidence gaps."""
        return outcome_of(self.rules, self.evidence_gaps)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool:
        """Whether the model is admitted."""
        return self.outcome == "admitted"

    @property
    def wanting(self) -> str:
        """What the sweeps lack for a judgment, in a sentence without its full stop; empty if nothing. It would not undo
        a refusal, which is certain."""
        if not self.evidence_gaps:
            return ""
        begin = (
            "The refusal needs no more examples, but an admission would" if self.outcome == "refused" else _TOO_LITTLE
        )
        return f"{begin}: {'; '.join(self.evidence_gaps)}"

    def error(self, what: str) -> PosgapError:
        """Why `what` was not admitted, in one line. The exit code tells a refusal from a want of evidence."""
        if self.outcome == "refused":
            failed = "; ".join(against(ruling) for ruling in self.rules if ruling.outcome == "fail")
            return GateRefusal(f"the gate refused {what}: {failed}")
        unsure = [ruling for ruling in self.rules if not ruling.passed]
        advice = f"; sweep at least {self.needs:,} examples" if self.needs else ""
        reasons = "; ".join([*map(wish, unsure), *self.evidence_gaps]) or "no rule was asked"
        return NotEnoughEvidence(f"there is not enough evidence to admit {what}: {reasons}{advice}")


def share_of_error(look: int, candidates: int) -> float:
    """Returns the share (0 to 1) of the 5 % error that the verdict on one of a run's `candidates` may spend.

    `look` counts from 1; each later look has the part `LATER` of the previous one's share.
    """
    return LATER ** (look - 1) / candidates


def shared_error(verdict: Verdict) -> str:
    """Says in a sentence why the verdict's bounds are stricter than 5 %; empty if it has all of the error."""
    share = share_of_error(verdict.look, verdict.candidates)
    if share == 1:
        return ""
    among = [f"this is look {verdict.look} at the model"] if verdict.look > 1 else []
    among += [f"the run has {verdict.candidates} candidates"] if verdict.candidates > 1 else []
    return f"Each bound may be wrong in {100 * power.LEVEL * share:.3g} % instead of 5, since {' and '.join(among)}."


def wish(ruling: Ruling) -> str:
    """Says what an undecided rule found and needs: a number of examples, or a threshold that these examples would
    pass."""
    wishes = [f"{ruling.needs:,} examples"] if ruling.needs else []
    wishes += [f"{name} {value:g} with these" for name, value in ruling.would_do.items()]
    return f"{against(ruling)} (wants {', or '.join(wishes)})" if wishes else against(ruling)


def against(ruling: Ruling) -> str:
    """The rule's name, figure, bounds and threshold, in a phrase."""
    low, high = ruling.interval
    figures = f"{ruling.text(ruling.estimate)} ({ruling.text(low)} to {ruling.text(high)})"
    return f"{ruling.name} {figures}, threshold {ruling.threshold:g}"


def judge(
    candidate: Path,
    base: Path | None,
    champion: Path | None,
    policy: Policy,
    *,
    examples: Mapping[str, AnyExample] | None = None,
    look: int | None = None,
    candidates: int = 1,
    anchor: Path | None = None,
    guarded_by: Sources | None = None,
) -> Verdict:
    """Applies the rules, with the thresholds of the policy, to the sweeps at these paths.

    Without a base, applies only rules that need no reference, as `posgap check` does. `anchor` is the sweep of the best
    champion so far, if that is not the champion. From `examples` (`rescoring.swept_examples`) every response is scored
    again first, and those of guards from `guarded_by`; without them the recorded scores count. At a later look at the
    model, or with other candidates in its run, the bounds are stricter (`share_of_error`). Without a `look`, looks are
    not counted, and each has the whole error.
    """
    rules = GATE_RULES if base else CHECK_RULES
    inputs, otherwise = read_gate_inputs(candidate, base, champion, policy.allow, examples=examples, anchor=anchor)
    inputs = replace(inputs, share=share_of_error(look or 1, candidates))
    sweeps = {"candidate": inputs.candidate, "base": inputs.base, "champion": inputs.champion, "anchor": inputs.anchor}
    asked = asked_rules(policy, rules)
    gaps = [
        *evidence_gaps(inputs.candidate.sweep, policy),
        *unknown_copies(inputs.candidate, policy),
        *unanswered_references(inputs, policy),
    ]
    guarded = judge_guards(inputs, policy, guarded_by) if base else None
    gaps += guarded.gaps if guarded else []
    # The next look has the same error as this one if this one is not counted or could not have admitted.
    needed = examples_needed(asked, inputs, 1.0 if gaps or look is None else LATER)
    rulings = [_with_need(rule, rule.judge(limits, inputs), needed) for rule, limits in asked]
    figures = guarded.figures if guarded else []
    needs = _needed_for_all(rulings, len(inputs.candidate.correct), policy.least_examples, needed)
    return Verdict(
        model_digest=inputs.candidate.sweep.model_digest,
        evidence_gaps=gaps,
        asked_otherwise=otherwise,
        policy=policy,
        evidence={role: sweep_record(sweep) for role, sweep in sweeps.items() if sweep},
        rules=[*rulings, *(guarded.rulings if guarded else ())],
        measured=scope(inputs, figures),
        guards=figures,
        look=look or 1,
        candidates=candidates,
        needs=needs,
    )


def asked_rules(config: Any, rules: Iterable[GateRule] = GATE_RULES) -> list[tuple[GateRule, Parameters]]:
    """Returns the rules whose thresholds in `config` demand anything, each with its own thresholds."""
    asked = []
    for rule in rules:
        limits = rule.parameters.of(config)
        if rule.is_asked(limits):
            asked.append((rule, limits))
    return asked


def _with_need(rule: GateRule, ruling: Ruling, needed: Needed) -> Ruling:
    """Returns the ruling; an unsure one also has the examples that its rule needs, and the threshold that would
    pass."""
    if ruling.outcome != "unsure":
        return ruling
    return ruling.model_copy(update={"needs": needed(ruling.name), "would_do": rule.threshold_for(ruling.value)})


def _needed_for_all(rulings: Sequence[Ruling], n: int, least: int, needed: Needed) -> int | None:
    """The verdict's `needs`, which are no fewer than the `least` examples that the policy asks for."""
    outcome = outcome_of(rulings)
    needs = needed(POLICY) if outcome == "not enough evidence" else None
    too_few = outcome != "refused" and n < least
    return max(needs or 0, least) if too_few else needs


def examples_needed(rules: Sequence[tuple[GateRule, Parameters]], inputs: GateInputs, later: float) -> Needed:
    """Returns a function from a rule's name, or `POLICY`, to the examples with which a flat model without losses passes
    in 80 % at its next attempt; that attempt has the part `later` of this one's error. It returns None if the present
    examples are enough, or no number is."""
    reference = inputs.champion or inputs.base or inputs.candidate
    assumed = power.assumptions_from_pair(inputs.candidate.correct, reference.correct)
    n = len(inputs.candidate.correct)
    now = PassRates(rules, assumed._replace(share=inputs.share), _SIMULATED)
    then = PassRates(rules, assumed._replace(share=inputs.share * later), _SIMULATED)

    def needed(name: str) -> int | None:
        if name not in now.rule_names or now.pass_rate(name, n) >= power.USUAL:
            return None
        number = then.least(name, power.USUAL)
        return number and max(number, n + 1)

    return needed


def next_number(verdict: Verdict, swept: Sweep, available: int) -> int:
    """Returns how many examples another look takes, if the policy has the gate go on by itself, and `available` are
    there; 0 if it does not: the verdict is final, or no more examples would help."""
    most = min(verdict.policy.most_examples, available)
    if all(ruling.passed for ruling in verdict.rules if not is_of_guard(ruling)):
        return 0  # guards are measured on examples of their own
    lacks_examples_alone = swept.n_independent < verdict.policy.least_examples or not verdict.evidence_gaps
    if verdict.outcome != "not enough evidence" or swept.n_examples >= most or not lacks_examples_alone:
        return 0
    # A rule that no number of examples satisfies has no `needs`: twice as many examples tell whether it is broken.
    wanted = max(verdict.needs or 2 * swept.n_independent, math.ceil(SMALLEST_STEP * swept.n_independent))
    wanted = math.ceil(wanted * swept.n_examples / swept.n_independent)
    return most if SMALLEST_STEP * wanted > most else wanted


def digests(verdict: Verdict) -> dict[str, dict[str, str]]:
    """The evidence of a verdict, by digest: of each sweep the model, examples, settings and files."""
    found = {}
    for role, record in verdict.evidence.items():
        files = {name: sha for name, sha in record.files.items() if sha}
        named = {"model": record.model_digest, "examples": record.examples_digest, "settings": record.settings_digest}
        found[role] = named | files
    return found


def log_verdict(verdict: Verdict, swept: Sweep, run: Run) -> None:
    """Gives an MLflow run the verdict, and the figures of the candidate's sweep that it rests on."""
    values = {f"{rule.name}_value": rule.value for rule in verdict.rules}
    run.metrics({"gap": swept.gap, "mean": swept.mean, **values})
    digest = verdict.policy_digest
    run.label(swept.label)
    run.tags({"posgap.gate": verdict.outcome, "posgap.policy_digest": digest})


def read_verdict(path: Path) -> Verdict:
    """Reads the verdict from the folder `gate` wrote, or from its `gate.json`."""
    return read_model(Verdict, path, GATE_FILE)


def markdown(verdict: Verdict) -> str:
    """The verdict for people: a row a rule."""
    words = {"pass": "pass", "fail": "**fail**", "unsure": "**unsure**"}
    rows = [
        [
            words[r.outcome],
            r.sentence,
            r.text(r.value),
            f"{r.threshold:g}",
            r.text(r.estimate),
            f"{r.text(r.interval[0])} to {r.text(r.interval[1])}",
            str(r.needs or ""),
        ]
        for r in verdict.rules
    ]
    columns = ["", "rule", "value", "threshold", "estimate", "bounds", "examples needed"]
    table = tables.markdown(columns, rows, left=2)
    otherwise = [name for name in verdict.asked_otherwise if name not in (BASE, ANCHOR, DISTRACTORS)]
    little = f"\n{verdict.wanting}.\n" if verdict.wanting else ""
    more = f"\n{MORE.format(needs=verdict.needs)}\n" if verdict.needs else ""
    note = f"\nThe sweeps were not asked alike, as was allowed: {', '.join(otherwise)}.\n" if otherwise else ""
    if BASE in verdict.asked_otherwise:
        note += "\nThe candidate was not made from the base, as was allowed.\n"
    if ANCHOR in verdict.asked_otherwise:
        note += "\nThe candidate was not compared with the best champion so far, as was allowed.\n"
    if DISTRACTORS in verdict.asked_otherwise:
        note += "\nDistractors hold answers, as was allowed.\n"
    sentence = shared_error(verdict)
    shared = f"\n{sentence}\n" if sentence else ""
    lost = "".join(f"- {guard.text}\n" for guard in verdict.guards if not guard.binds)
    beside = f"\nThis verdict was {verdict.measured}.\n" + (f"\nShown, and not asked for:\n\n{lost}" if lost else "")
    return f"# {verdict.outcome.capitalize()}\n\n{table}\n{little}{more}{shared}{note}{beside}"
