"""Tries a version before it serves: the model answers some prompts again that decide its verdict.

A sweep's responses are in a file that anybody can edit. To turn a verdict, an attacker must edit a minimum number of
them (`DecidingEdits`). Enough prompts are repeated to include an edited one with 95 %.

`promote` calls `require_triable`, then `require_references` for champion, anchor and base, and at last
`require_answers` for the candidate.
"""

import copy
import functools
import logging
import math
import random
import shutil
import tempfile
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posgap.foundation.errors import Contradiction, PosgapError, shorten
from posgap.foundation.files import digest_of, digest_path, read_model
from posgap.foundation.heavy_types import ModelVersion
from posgap.foundation.registry import Parameters
from posgap.gating.demands import Guard, Policy
from posgap.gating.evidence import BASE, GUARDS, TEXT_FILE, sweep_record
from posgap.gating.guards import GuardRule, Sources, binding
from posgap.gating.rules import GateInputs, GateRule, Judged
from posgap.gating.verdict import against, asked_rules
from posgap.generation.generator import Completion
from posgap.measurement.comparability import list_differences
from posgap.measurement.evidence import Evidence
from posgap.measurement.plain_text import TextScores, score_model
from posgap.measurement.predictions import PREDICTIONS_FILE, Prediction, outcome_of, read_predictions, swept_rows
from posgap.measurement.rescoring import echo_finder, metric_scorer
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.storage.inputs import source
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tracking import registry
from posgap.tracking.answering import SweptAnswers, why_not_tried
from posgap.tracking.version_record import judged_sweep, record_of

log = logging.getLogger(__name__)
TRIAL = "trial"  # a policy allows this if no model need be tried
REFERENCE_TRIAL = "reference-trial"  # if the models that a candidate is compared with need not
MISSED = 0.05  # how often edits that turn the verdict may stay unseen
LEAST = 16  # right responses that are always repeated
MAX_WORSE = 1 / 8  # of the responses that are tried, how many may have a lower score than was recorded


def require_triable(sweep: Sweep, model: Path, policy: Policy) -> None:
    """Raises `PosgapError` if the model in a folder cannot answer its sweep again and the policy asks for that."""
    hindrance = "" if TRIAL in policy.allow else why_not_tried(sweep, model)
    if hindrance:
        raise PosgapError(
            f"{model}: cannot ask the model prompts of its sweep again: {hindrance}; promote on a "
            "machine that can, or set `allow: [trial]` in the policy"
        )


def require_references(
    name: str,
    inputs: GateInputs,
    policy: Policy,
    examples: Mapping[str, AnyExample],
    base: Path | None = None,
    guards: "Sequence[TriedGuard]" = (),
) -> None:
    """Compares the sweeps that a candidate was compared with to the registry's record of the model `name`.

    If a version was promoted with a sweep, the sweep must be that very one, by its sha256. If a champion was swept in
    another way, perhaps on newer examples, its version answers again as in `require_answers`. So does a base that
    stands in for a champion, from the folder `base` if one is given. Raises `PosgapError` if a sweep is another one, or
    the model answers differently: whoever makes a champion look worse displaces it. The same applies to their `guards`.
    """
    versions = registry.versions(name)
    is_tried = not {TRIAL, REFERENCE_TRIAL} & {*policy.allow}
    for role in ("champion", "anchor") if inputs.champion else ("base",):
        evidence = getattr(inputs, role)
        if evidence is None:
            continue
        version = _version_of(evidence, versions)
        with tempfile.TemporaryDirectory() as place:
            recorded = judged_sweep(version, Path(place)) if version else None
            model = functools.cache(functools.partial(_bring, version, evidence.sweep, role, Path(place), base))
            if version and recorded and not list_differences(read_sweep(recorded), evidence.sweep):
                _require_promoted_by(recorded, evidence, f"{name} version {version.version}")
            elif is_tried:
                _require_reference_answers(model(), inputs, policy, examples, role)
            for guard in guards:
                if recorded and guard.is_kept_in(recorded, role):
                    continue
                if is_tried:
                    _require_believable(guard, model(), policy, role)
    if inputs.champion:
        _require_base_of_record(inputs, registry.to_beat(name))


