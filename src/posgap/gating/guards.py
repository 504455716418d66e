"""Guards: what a candidate must not lose besides the gated task. That is accuracy on other examples, or plain text.

`sweep` measures them beside a sweep, into its folder `guards`. A guard is binding if a policy gives it a tolerance;
losses at others are shown.
"""

import logging
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from pydantic import Field

from posgap.foundation.errors import Contradiction, NotAlike, PosgapError
from posgap.foundation.files import Record, digest_of, digest_path, read_model
from posgap.foundation.locations import Location, as_location
from posgap.gating.demands import MAX_NATS, Guard, Policy
from posgap.gating.evidence import (
    GUARD_FILE,
    GUARDS,
    TEXT_FILE,
    folder_of,
    read_gate_inputs,
    unanswered_references,
)
from posgap.gating.rules import GATE_RULES, GateInputs, GateRule, Judged, Ruling, round_up
from posgap.measurement import statistics
from posgap.measurement.evidence import Evidence
from posgap.measurement.plain_text import TextScores, read_texts
from posgap.measurement.rescoring import swept_examples
from posgap.measurement.sweeps import SWEEP_FILE, Sweep
from posgap.storage.cache import fetch_location
from posgap.storage.lineage import find_from, training_examples
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import spaced_positions
from posgap.tasks.positions import format_positions
from posgap.tasks.registry import TASKS

log = logging.getLogger(__name__)
JudgedTexts: TypeAlias = Judged[TextScores]
Sources: TypeAlias = Mapping[str, Mapping[str, AnyExample] | list[str]]  # examples by content, or texts, by guard
_RULE = "guard "  # begins the names of their rules
_PLACES = 3  # of a guard's gold document: the first, the middle and the last


class GuardFigure(Record):
    """A candidate's loss or gain at a guard."""

    name: str = Field(description="name of the guard in the policy")
    measured: str = Field(description="what it is measured on")
    binds: bool = Field(description="whether the policy gives it a tolerance, so that it is among the rules")
    estimate: float = Field(description="the largest loss at a placement in points, or the loss on plain text in nats")
    interval: tuple[float, float] = Field(description="one-sided 95 % bounds of the loss")
    digits: int = Field(description="decimal places to show")

    @property
    def text(self) -> str:
        """It in a phrase."""
        low, high = (f"{end:+.{self.digits}f}" for end in self.interval)
        return f"{self.name} ({self.measured}): {self.estimate:+.{self.digits}f} ({low} to {high})"


class MeasuredGuard(Record):
    """The contents of `guard.json` about a measured guard: its settings, and the place of its examples."""

    guard: Guard
    place: str = ""


