"""A sweep from its examples to its figures, by whomever: the stage, `posgap.sweep`, or a comparison of mitigations."""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from typing import Any, Literal

import numpy as np

from posgap.foundation.errors import PosgapError, shorten
from posgap.foundation.files import digest_of, work_folder
from posgap.foundation.interruption import RESUMES
from posgap.foundation.locations import with_uris
from posgap.generation.asking import ModelAccess
from posgap.generation.backends import BACKENDS, open_generator
from posgap.generation.generator import Completion, Sampling
from posgap.generation.pace import EndpointPace
from posgap.generation.served import EndpointIdentity
from posgap.measurement.evidence import Evidence
from posgap.measurement.figures import baseline_scores, baselines_of, summarize
from posgap.measurement.filling import Fill
from posgap.measurement.option_bias import measure_option_bias
from posgap.measurement.outcomes import Outcomes
from posgap.measurement.predictions import Prediction, make_prediction, outcomes_of, read_predictions, swept_rows
from posgap.measurement.probe import FirstAnswers
from posgap.measurement.prompt_mitigator import PromptMitigator
from posgap.measurement.resumption import OnCompletion, OpensGenerator, PromptGrid, generate_resumably
from posgap.measurement.same_place import find_same_place
from posgap.measurement.sample import Sample
from posgap.measurement.settings import SweepSettings
from posgap.measurement.spending import TokenTotals
from posgap.measurement.sweeps import PromptSettings, Sweep
from posgap.measurement.thinking import FirstThoughts, Retry, UnfinishedThoughts, thinking_retries, turns_off
from posgap.measurement.unfinished import Unfinished
from posgap.models.precision import device_class
from posgap.storage.lineage import ancestors
from posgap.tasks.answering_distractors import describe_answering
from posgap.tasks.content import content_keys, examples_digest, require_different
from posgap.tasks.echo import find_copying
from posgap.tasks.examples import AnyExample
from posgap.tasks.metrics import METRICS, is_sentence
from posgap.tasks.placements import Placement, shard_of
from posgap.tasks.positions import is_first_part
from posgap.tasks.prompts import TextPromptBuilder
from posgap.tasks.rag import order_of_retriever
from posgap.tasks.special_tokens import OF_ANY_MODEL, count_special
from posgap.tasks.task_file import is_definition

log = logging.getLogger(__name__)
_UNANSWERED = 25  # unanswered prompts that end a sweep early, if figures are no longer possible
_MORE_ANSWERS = {  # what to do if most prompts end so
    "failed": f"what was answered is kept: when the endpoint works again, {RESUMES}",
    "truncated": "give thoughts and answer more room: --max-thinking-tokens, --max-new-tokens",
}