def _require_reference_answers(
    model: Path, inputs: GateInputs, policy: Policy, examples: Mapping[str, AnyExample], role: str
) -> None:
    swept = getattr(inputs, role).path
    try:
        require_answers(model, inputs, policy, examples, swept, role)
    except PosgapError as error:
        raise error.within(f"{swept}: the sweep of the {role} cannot be believed") from None


class TriedGuard(NamedTuple):
    """A binding guard, with the findings on it, and its examples by content, or its texts."""

    name: str
    guard: Guard
    judged: Judged[Any]
    source: Mapping[str, AnyExample] | list[str]

    @property
    def rule(self) -> GuardRule:
        return GuardRule(self.name)

    def is_kept_in(self, sweep: Path, role: str) -> bool:
        """Returns whether a version's own sweep has this very guard beside it."""
        kept = sweep / GUARDS / self.name
        known = getattr(self.judged, role)
        if isinstance(known, TextScores):
            return (kept / TEXT_FILE).is_file() and read_model(TextScores, kept, TEXT_FILE) == known
        file = kept / PREDICTIONS_FILE
        return file.is_file() and digest_path(file) == digest_path(known.path / PREDICTIONS_FILE)


def tried_guards(judged: Mapping[str, Judged[Any]], policy: Policy, sources: Sources) -> list[TriedGuard]:
    """The guards that bind, to be tried."""
    return [TriedGuard(name, policy.guards[name], judged[name], sources[name]) for name in binding(policy, judged)]


def require_guards(model: Path, guards: Sequence[TriedGuard], policy: Policy, role: str = "candidate") -> None:
    """Makes the model in a folder answer prompts of its guards again, as `require_answers` does, and computes plain
    text anew. Raises `PosgapError` if the policy does not admit a model with its new answers."""
    for guard in guards:
        rules: list[tuple[GateRule, Parameters]] = [(guard.rule, guard.guard)]
        known = getattr(guard.judged, role)
        try:
            if TRIAL in policy.allow:
                continue
            if isinstance(guard.source, list):
                _require_texts(model, guard, role)
            elif known is not None:
                require_answers(model, guard.judged, policy, guard.source, known.path, role, rules)  # type: ignore[arg-type]
        except PosgapError as error:
            raise error.within(f"guard {guard.name}") from None


def _require_texts(model: Path, guard: TriedGuard, role: str) -> None:
    known: TextScores = getattr(guard.judged, role)
    assert isinstance(guard.source, list)
    texts = [text for text in guard.source if digest_of(text) in known.scores]
    again = known.model_copy(update={"scores": score_model(str(model), known.dtype, texts)})
    ruling = guard.rule.judge(guard.guard, replace(guard.judged, **{role: again}))  # type: ignore[arg-type]  # a role
    log.info("%s: plain text is at %.4f nats a token, and was recorded at %.4f", role, again.mean, known.mean)
    if not ruling.passed:
        raise Contradiction(f"the {role} has other log-probabilities than recorded, and with these: {against(ruling)}")


def _require_believable(guard: TriedGuard, model: Path, policy: Policy, role: str) -> None:
    try:
        require_guards(model, [guard], policy, role)
    except PosgapError as error:
        raise error.within(f"what was measured of the {role} cannot be believed") from None


def _bring(version: ModelVersion | None, sweep: Sweep, role: str, place: Path, base: Path | None) -> Path:
    """Brings a version's model (without a version: the sweep's model) to `place` and returns its folder."""
    if version is None:
        return _find_model(sweep, role, place, base)
    return registry.bring_model(f"models:/{version.name}/{version.version}", place / "model")


def _find_model(sweep: Sweep, role: str, place: Path, base: Path | None) -> Path:
    """Returns the model that was swept in this `role`: its name on the hub, or a copy of its folder in `place`, which
    cannot change after its digest is taken. The folder is `base` for that role, else the sweep's own. Raises
    `PosgapError` if it is missing or has changed."""
    try:
        model = Path(source(base if base and role == BASE else sweep.model).fetch())
        if sweep.model_digest and model.is_dir():
            model = Path(shutil.copytree(model, place / "model"))
        there = digest_path(model) if model.is_dir() else ""
        hindrance = "" if there == sweep.model_digest else "another model is there by now"
        hindrance = hindrance or why_not_tried(sweep, model)
    except (PosgapError, OSError) as error:
        if isinstance(error, PosgapError) and error.may_pass:
            raise
        hindrance = str(error)
    if hindrance:
        raise PosgapError(
            f"{sweep.model}: cannot ask the {role} prompts of its sweep again: {hindrance}; promote "
            f"on a machine that can, or set `allow: [{REFERENCE_TRIAL}]` in the policy"
        )
    return model


