"""Checks a verdict's evidence: sweeps that agree with their predictions, on enough examples, none of them seen in
training."""

import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import Field

from posgap.foundation.errors import Contradiction, NotAlike, PosgapError, shorten
from posgap.foundation.files import Record, digest_of, digest_path
from posgap.foundation.printing import format_count
from posgap.gating.demands import Policy
from posgap.gating.rules import GateInputs
from posgap.measurement.comparability import align_comparable
from posgap.measurement.evidence import Evidence
from posgap.measurement.figures import baselines_of, summarize
from posgap.measurement.predictions import PREDICTIONS_FILE
from posgap.measurement.rescoring import require_scores
from posgap.measurement.sweeps import SWEEP_FILE, Sweep
from posgap.storage.lineage import TRAINING_EXAMPLES_FILE, training_examples
from posgap.tasks.answering_distractors import MOST, count_unjudged
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.registry import TASKS

# The parts of a sweep's folder that a verdict is based on.
FILES = (SWEEP_FILE, PREDICTIONS_FILE, TRAINING_EXAMPLES_FILE)
GUARDS = "guards"  # the folder beside them that has one for each guard
GUARD_FILE, TEXT_FILE = "guard.json", "text.json"
_OF_A_GUARD = (GUARD_FILE, TEXT_FILE, *FILES)
SPACING = 0.25  # largest share of the documents that may lie between two neighbouring positions of a sweep
BASE = "base"  # in `allow`: the candidate need not be made from the base
DISTRACTORS = "distractors"  # in `allow`: distractors may hold answers
ANCHOR = "anchor"  # in `allow`: no comparison with the best champion so far; also that sweep's role and folder
_AGREE = 1e-6  # points by which figures from another machine may differ


class SweepRecord(Record):
    """A sweep by digests."""

    label: str = Field(description="name of the model in reports")
    model: str = Field(description="address of the model")
    model_digest: str = Field(description="sha256 of the model folder")
    examples_digest: str = Field(description="sha256 of what the examples put into prompts")
    settings_digest: str = Field(description="digest of all parameters of the sweep")
    files: dict[str, str] = Field(description="sha256 of each judged file; empty if the file is missing")


def folder_of(path: Path) -> Path:
    """Returns a sweep's folder; `path` is this folder or its `sweep.json`."""
    return path if path.is_dir() else path.parent


def judged_files(folder: Path) -> list[str]:
    """Names the files of a sweep's folder that a verdict rests on: the sweep's and its guards'. Some may be missing."""
    guards = sorted(file.relative_to(folder).as_posix() for file in folder.glob(f"{GUARDS}/*/*"))
    return [*FILES, *(name for name in guards if Path(name).name in _OF_A_GUARD)]


def anchor_beside(champion: Path | None) -> Path | None:
    """Returns the sweep of the best champion so far; if that is another model than today's champion, it lies within the
    latter's sweep."""
    folder = folder_of(champion) / ANCHOR if champion else None
    return folder if folder and (folder / SWEEP_FILE).is_file() else None


def sweep_record(evidence: Evidence) -> SweepRecord:
    """The record of a sweep."""
    folder = folder_of(evidence.path)
    sweep = evidence.sweep
    return SweepRecord(
        **sweep.model_dump(include={"label", "model", "model_digest", "examples_digest"}),
        settings_digest=digest_of(sweep.settings),
        files={name: digest_path(folder / name) if (folder / name).is_file() else "" for name in judged_files(folder)},
    )