@dataclass
class SweepRun:
    """One sweep: its settings, its answers, and its result.

    `predictions` go example by example, placement by placement, with all samples, and end with the baselines'.
    `settings` and `builder` belong to the last try: `run` replaces them if thoughts do not end.
    """

    settings: SweepSettings
    builder: TextPromptBuilder
    examples: Sequence[AnyExample]
    placements: Sequence[Placement]
    model_digest: str = ""
    predictions: list[Prediction] = field(default_factory=list)
    served: EndpointIdentity | None = None
    pace: EndpointPace | None = None
    spent: TokenTotals | None = None

    @classmethod
    def plan(
        cls, settings: SweepSettings, builder: TextPromptBuilder, examples: Sequence[AnyExample], model_digest: str = ""
    ) -> "SweepRun":
        """Plans a sweep of the settings' part of the examples and placements. Examples that a retriever ranked are
        asked as it ranked them too, unless the settings name other baselines. Raises `PosgapError` if an example is
        there twice, and what `require_distractors` does."""
        as_retrieved = order_of_retriever(builder.task, examples, settings.n_docs)
        if as_retrieved and not settings.baselines and not builder.fill:
            settings = settings.with_parameters(baselines=[as_retrieved.name])
        placements = list_placements(builder, settings.n_docs, settings.positions, settings.shard)
        plan = cls(settings, builder, examples[: settings.limit or None], placements, model_digest)
        require_different(plan.examples)
        require_distractors(plan.examples, builder, placements)
        warn_of_sentences(plan.examples, settings.metric or builder.task.metric)
        answering = describe_answering(plan.examples, builder.task, 0 if builder.fill else placements[0].n_docs)
        if answering:
            log.warning("%s: a model that reads only one part of the prompt can seem to have no gap", answering)
        if not settings.is_local:
            _warn_of_special_tokens(plan.examples)
        return plan

    @property
    def all_placements(self) -> list[Placement]:
        """The placements, and the baselines."""
        settings = self.settings
        is_first = is_first_part(settings.shard)
        baselines = self.builder.task.baselines(settings.baselines, settings.n_docs) if is_first else []
        return [*self.placements, *baselines]

    @property
    def mitigator(self) -> PromptMitigator | None:
        """Opens the prompt mitigation, if there is one."""
        settings = self.settings
        seed = settings.access.seed
        return PromptMitigator.for_name(settings.mitigation, settings.mitigation_settings, seed, self.builder)

    @property
    def digests(self) -> dict[str, str]:
        """The digests of the model, and of all that makes the prompts, by their names in `Sweep`."""
        prompts = self.builder.digest()
        mitigator = self.mitigator
        if mitigator:
            prompts = digest_of([prompts, mitigator.applied_mitigation.model_dump()])
        return {"model_digest": self.model_digest, "prompt_digest": prompts}

    @property
    def outcomes(self) -> Outcomes:
        """How the prompts at the placements ended."""
        return outcomes_of(self.predictions, [placement.positions for placement in self.placements])

    @property
    def most_frequent_reason(self) -> str:
        """Why prompts were not answered, most often, and how often that was; reasons of a kind begin alike, up to a
        colon. Empty if no reason was given."""
        reasons = [row["reason"] for row in self.predictions if "outcome" in row and row.get("reason")]
        kinds = Counter(reason.partition(":")[0] for reason in reasons)
        if not kinds:
            return ""
        ((kind, count),) = kinds.most_common(1)
        first = next(reason for reason in reasons if reason.partition(":")[0] == kind)
        return f"{shorten(first)} ({count} times)" if count > 1 else shorten(first)

    @property
    def shortfall(self) -> str:
        """Why there are no figures, in words: at some placement more prompts went unanswered than `max_unanswered`
        allows. Empty if enough was answered."""
        outcomes = self.outcomes
        most = self.settings.max_unanswered
        if outcomes.worst_share <= most:
            return ""
        at = f" at {self.builder.fill.tokens:,} tokens" if self.builder.fill else ""
        phrase = outcomes.phrase([placement.positions for placement in self.placements])
        often = f"; most often: {self.most_frequent_reason}" if self.most_frequent_reason else ""
        return f"{with_uris(self.settings.model)}{at}: no figures: {phrase}, and {most:g} % is allowed{often}"

    def run(
        self,
        opens: OpensGenerator | None = None,
        on_unfinished_thoughts: Literal["retry", "raise", "go on"] = "retry",
        first_answers: FirstAnswers | None = None,
        answers_are_there: bool = False,
    ) -> None:
        """Asks every example at every placement, and scores the responses.

        `opens` opens the generator if prompts are left; without it each try opens the settings' backend. If the first
        answers end within thoughts, `thinking_retries` say how to start again, or `UnfinishedThoughts` is raised.
        Raises `PosgapError` early if an endpoint fails, or if so many answers are missing that there will be no
        figures. Responses are kept beside the settings' `out` as they come; if `answers_are_there`, in files, all of
        them are kept, whatever they say.
        """
        retries: list[Retry] = []
        if on_unfinished_thoughts == "retry":
            retries = list(thinking_retries(self.builder, self.examples[0], self.placements[0]))
        plan = self.settings
        while True:
            must_end = bool(retries) or on_unfinished_thoughts == "raise"
            prompts = self.prompts
            watch = _watch(self.settings, prompts, FirstThoughts(prompts.count) if must_end else None)
            watch = watch if not answers_are_there else lambda example, placement, completion: None
            title = f"sweep of {self.settings.label or 'the model'}"
            try:
                completions, self.served, self.pace = generate_resumably(
                    prompts, title, opens, watch, first_answers, answers_are_there=answers_are_there
                )
                break
            except PosgapError as error:
                is_unfinished = isinstance(error, UnfinishedThoughts)
                # An endpoint may not take the switch; a template of this machine was looked at.
                may_refuse = turns_off(self.builder) and not self.settings.is_local
                if not retries or not (is_unfinished or may_refuse):
                    raise
                why = f"{error.seen}, at the limit of tokens" if isinstance(error, UnfinishedThoughts) else error
                changed, self.builder, words = retries.pop(0)
                self.settings = plan.with_parameters(**changed)
                log.warning("%s: asked again, %s", why, words)
        self._score(completions)

    def take_over(self, earlier: Evidence) -> int:
        """Reuses an earlier sweep's answers to the first of these examples, and returns their number: 0 if that sweep
        used another model, other examples or other settings."""
        known = earlier.sweep
        settings = self.settings
        number_of = {(at.positions, at.baseline): number for number, at in enumerate(self.all_placements)}
        is_same = known.model_digest == self.model_digest and known.prompt_digest == self.digests["prompt_digest"]
        is_same = is_same and known.metric == (settings.metric or self.builder.task.metric)
        is_same = is_same and all(known.settings.get(name) == settings.recorded[name] for name in settings.response_key)
        index = {content: at for at, content in enumerate(content_keys(self.examples))}
        if not is_same or not index.keys() >= set(earlier.contents):
            return 0
        unfinished = Unfinished(work_folder(settings.out), self.prompts.identity())
        taken = 0
        for row in read_predictions(earlier.path):
            place = number_of.get((tuple(row["placement"]), row.get("baseline", "")))
            at = index[row["content"]], (place or 0) * settings.samples + row.get("sample", 0)
            outcome = row.get("outcome", "answered")
            if place is None or outcome == "failed" or at in unfinished.completions:
                continue
            told: dict[str, Any] = {name: row[name] for name in ("thoughts", "reason", "cut") if name in row}
            unfinished.add(*at, Completion(row["response"], [], outcome, **told))
            taken += 1
        if known.served:
            unfinished.note(known.served)
        return taken

    @property
    def prompts(self) -> PromptGrid:
        """All that is asked."""
        settings = self.settings
        return PromptGrid(
            settings,
            self.builder,
            self.examples,
            self.all_placements,
            Sampling.for_builder(self.builder, settings.temperature, settings.access.seed),
            self.digests,
            settings.samples,
            self.mitigator,
        )

    def _score(self, completions: Sequence[Completion]) -> None:
        """Makes the predictions of these completions, which come in the order of the prompts."""
        task = self.builder.task
        samples = range(self.settings.samples)
        asked = product(zip(self.examples, content_keys(self.examples)), self.all_placements, samples)
        self.predictions = []
        for ((example, content), placement, sample), completion in zip(asked, completions, strict=True):
            right = task.right_answers(example, placement)
            copies = find_copying(partial(self.builder.text, example, placement), completion.text, right)
            score = task.score(completion.text, right, self.settings.metric)
            self.predictions.append(make_prediction(example, content, placement, sample, completion, score, copies))
        self.predictions.sort(key=lambda row: "baseline" in row)
        self.spent = TokenTotals.from_usages(completion.usage for completion in completions)

    def summarize(self, label: str, factors: Sequence | None = None, device: str = "") -> Sweep:
        """Returns the fields of `sweep.json` for a model called `label`, with its RoPE factors, if any. `device` is the
        device of a model in memory."""
        rows = swept_rows(self.predictions)
        correct = np.array([row["correct"] for row in rows], dtype=float)
        correct = correct.reshape(len(self.examples), len(self.placements), self.settings.samples).mean(axis=2)
        sample = Sample.from_examples(self.examples)
        positions = [list(placement.positions) for placement in self.placements]
        categories = self.builder.task.categories(self.placements)
        return Sweep(
            label=label,
            scaling={"factors": factors} if factors else None,
            asked=self._prompt_settings(device),
            **self._describe_questions(),
            **self._describe_answers(rows, correct, sample),
            **summarize(correct, positions, self.settings.access.seed, categories, sample),
        )

    def _describe_questions(self) -> dict[str, Any]:
        """Returns the fields of `Sweep` that describe the model and its prompts."""
        settings = self.settings
        builder = self.builder
        fill = builder.fill
        mitigator = self.mitigator
        n_docs = 0 if fill else settings.n_docs
        return {
            "task": builder.task.name,
            "definition": settings.task if is_definition(settings.task) else "",
            "model": with_uris(settings.model),
            "metric": settings.metric or builder.task.metric,
            "n_docs": self.placements[0].n_docs,
            "examples_digest": examples_digest(self.examples, n_docs, builder.order.shuffle),
            **self.digests,
            "ancestors": ancestors(settings.model),
            "settings": settings.as_recorded,
            "filled": fill.make_record(builder, self.examples[0]) if isinstance(fill, Fill) else None,
            "mitigation": mitigator.applied_mitigation if mitigator else None,
        }

    def _describe_answers(self, rows: Sequence[Prediction], correct: np.ndarray, sample: Sample) -> dict[str, Any]:
        """Returns the findings on the answers besides the figures, as fields of `Sweep`, from the `rows` of predictions
        at the placements, and their mean scores `correct [E, P]`."""
        settings = self.settings
        task = self.builder.task
        choices = habit = None
        # At some of the placements alone items would not stand in every slot equally often.
        if task.slot_names and len(self.placements) == settings.n_docs:
            responses = [row["response"] for row in rows]
            choices = measure_option_bias(task, self.examples, self.placements, responses, self.builder.order.shuffle)
        if (
            not settings.mitigation
        ):  # else the model may have read the documents in another order than they were given in
            wrong = [row for row in rows if not row["correct"] and "outcome" not in row]
            said = [(row["id"], row["placement"], row["response"]) for row in wrong]
            habit = find_same_place(self.builder, self.examples, self.placements, said)
        ids = [example.id for example in self.examples]
        baselines = baseline_scores(self.predictions, ids, settings.samples, settings.out)
        return {
            "outcomes": self.outcomes,
            "choices": choices,
            "same_place": habit,
            "baselines": baselines_of(baselines, sample.average(correct), sample),
            "served": self.served,
            "pace": self.pace,
            "spent": self.spent,
        }

    def _prompt_settings(self, device: str) -> PromptSettings:
        """Returns how prompts were made and answered, as `Sweep.asked` keeps it."""
        settings = self.settings
        access = settings.access
        body = {} if settings.is_local else settings.recorded["body"]
        decoding = BACKENDS[access.backend].decoding(access, self.served)
        if settings.temperature:
            decoding = f"temperature {settings.temperature:g}" if decoding == "greedy" else decoding
            decoding += f", {settings.samples} samples" if settings.samples > 1 else ""
        here = {"dtype": access.dtype, "device": device or device_class()} if settings.is_local else {}
        asked = PromptSettings.from_builder(self.builder, decoding, body)
        return asked.model_copy(update={"samples": settings.samples, "dtype": "", "device": "", **here})