def _version_of(evidence: Evidence, versions: Sequence[ModelVersion]) -> ModelVersion | None:
    """Returns the version of the swept model; None if posgap did not register it."""
    digest = evidence.sweep.model_digest
    return next((version for version in versions if version.tags.get(registry.DIGEST) == digest), None)


def _require_promoted_by(recorded: Path, evidence: Evidence, version: str) -> None:
    """Raises `PosgapError` unless the predictions are those of the recorded sweep."""
    kept, judged = (digest_path(folder / PREDICTIONS_FILE) for folder in (recorded, evidence.path))
    if kept != judged:
        raise Contradiction(
            f"{evidence.path}: not the sweep with which {version} was promoted; gate again with --name and "
            "without --champion"
        )


def _require_base_of_record(inputs: GateInputs, champion: ModelVersion | None) -> None:
    """Raises `PosgapError` if the champion was judged beside the same sweep of the base with other predictions."""
    record = record_of(champion) if champion and inputs.base else None
    if record is None or inputs.base is None:
        return
    judged = sweep_record(inputs.base)
    then = record.sweeps.get("base", {})
    was_same = (then.get("model"), then.get("examples"), then.get("settings")) == (
        judged.model_digest,
        judged.examples_digest,
        judged.settings_digest,
    )
    if was_same and judged.model_digest and then.get(PREDICTIONS_FILE) != judged.files[PREDICTIONS_FILE]:
        raise Contradiction(
            f"{inputs.base.path}: has other responses of the base than the champion's verdict; give the sweep "
            "that was used then, or gate on other examples"
        )


def require_answers(
    model: Path,
    inputs: GateInputs,
    policy: Policy,
    examples: Mapping[str, AnyExample],
    swept: Path,
    role: str = "candidate",
    rules: Sequence[tuple[GateRule, Parameters]] | None = None,
) -> None:
    """Makes the model in a folder answer unpredictably drawn prompts of its sweep.

    `swept` is the folder of that sweep, `examples` are its examples by their content. `inputs` was judged by `policy`,
    with the model in this `role`, or by these `rules` alone. Not all responses need agree, since another processor
    decides near-ties differently. If one score differs, all prompts that affect the verdict are repeated, and the
    verdict is judged on their new answers.

    Raises `PosgapError` if the model cannot be tried and the policy does not allow that; if fewer than half of the
    responses match the sweep's; if more than an eighth are no longer clean answers; if more than an eighth of the right
    ones have a lower score; or if the policy does not admit the model with the new answers.
    """
    sweep = getattr(inputs, role).sweep
    require_triable(sweep, model, policy)
    if TRIAL in policy.allow:
        log.warning("the model is not asked again, as the policy allows")
        return
    rows = swept_rows(read_predictions(swept))
    random.SystemRandom().shuffle(rows)
    edits = DecidingEdits(inputs, asked_rules(policy) if rules is None else rules, role)
    drawn, others = edits.draw(rows)
    answers = SweptAnswers(sweep, model, examples)
    completions = answers.answer(drawn)
    _require_cut(drawn, completions)
    _require_clean(drawn, completions, sweep, examples)
    responses = [completion.text for completion in completions]
    _require_alike(drawn, responses, role)
    score = metric_scorer(sweep)

    def rescore(row: Prediction, response: str) -> float:
        return score(response, examples[row["content"]], Placement(tuple(row["placement"]), sweep.n_docs))

    scores = list(map(rescore, drawn, responses))
    _require_scores(drawn, responses, scores)
    if all(map(math.isclose, scores, _recorded_scores(drawn))):
        return
    log.info("asking %d more prompts again, because a response has another score", len(others))
    scores += [rescore(row, each.text) for row, each in zip(others, answers.answer(others), strict=True)]
    edits.require_admitted([*drawn, *others], scores)