class GuardRule(GateRule):
    """A guard of a policy, as a rule of the gate: nothing was lost there at any placement."""

    def __init__(self, name: str) -> None:
        self.name = f"{_RULE}{name}"  # type: ignore[misc]  # each guard has a rule of its own
        self.help = f"nothing was lost on the guard {name}"  # type: ignore[misc]
        self.broken = f"something was lost on the guard {name}"  # type: ignore[misc]

    def threshold_for(self, bound: float) -> dict[str, float]:
        return {f"tolerance of the {self.name}": round_up(-bound)}

    def judge(self, limits: Guard, inputs: Any) -> Ruling:
        """The worse of the rulings against reference and anchor, as of the rule `mean`."""
        ruling = self._rule_on_texts if isinstance(inputs.candidate, TextScores) else self._rule_on_sweeps
        least = 0.0 - (limits.tolerance or 0.0)
        rulings = [ruling(least, inputs, role, reference) for role, reference in inputs.references.items()]
        return min(rulings, key=lambda ruling: ruling.interval[0])

    def is_passed(self, limits: Guard, inputs: Any) -> bool:
        if isinstance(inputs.candidate, TextScores):
            return self.judge(limits, inputs).passed
        least = -(limits.tolerance or 0.0) / 100
        differences = [inputs.candidate.gains_over(each) for each in inputs.references.values()]
        return all(statistics.difference_reaches(each, least, inputs.error).all() for each in differences)

    def _rule_on_sweeps(self, least: float, inputs: GateInputs, role: str, reference: Evidence) -> Ruling:
        """Every placement must keep its accuracy, so each lower bound has the whole error (intersection-union); one
        loss is enough to break the rule, so upper bounds share it (Bonferroni)."""
        differences = inputs.candidate.gains_over(reference)
        means = differences.mean(axis=0)
        low = statistics.difference_interval(differences, inputs.error)[:, 0].min()
        high = statistics.difference_interval(differences, inputs.error / differences.shape[1])[:, 1].min()
        sweep = inputs.candidate.sweep
        worst = format_positions(sweep.placements[int(means.argmin())])
        meaning = f"{describe(sweep)}, where it lost most (position {worst}), against the {role}"
        return self.rule_at_least(least, meaning, 100 * float(means.min()), (float(low), float(high)))

    def _rule_on_texts(self, least: float, inputs: JudgedTexts, role: str, reference: TextScores) -> Ruling:
        texts = sorted(reference.scores)
        differences = np.array([inputs.candidate.scores[text] - reference.scores[text] for text in texts])
        shares = differences.clip(-MAX_NATS, MAX_NATS) / MAX_NATS
        low, high = (MAX_NATS / 100 * statistics.difference_interval(shares, inputs.error)).tolist()
        meaning = f"{describe(inputs.candidate)}, nats a token against the {role}"
        estimate = MAX_NATS * float(shares.mean())
        return self.rule_at_least(least, meaning, estimate, (low, high)).model_copy(update={"digits": 3})


def rule_named(name: str) -> GateRule:
    """Returns a ruling's rule by name: a registered one, or a guard's."""
    return GuardRule(name.removeprefix(_RULE)) if name.startswith(_RULE) else GATE_RULES[name]


class Guarded(NamedTuple):
    """The guards of a verdict: the findings by name, why some cannot be judged, and the losses."""

    judged: dict[str, Judged[Any]]
    gaps: list[str]
    rulings: list[Ruling]
    figures: list[GuardFigure]


def describe(measured: Sweep | TextScores) -> str:
    """Describes the measurement in a phrase."""
    if isinstance(measured, TextScores):
        return f"plain text ({len(measured.scores)} texts)"
    return f"{measured.task} at {measured.n_docs} documents"


def measured_guards(swept: Path) -> dict[str, Guard]:
    """The guards that were measured beside the sweep in a folder, by name."""
    folders = sorted((swept / GUARDS).glob("*"))
    return {folder.name: read_model(MeasuredGuard, folder, GUARD_FILE).guard for folder in folders}


def is_text(folder: Path) -> bool:
    """Whether the guard that was measured into a folder is plain text."""
    return (folder / TEXT_FILE).is_file()