def read_gate_inputs(
    candidate: Path,
    base: Path | None,
    champion: Path | None,
    allow: Iterable[str],
    *,
    examples: Mapping[str, AnyExample] | None = None,
    anchor: Path | None = None,
) -> tuple[GateInputs, list[str]]:
    """Reads and checks the sweeps; returns them, paired by example, with the sorted names of the differences that
    `allow` accepted.

    These names are settings in which the sweeps differ, `base` if the candidate was not made from the base, and
    `anchor` if the anchor was left out. Every response is scored again from `examples`, the candidate's examples by
    their content.

    Raises `PosgapError` if a sweep's figures do not follow from its predictions, or its scores from its responses; if
    the sweeps' settings differ; if the candidate was not made from the base; if an example occurs twice; or if
    candidate or champion learnt one of the examples.
    """
    judged = _read_evidence(candidate)
    allowed = set(allow)
    twice = len(judged.contents) - len(set(judged.contents))
    if twice:
        raise PosgapError(f"{twice} examples are there twice; sweep each once", at=str(candidate))
    old, otherwise = align_comparable(_read_evidence(base), judged, allowed) if base else (None, [])
    if old and not _is_made_from(judged.sweep, old.sweep):
        if BASE not in allowed:
            raise NotAlike(
                f"{candidate}: {judged.sweep.label} was not made from {old.sweep.label}, the model of {base}, as far "
                f"as its folder says; give the sweep of one that it was made from, or allow another: --allow {BASE}"
            )
        otherwise = [*otherwise, BASE]
    best, best_otherwise = align_comparable(_read_evidence(champion), judged, allowed) if champion else (None, [])
    if anchor and ANCHOR in allowed:
        anchor = None
        otherwise = [*otherwise, ANCHOR]
    before, before_otherwise = align_comparable(_read_evidence(anchor), judged, allowed) if anchor else (None, [])
    for learner in (judged, best):
        if learner:
            _require_unlearnt(learner)
    if examples is not None:
        complaint = _answering_distractors(judged.sweep, examples)
        if complaint and DISTRACTORS not in allowed:
            raise PosgapError(
                f"{candidate}: {complaint}; draw others with `data make qa`, or allow them: --allow {DISTRACTORS}"
            )
        otherwise = [*otherwise, DISTRACTORS] if complaint else otherwise
        for swept in filter(None, (judged, old, best, before)):
            require_scores(swept, examples)
    return GateInputs(judged, old, best, before), sorted({*otherwise, *best_otherwise, *before_otherwise})


def _answering_distractors(sweep: Sweep, examples: Mapping[str, AnyExample]) -> str:
    """Why the position of the gold document says little, as other documents answer too, in words; else empty."""
    n_docs = 0 if sweep.filled else sweep.n_docs
    among = count_unjudged(examples.values(), sweep.asked_task, n_docs)
    if 100 * among <= MOST * len(examples):
        return ""
    return (
        f"in {among} of {len(examples)} examples a distractor holds an answer, so that a model which reads one part of "
        f"the prompt has no gap; {MOST:g} % may"
    )


def evidence_gaps(sweep: Sweep, policy: Policy) -> list[str]:
    """Says why a sweep is no evidence, whatever its result: another task, metric or data than the policy's, too few
    examples, or placements, or holes between these."""
    complaints = []
    if policy.task not in ("", sweep.task):
        complaints.append(f"task {sweep.task}, and the policy asks for {policy.task}")
    if policy.metric not in ("", sweep.metric):
        complaints.append(f"metric {sweep.metric}, and the policy asks for {policy.metric}")
    if policy.data not in ("", sweep.examples_digest):
        complaints.append(f"examples {sweep.examples_digest[:12]}, and the policy asks for {policy.data[:12]}")
    if sweep.n_independent < policy.least_examples:
        complaints.append(f"{sweep.sample_text}, and the gate asks for {policy.least_examples}")
    least = min(policy.least_placements, sweep.n_docs)
    if len(sweep.placements) < least:
        complaints.append(f"{format_count(len(sweep.placements), 'placement')}, and the gate asks for {least}")
    most = math.ceil(SPACING * sweep.n_docs)
    for positions in zip(*sweep.placements):  # each gold document by itself must leave no hole
        swept = sorted({1 - most, *positions, sweep.n_docs + most})
        holes = [(before, after) for before, after in pairwise(swept) if after - before > most]
        if holes:
            low = max(1, holes[0][0])
            high = min(sweep.n_docs, holes[0][1])
            complaints.append(f"nothing is known between positions {low} and {high} of {sweep.n_docs}")
            break
    return complaints


def unanswered_references(inputs: GateInputs, policy: Policy) -> list[str]:
    """Why base or champion are nothing to compare with: they left more prompts unanswered than the policy allows."""
    return [
        f"{role}: {reference.outcomes.phrase(reference.sweep.placements)}, and the gate allows "
        f"{policy.max_unanswered:g} %"
        for role, reference in (("base", inputs.base), ("champion", inputs.champion), ("anchor", inputs.anchor))
        if reference and reference.outcomes.worst_share > policy.max_unanswered
    ]


def unknown_copies(candidate: Evidence, policy: Policy) -> list[str]:
    """Returns why the candidate's copies are unknown although a policy limits them; empty if they are known."""
    if policy.max_unclean == 100 or all(counts.is_known for counts in candidate.outcomes.by_placement):
        return []
    return [
        "an older posgap swept the candidate, and did not look for answers that repeat the prompt: sweep again, or do "
        "not ask for that (max_unclean 100)"
    ]