class DecidingEdits:
    """Counts how many rows of a sweep must have been edited, by placement, for an admission to be wrong.

    The sweep has this `role` in the verdict. `made_right` [P] are the least numbers of rows recorded above 0 that, with
    a true score of 0, keep a rule from passing. They count rows at the placement, or rows anywhere if that is fewer,
    since edits across all placements move the mean. `made_wrong` [P] are the same for rows recorded below 1, with a
    true score of 1: if the best placement is recorded as worse, the gap is smaller too. Both are infinite if no number
    is enough.

    Edits at several placements add up: if the share 1 - 0.05^(1 / least) of the rows at each placement is repeated, all
    edits are missed in at most 5 %.
    """

    def __init__(self, inputs: GateInputs, rules: Sequence[tuple[GateRule, Parameters]], role: str = "candidate"):
        self.inputs = inputs
        self.rules = rules
        self.role = role
        self.evidence: Evidence = getattr(inputs, role)
        self.made_right = self._least_numbers(0.0)
        self.made_wrong = self._least_numbers(1.0)

    def draw(self, rows: Sequence[Prediction]) -> tuple[list[Prediction], list[Prediction]]:
        """Splits the rows, in their order, into those to ask again and the others that have a part in the verdict.

        For each kind (`_kind`) it draws the first rows, as many as the kind's `_share` requires. If fewer than `LEAST`
        of these are right, as many more rows are drawn as are missing, right ones first.
        """
        wanted = Counter(map(self._kind, rows))
        for kind, count in wanted.items():
            wanted[kind] = math.ceil(count * self._share(kind))
        drawn = list[Prediction]()
        others = list[Prediction]()
        spare = list[Prediction]()
        for row in rows:
            kind = self._kind(row)
            # Drawn while more of its kind are wanted; else among the others, or spare if its kind decides nothing.
            place = drawn if wanted[kind] > 0 else others if self._share(kind) else spare
            wanted[kind] -= 1
            place.append(row)
        missing = max(0, LEAST - sum(map(bool, _recorded_scores(drawn))))
        more = sorted(spare + others, key=lambda row: not row["correct"])
        return drawn + more[:missing], [row for row in others if row not in more[:missing]]

    def require_admitted(self, rows: Sequence[Prediction], scores: Sequence[float]) -> None:
        """Raises `PosgapError` unless the rules pass with these scores in place of the rows' own."""
        now = self.evidence.scores.copy()
        for row, score in zip(rows, scores, strict=True):
            now[self.evidence.ids.index(row["id"]), self._column(row)] = score
        inputs = self._with_scores(now)
        rulings = [rule.judge(limits, inputs) for rule, limits in self.rules]
        broken = next((ruling for ruling in rulings if not ruling.passed), None)
        if broken:
            others = sum(not same for same in map(math.isclose, scores, _recorded_scores(rows)))
            raise Contradiction(
                f"{others} of {len(rows)} responses that were asked again have another score than its sweep recorded, "
                f"and with these the policy does not admit it: {against(broken)}"
            )

    def _with_scores(self, scores: np.ndarray) -> GateInputs:
        edited = copy.copy(self.evidence)
        edited.scores = scores
        edited.correct = edited.sample.average(scores)
        edited.unanswered = np.where(scores == self.evidence.scores, self.evidence.unanswered, 0)
        sweeps: dict[str, Any] = {self.role: edited}
        return replace(self.inputs, **sweeps)

    def _least_numbers(self, truth: float) -> list[float]:
        """The least number of edited rows at each placement, or anywhere, if `truth` is their score."""
        able = self.evidence.scores != truth
        anywhere = self._least(able, truth)
        least = list[float]()
        for column in range(able.shape[1]):
            there = able & (np.arange(able.shape[1]) == column)
            least.append(min(anywhere, self._least(there, truth)))
        return least

    def _least(self, able: np.ndarray, truth: float) -> float:
        """Returns the least number of those rows [E, P] that makes a rule fail, if `truth` is their score."""
        scores = self.evidence.scores
        # First whole examples, and those that make the largest difference to other placements.
        order = np.argsort(scores.sum(axis=1) * (1 if truth else -1), kind="stable")
        rows, columns = np.nonzero(able[order])

        def is_turned(count: int) -> bool:
            edited = scores.copy()
            edited[order[rows[:count]], columns[:count]] = truth
            inputs = self._with_scores(edited)
            return not all(rule.is_passed(limits, inputs) for rule, limits in self.rules)

        if not is_turned(len(rows)):
            return math.inf
        return 1 + bisect_left(range(1, len(rows)), True, key=is_turned)

    def _column(self, row: Prediction) -> int:
        return self.evidence.sweep.placements.index(row["placement"])

    def _kind(self, row: Prediction) -> tuple[int, bool, bool]:
        """Returns a row's placement, and whether it can have been made right, and wrong."""
        return self._column(row), row["correct"] > 0, row["correct"] < 1

    def _share(self, kind: tuple[int, bool, bool]) -> float:
        """Returns the share of a kind's rows that is repeated."""
        column, is_right, is_wrong = kind
        shares = [
            is_right * (1 - MISSED ** (1 / self.made_right[column])),
            is_wrong * (1 - MISSED ** (1 / self.made_wrong[column])),
        ]
        return max(shares)