def open_once(access: ModelAccess, builder: TextPromptBuilder) -> OpensGenerator | None:
    """Returns a function that loads the model once and then reuses it; None for an endpoint: each try of a sweep opens
    its own client."""
    return cache(partial(open_generator, access, builder)) if BACKENDS[access.backend].local else None


def list_placements(
    builder: TextPromptBuilder, n_docs: int, positions: Sequence[str] = (), shard: str = ""
) -> list[Placement]:
    """Returns the placements of a sweep: those of `positions`, or all that the builder's prompts have; a shard takes
    its part."""
    placements = list(builder.fill.placements) if builder.fill else []
    return shard_of(placements or builder.task.choose_placements(n_docs, positions), shard)


def warn_of_sentences(examples: Sequence[AnyExample], metric: str) -> None:
    """Warns if most answers are sentences and the metric asks for them word for word, so that no response is right."""
    wordy = sum(all(map(is_sentence, example.answers)) for example in examples)
    if 2 * wordy > len(examples) and METRICS[metric].right_after:
        log.warning(
            "in %d of %d examples the right answer is a sentence, which the metric %s wants word for word, "
            "and models do not write it so: give short answers, or --metric key_words (docs/log-fields.md)",
            wordy, len(examples), metric,
        )  # fmt: skip