def judge_guards(inputs: GateInputs, policy: Policy, sources: Sources | None = None) -> Guarded:
    """Judges the guards beside the sweeps of `inputs`, and those that the policy names.

    It scores every response again from the `sources`, by guard. Raises `PosgapError` as `read_gate_inputs` does, and if
    a guard beside a sweep was measured with another model.
    """
    guarded = Guarded({}, [], [], [])
    roles = {"candidate": inputs.candidate} | {
        role: evidence
        for role in ("champion" if inputs.champion else "base", "anchor")
        if (evidence := getattr(inputs, role))
    }
    folders = {role: folder_of(evidence.path) / GUARDS for role, evidence in roles.items()}
    there = {folder.name for folder in folders["candidate"].glob("*") if folder.is_dir()}
    for name in sorted({*there, *policy.guards}):
        demanded = policy.guards.get(name)
        binds = demanded is not None and demanded.tolerance is not None
        missing = [role for role, folder in folders.items() if not (folder / name).is_dir()]
        gap = f"the {missing[0]} was not measured on it; sweep with --guards" if missing else ""
        if not missing and demanded and is_text(folders["candidate"] / name) != bool(demanded.text):
            gap = f"the policy asks for {'plain text' if demanded.text else 'examples'}, which was not measured"
        if not gap:
            paths = {role: folder / name for role, folder in folders.items()}
            judged = _read_texts(paths, inputs, policy) or _read_sweeps(paths, inputs, policy, name, sources)
            measured = judged.candidate if isinstance(judged.candidate, TextScores) else judged.candidate.sweep
            gap = _misfit(demanded, measured, inputs.candidate.sweep, (sources or {}).get(name)) if demanded else ""
            if isinstance(judged, GateInputs):
                gap = gap or "; ".join(unanswered_references(judged, policy))
        if gap:
            guarded.gaps.extend([f"guard {name}: {gap}"] if binds else [])
            continue
        guarded.judged[name] = judged
        ruling = GuardRule(name).judge(demanded or Guard(), judged)
        figure = {"name": name, "measured": describe(measured), "binds": binds}
        guarded.figures.append(GuardFigure(**figure, **ruling.model_dump(include={"estimate", "interval", "digits"})))
        guarded.rulings.extend([ruling] if binds else [])
    return guarded


def scope(inputs: GateInputs, figures: Sequence[GuardFigure]) -> str:
    """The scope of a verdict, in a phrase."""
    sweep = inputs.candidate.sweep
    at = f"measured at {sweep.n_docs} documents of task {sweep.task}"
    return (
        f"{at}, and on {', '.join(f'{each.name} ({each.measured})' for each in figures)}" if figures else f"{at} alone"
    )


def placements_of(guard: Guard, task: str, n_docs: int) -> list[str]:
    """Returns the placements that a guard asks, as text; none for all of the task's."""
    if guard.positions or TASKS[task].n_gold > 1 or TASKS[task].slot_names:
        return list(guard.positions)
    return [str(position) for position in spaced_positions(n_docs, _PLACES)]


def guard_sources(swept: Path, policy: Policy, given: Location | None, manifest_of: Path) -> Sources:
    """Returns the examples by content, or the texts, of each guard beside the sweep in `swept`: from the policy's place
    for them, else from the place of their measurement. `given` and `manifest_of` are as in `swept_examples`, for guards
    on the sweep's own examples. Raises `PosgapError` if they are missing or differ."""
    sources: dict[str, Mapping[str, AnyExample] | list[str]] = {}
    for folder in sorted((swept / GUARDS).glob("*")):
        measured = read_model(MeasuredGuard, folder, GUARD_FILE)
        guard = policy.guards.get(folder.name, measured.guard)
        if bool(guard.text) != is_text(folder):
            continue  # the policy asks for something else, which `judge_guards` says
        place = (
            as_location(str(guard.place))
            if guard.place
            else find_from(measured.place, manifest_of)
            if measured.place
            else None
        )
        with tempfile.TemporaryDirectory(prefix="posgap-") as home:
            try:
                copy = _private(place, Path(home)) if place else None
                if copy and guard.sha256 not in ("", digest_path(copy)):
                    raise Contradiction("another file than the guard's sha256 names", at=str(place))
                if is_text(folder):
                    if copy is None:
                        raise PosgapError("does not name the file of its texts; name it in the policy")
                    sources[folder.name] = read_texts(copy)
                else:
                    sources[folder.name] = swept_examples(folder, copy or given, manifest_of)
            except PosgapError as error:
                raise error.within(f"guard {folder.name}") from None
            except OSError as error:
                raise PosgapError(f"guard {folder.name}: {error}") from None
    return sources


def _private(place: Location, home: Path) -> Path:
    """Copies a place's content into `home`, so that it cannot change after its digest is taken."""
    there = Path(fetch_location(place))
    return Path((shutil.copytree if there.is_dir() else shutil.copyfile)(there, home / there.name))