def _recorded_scores(rows: Sequence[Prediction]) -> list[float]:
    return [float(row["correct"]) for row in rows]


def _require_cut(rows: Sequence[Prediction], completions: Sequence[Completion]) -> None:
    """Raises `PosgapError` if a response was cut at the limit of tokens, and its row hides that."""
    for row, completion in zip(rows, completions, strict=True):
        if completion.text == row["response"] and completion.cut and not row.get("cut"):
            raise Contradiction(
                f"the response to {row['id']} is cut at the token limit, but its sweep says it is not: "
                f"{shorten(repr(completion.text))}"
            )


def _require_clean(
    rows: Sequence[Prediction],
    completions: Sequence[Completion],
    sweep: Sweep,
    examples: Mapping[str, AnyExample],
) -> None:
    """Raises `PosgapError` if more than an eighth of the rows are recorded as complete answers of their own, and are
    now empty, copied or cut: responses can be edited so that their scores stay."""
    repeats = echo_finder(sweep)
    hidden = []
    for row, completion in zip(rows, completions, strict=True):
        at = Placement(tuple(row["placement"]), sweep.n_docs)
        text = completion.text
        is_clean = text.strip() and not completion.cut and not repeats(text, examples[row["content"]], at)
        if not is_clean and outcome_of(row) == "answered" and not row.get("cut") and not row.get("echo"):
            hidden.append((row, text))
    if len(hidden) > MAX_WORSE * len(rows):
        raise Contradiction(
            f"{len(hidden)} of {len(rows)} responses are empty, cut or repeat the prompt, but its sweep says "
            f"they do not: {_tell_difference(*hidden[0])}"
        )


def _require_alike(rows: Sequence[Prediction], responses: Sequence[str], role: str) -> None:
    """Raises `PosgapError` if fewer than half of the responses match the rows."""
    others = [pair for pair in zip(rows, responses, strict=True) if pair[0]["response"] != pair[1]]
    same = len(rows) - len(others)
    log.info("%s: %d of %d sampled responses match the sweep", role, same, len(rows))
    if 2 * same < len(rows):
        raise Contradiction(f"only {same} of {len(rows)} responses match its sweep: {_tell_difference(*others[0])}")


def _require_scores(rows: Sequence[Prediction], responses: Sequence[str], scores: Sequence[float]) -> None:
    """Raises `PosgapError` if more than an eighth of the right responses have a lower score than recorded."""
    worse = []
    for row, response, score in zip(rows, responses, scores, strict=True):
        if score < row["correct"]:
            worse.append((row, response))
    right = sum(map(bool, _recorded_scores(rows)))
    if len(worse) > MAX_WORSE * right:
        raise Contradiction(
            f"{len(worse)} of {right} right responses have a lower score than its sweep recorded: "
            f"{_tell_difference(*worse[0])}"
        )


def _tell_difference(row: Prediction, response: str) -> str:
    return f"to {row['id']} it answers {shorten(repr(response))}, and the sweep has {shorten(repr(row['response']))}"