def _warn_of_special_tokens(examples: Sequence[AnyExample]) -> None:
    """Warns of passages with special tokens, which may make an endpoint's server end the user's turn."""
    special = count_special(examples, OF_ANY_MODEL)
    if special["passages_with_special_tokens"]:
        log.warning(
            "%d passages in %d of %d examples hold a token of chats, like <|im_end|>: the endpoint may end the "
            "user's turn there",
            special["passages_with_special_tokens"], special["examples_with_special_tokens"], len(examples),
        )  # fmt: skip


def require_distractors(
    examples: Sequence[AnyExample], builder: TextPromptBuilder, placements: Sequence[Placement]
) -> None:
    """Raises `PosgapError` if every prompt of every example holds only relevant documents; warns if that is so for some
    examples."""
    if not builder.task.slots.of_any_number or builder.fill or len(placements) == 1:
        return
    alone = 0
    for example in examples:
        documents = builder.task.slots.arrange(example, placements[0], 0)
        alone += all(document in example.gold for document in documents)
    if alone:
        why = (
            f"in {alone} of {len(examples)} examples all {placements[0].n_docs} documents of a prompt are relevant, so "
            "that position cannot matter: give more --n-docs, or label fewer passages as relevant (docs/rag.md)"
        )
        if alone == len(examples):
            raise PosgapError(why)
        log.warning("%s", why)