def _read_texts(paths: Mapping[str, Path], inputs: GateInputs, policy: Policy) -> JudgedTexts | None:
    """The scores of plain texts in these folders; None if they hold sweeps."""
    if not all(map(is_text, paths.values())):
        return None
    read = {role: read_model(TextScores, path, TEXT_FILE) for role, path in paths.items()}
    for role, scores in read.items():
        _require_model_of(getattr(inputs, role), scores.model_digest, scores.model, paths[role])
        for name, option in (("scores", ""), ("tokens", ""), ("dtype", "dtype"), ("device", "backend")):
            values = [getattr(each, name) for each in (scores, read["candidate"])]
            alike = values[0].keys() == values[1].keys() if name == "scores" else values[0] == values[1]
            if not alike and option not in policy.allow:
                what = "texts" if name == "scores" else name
                raise NotAlike(f"other {what} than of {paths['candidate']}; sweep both in one way", at=str(paths[role]))
    return Judged(**read, share=inputs.share)


def _read_sweeps(
    paths: Mapping[str, Path], inputs: GateInputs, policy: Policy, name: str, sources: Sources | None
) -> GateInputs:
    if not all((path / SWEEP_FILE).is_file() for path in paths.values()):
        raise NotAlike(f"of another kind than {list(paths.values())[1]}; sweep both again", at=str(paths["candidate"]))
    examples = None if sources is None else sources.get(name, {})
    assert not isinstance(examples, list)
    base, champion, anchor = (paths.get(role) for role in ("base", "champion", "anchor"))
    judged, _ = read_gate_inputs(paths["candidate"], base, champion, policy.allow, examples=examples, anchor=anchor)
    for role, path in paths.items():
        swept = getattr(judged, role)
        if swept is None:
            continue  # an anchor that the policy leaves out
        main = getattr(inputs, role)
        _require_model_of(main, swept.sweep.model_digest, swept.sweep.model, path)
        learnt = [training_examples(folder) for folder in (path, folder_of(main.path))]
        if swept.sweep.ancestors != main.sweep.ancestors or learnt[0] != learnt[1]:
            raise Contradiction(
                f"disagrees with {main.path} about what the model was made from; sweep it again", at=str(path)
            )
    return replace(judged, share=inputs.share)


def _require_model_of(main: Evidence, digest: str, model: str, path: Path) -> None:
    if (digest or model) != (main.sweep.model_digest or main.sweep.model):
        raise NotAlike(f"is of another model than {main.path}; sweep again", at=str(path))


def _misfit(
    guard: Guard, measured: Sweep | TextScores, main: Sweep, source: Mapping[str, AnyExample] | list[str] | None
) -> str:
    """Says in words how a measured guard differs from the policy's; empty if it does not."""
    if isinstance(measured, TextScores):
        texts = source if isinstance(source, list) else None
        asked = None if texts is None else {*map(digest_of, texts[: guard.limit])}
        return (
            "" if asked in (None, {*measured.scores}) else "other texts were measured than those that the policy names"
        )
    task = guard.task or main.definition or main.task
    n_docs = guard.n_docs or 2 * main.n_docs
    wanted = [
        str(format_positions(at.positions))
        for at in TASKS[task].choose_placements(n_docs, placements_of(guard, task, n_docs))
    ]
    if (measured.definition or measured.task) != task or measured.n_docs != n_docs:
        return f"{describe(measured)} was measured, and the policy asks for {TASKS[task].name} at {n_docs}"
    if [*map(format_positions, measured.placements)] != wanted:
        return f"positions other than {', '.join(wanted)} were measured"
    return ""


def is_of_guard(ruling: Ruling) -> bool:
    """Whether a ruling is on a guard."""
    return ruling.name.startswith(_RULE)


def binding(policy: Policy, names: Iterable[str]) -> list[str]:
    """Returns those of these guards that the policy gives a tolerance."""
    return [name for name in names if name in policy.guards and policy.guards[name].tolerance is not None]