def wrong_figure(evidence: Evidence) -> str:
    """The first figure of a sweep that its predictions do not give, in words; empty if they give all."""
    sweep = evidence.sweep
    seed = evidence.sweep.settings.get("seed")
    categories = evidence.sweep.categories
    if sweep.definition or sweep.task in TASKS.names():  # else it is a task of a package that is not installed here
        categories = sweep.asked_task.categories([Placement(tuple(p), sweep.n_docs) for p in sweep.placements])
    seed = seed if isinstance(seed, int) else 0
    figures = summarize(evidence.scores, sweep.placements, seed, categories, evidence.sample)
    baselines = baselines_of(evidence.baselines, evidence.correct, evidence.sample)
    figures["baselines"] = {name: baseline.model_dump() for name, baseline in baselines.items()}
    if evidence.sweep.outcomes:
        figures["outcomes"] = evidence.outcomes
    recorded = evidence.sweep.model_dump(mode="json")
    again = evidence.sweep.model_validate(evidence.sweep.model_dump() | figures).model_dump(mode="json")
    return first_difference(recorded, again)


def first_difference(recorded: Any, again: Any, name: str = "") -> str:
    """Says where two JSON values differ; the second is the recomputed one. Empty if they agree."""
    if isinstance(recorded, dict) and isinstance(again, dict):
        keys = dict.fromkeys((*recorded, *again))
        parts = zip(keys, map(recorded.get, keys), map(again.get, keys))
    elif isinstance(recorded, list) and isinstance(again, list) and len(recorded) == len(again):
        parts = zip(range(len(again)), recorded, again)
    else:
        are_numbers = {type(recorded), type(again)} <= {int, float}
        if recorded == again or (are_numbers and math.isclose(recorded, again, rel_tol=1e-9, abs_tol=_AGREE)):
            return ""
        return f"{name} is {recorded}, and should be {again}"
    for key, was, now in parts:
        difference = first_difference(was, now, f"{name}.{key}" if name else str(key))
        if difference:
            return difference
    return ""


def _read_evidence(path: Path) -> Evidence:
    evidence = Evidence(path)
    contradiction = _contradiction(evidence.sweep)
    if contradiction:
        raise Contradiction(f"contradicts itself: {contradiction}; sweep again", at=str(folder_of(path) / SWEEP_FILE))
    wrong = wrong_figure(evidence)
    if wrong:
        raise Contradiction(f"not what its predictions say: {wrong}; sweep again", at=str(folder_of(path) / SWEEP_FILE))
    return evidence


def _contradiction(sweep: Sweep) -> str:
    """Says in words where a sweep's record of how it asked contradicts its settings; empty if they agree.

    A default setting (0, or empty) says nothing.
    """
    said = {"question": sweep.asked.question, "shuffle": sweep.asked.shuffle, "samples": sweep.asked.samples}
    said |= {"max_new_tokens": sweep.asked.max_new_tokens}
    for name, value in said.items():
        if sweep.settings.get(name) and sweep.settings[name] != value:
            return f"asked.{name} is {value}, and settings.{name} is {sweep.settings[name]}"
    task = sweep.settings.get("task", "")
    scored = sweep.definition or sweep.task
    if task and task != scored:
        return f"settings.task is {shorten(task)}, and the responses are scored as those of {shorten(scored)}"
    if sweep.settings.get("temperature") and sweep.asked.decoding == "greedy":
        return f"asked.decoding is greedy, and settings.temperature is {sweep.settings['temperature']}"
    return ""


def _is_made_from(sweep: Sweep, base: Sweep) -> bool:
    """Whether a sweep is of the model of `base`, or of one that was made from it: by digest, and by name of a model on
    the hub or behind an endpoint."""
    known_as = base.model_digest or base.model
    return known_as in ((sweep.model_digest or sweep.model), *sweep.ancestors)


def _require_unlearnt(evidence: Evidence) -> None:
    shared = training_examples(folder_of(evidence.path)).intersection(evidence.contents)
    if shared:
        first = evidence.ids[next(i for i, content in enumerate(evidence.contents) if content in shared)]
        raise PosgapError(
            f"{evidence.path}: {evidence.sweep.label}, or a model it was made from, learnt {len(shared)} of the "
            f"{len(evidence.contents)} examples ({first}, ...); judge it on others"
        )