def _watch(settings: SweepSettings, prompts: PromptGrid, thoughts: FirstThoughts | None) -> OnCompletion:
    """Returns a callback that warns when a placement exceeds `max_unanswered`, ends the sweep when no figures can come
    of it any more, and looks at the `thoughts` of the first answers."""
    n_prompts = prompts.count
    unanswered: Counter[Placement] = Counter()
    most = settings.max_unanswered / 100 * n_prompts / len(prompts.placements)
    is_said = False

    def watch(example: AnyExample, placement: Placement, completion: Completion) -> None:
        nonlocal is_said
        if thoughts:
            thoughts(completion)
        if completion.outcome == "answered":
            return
        unanswered[placement] += 1
        if unanswered[placement] <= most:
            return
        if unanswered.total() >= _UNANSWERED:
            raise PosgapError(
                f"{with_uris(settings.model)}: {unanswered.total()} of {n_prompts:,} prompts are unanswered "
                f"already, the last: {completion.reason}; the sweep cannot succeed, because at most "
                f"{settings.max_unanswered:g} % at a placement may stay unanswered; "
                f"{_MORE_ANSWERS.get(completion.outcome, 'a higher --max-unanswered allows it')}"
            )
        if not is_said and (thoughts is None or thoughts.is_over):
            is_said = True
            log.warning(
                "more than the %g %% of prompts that --max-unanswered allows are unanswered with the gold "
                "document at %s, so the sweep will give no figures (%s: %s)",
                settings.max_unanswered, placement.name, completion.outcome, completion.reason,
            )  # fmt: skip

    return watch
