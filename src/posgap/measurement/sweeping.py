"""A sweep from its examples to its figures, whoever asks for it: the stage `sweep`, `posgap.sweep`, or a training."""

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import product
from typing import NamedTuple

import numpy as np

from posgap.foundation.errors import PosgapError, shorten
from posgap.foundation.files import digest_of
from posgap.foundation.interruption import RESUMES
from posgap.foundation.locations import with_uris
from posgap.generation.backends import BACKENDS, open_generator
from posgap.generation.generator import Completion, Generator, LazyGenerator, Sampling
from posgap.generation.served import EndpointIdentity
from posgap.measurement.asking import Each, answers
from posgap.measurement.config import SweepConfig
from posgap.measurement.filling import Fill
from posgap.measurement.option_bias import measure_option_bias
from posgap.measurement.outcomes import Outcomes
from posgap.measurement.prompt_mitigator import PromptMitigator
from posgap.measurement.same_place import find_same_place
from posgap.measurement.spending import TokenTotals
from posgap.measurement.sweeps import (
    Prediction,
    PromptSettings,
    Sweep,
    baseline_scores,
    baselines_of,
    make_prediction,
    outcomes_of,
    summarize,
    swept_rows,
)
from posgap.measurement.thinking import EndlessThoughts, FirstThoughts, Retry, refuses_switch, thinking_retries
from posgap.models.precision import device_class
from posgap.storage.lineage import ancestors
from posgap.tasks.content import content_keys, examples_digest
from posgap.tasks.echo import find_copying
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement, shard_of
from posgap.tasks.positions import parse_shard
from posgap.tasks.prompts import TextPromptBuilder
from posgap.tasks.task_file import is_definition

log = logging.getLogger(__name__)
_UNANSWERED = 25  # prompts without an answer that end a sweep early, where there can be no figures any more
_MORE_ROOM = "give thoughts and answer more room: --max-thinking-tokens, --max-new-tokens"
_FAILURES = 25  # prompts that must have failed before a sweep ends early since too many did; each can take minutes


def placements_of(
    builder: TextPromptBuilder, n_docs: int, positions: Sequence[str] = (), shard: str = ""
) -> list[Placement]:
    """The placements of a sweep with prompts of this builder: those of `positions`, or all, and of these a shard."""
    swept = list(builder.fill.placements) if builder.fill else []
    swept = swept or builder.task.choose_placements(n_docs, positions)
    return shard_of(swept, shard)


def baseline_placements(builder: TextPromptBuilder, names: Sequence[str], n_docs: int, shard: str) -> list[Placement]:
    """The baselines of these names: of a sweep in parts, with the first of them."""
    first = not shard or parse_shard(shard)[0] == 1
    return builder.task.baselines(names, n_docs) if first else []


def require_others(examples: Sequence[AnyExample], builder: TextPromptBuilder, placements: Sequence[Placement]) -> None:
    """Raises `PosgapError` where the prompts of every example hold relevant documents alone, so that position cannot
    matter; warns where those of some do."""
    if not builder.task.slots.of_any_number or builder.fill or len(placements) == 1:
        return
    shown = ((example.gold, builder.task.slots.arrange(example, placements[0], 0)) for example in examples)
    if alone := sum(all(document in gold for document in documents) for gold, documents in shown):
        why = (
            f"in {alone} of {len(examples)} examples all {placements[0].n_docs} documents of a prompt are relevant, so "
            "that position cannot matter: give more --n-docs, or label fewer passages as relevant (docs/rag.md)"
        )
        if alone == len(examples):
            raise PosgapError(why)
        log.warning("%s", why)


def mitigated_by(config: SweepConfig, builder: TextPromptBuilder) -> PromptMitigator | None:
    """The mitigation that a sweep's config asks for, if any."""
    return PromptMitigator.for_name(config.mitigation, config.mitigation_settings, config.seed, builder)


def prompt_digest(builder: TextPromptBuilder, mitigated: PromptMitigator | None) -> str:
    """A digest of all that makes a sweep's prompts: the builder's, and with it that of a mitigation."""
    return digest_of([builder.digest(), mitigated.applied_mitigation.model_dump()]) if mitigated else builder.digest()


class Answered(NamedTuple):
    """The predictions of a sweep, an example's after the other's, in the order of its placements, each with all its
    samples, and then those of baselines; how the prompts at the placements ended; and what an endpoint said of itself,
    and what the answers took, where it is known."""

    predictions: list[Prediction]
    outcomes: Outcomes
    served: EndpointIdentity | None
    spent: TokenTotals | None

    @property
    def most_frequent_reason(self) -> str:
        """Why prompts were not answered, most often; empty where no reason was given."""
        reasons = Counter(row["reason"] for row in self.predictions if "outcome" in row and row.get("reason"))
        return shorten(reasons.most_common(1)[0][0]) if reasons else ""


class Swept(NamedTuple):
    """What was answered, the config and the builder by which it was asked in the end, and the digests of model and
    prompts, by the names of `Sweep`."""

    answered: Answered
    config: SweepConfig
    builder: TextPromptBuilder
    digests: dict[str, str]


def swept(
    config: SweepConfig,
    examples: Sequence[AnyExample],
    builder: TextPromptBuilder,
    placements: Sequence[Placement],
    model_digest: str,
    generator: Generator | None = None,
) -> Swept:
    """Asks as `answered` does. Where the first answers end within thoughts, all is asked anew in another way, if there
    is one (`thinking_retries`): without thoughts, or with a limit of their own. Raises
    what `require_others` does."""
    require_others(examples, builder, placements)
    if generator is None and BACKENDS[config.backend].local and not config.mitigation:  # of which some see attention
        generator = LazyGenerator(lambda: open_generator(config, builder))  # one model, however often it is asked anew
    ways = [Retry(config, builder, "as asked"), *thinking_retries(config, builder, examples[0], placements[0])]
    for at, way in enumerate(ways):
        is_last = at == len(ways) - 1
        digests = {
            "model_digest": model_digest,
            "prompt_digest": prompt_digest(way.builder, mitigated_by(way.config, way.builder)),
        }
        try:
            got = answered(way.config, examples, way.builder, placements, digests, generator, is_last)
            return Swept(got, way.config, way.builder, digests)
        except EndlessThoughts as endless:
            log.warning("%s, at the limit of tokens: asked again, %s", endless.seen, ways[at + 1].words)
        except PosgapError as error:
            if is_last or not refuses_switch(way.config):
                raise
            log.warning("%s: asked again, %s", error, ways[at + 1].words)
    raise AssertionError("the last way ends otherwise")


def answered(
    config: SweepConfig,
    examples: Sequence[AnyExample],
    builder: TextPromptBuilder,
    placements: Sequence[Placement],
    digests: Mapping[str, str],
    generator: Generator | None = None,
    even_if_endless: bool = True,
) -> Answered:
    """Asks for every example at every placement, and as the config's baselines have it, and scores the responses.

    Answers are kept beside the config's `out` as they come. `digests` are those of model and prompts, by the names of
    `Sweep`. Without a `generator` the config's backend answers. Raises `PosgapError` early where an endpoint fails, or
    where so many answers are missing that there will be no figures; and `EndlessThoughts` where the first answers end
    within thoughts, unless it is to go on `even_if_endless`.
    """
    sampling = Sampling.for_builder(builder, config.temperature, config.seed)
    what = f"sweep of {config.label or 'the model'}"
    everywhere = [*placements, *baseline_placements(builder, config.baselines, config.n_docs, config.shard)]
    n_prompts = len(examples) * len(everywhere) * config.samples
    each = _supervision(config, n_prompts, len(everywhere), None if even_if_endless else FirstThoughts(n_prompts))
    completions, served = answers(
        config, examples, everywhere, builder, sampling, what, dict(digests), each, config.samples,
        generator=generator, mitigated=mitigated_by(config, builder),
    )  # fmt: skip
    asked = product(zip(examples, content_keys(examples)), everywhere, range(config.samples))
    predictions = list[Prediction]()
    for ((example, content), at, sample), said in zip(asked, completions, strict=True):
        right = builder.task.right_answers(example, at)
        copies = find_copying(partial(builder.text, example, at), said.text, right)
        score = builder.task.score(said.text, right, config.metric)
        predictions.append(make_prediction(example, content, at, sample, said, score, copies))
    predictions.sort(key=lambda row: "baseline" in row)
    outcomes = outcomes_of(predictions, [placement.positions for placement in placements])
    spent = TokenTotals.from_usages(completion.usage for completion in completions)
    return Answered(predictions, outcomes, served, spent)


def figures(
    config: SweepConfig,
    examples: Sequence[AnyExample],
    builder: TextPromptBuilder,
    placements: Sequence[Placement],
    digests: Mapping[str, str],
    answered: Answered,
    label: str,
    factors: Sequence | None = None,
    device: str = "",
) -> Sweep:
    """The figures of a sweep that was answered: of the model that `label` names, whose config names these RoPE
    factors, if any. `device` is that of a model in memory."""
    swept = swept_rows(answered.predictions)
    correct = np.array([row["correct"] for row in swept], dtype=float)
    correct = correct.reshape(len(examples), len(placements), config.samples).mean(axis=2)
    choices, mitigated = None, mitigated_by(config, builder)
    # At some of the placements alone items would not stand in every slot equally often.
    if builder.task.slot_names and len(placements) == config.n_docs:
        responses = (row["response"] for row in swept)
        choices = measure_option_bias(builder.task, examples, placements, responses, config.shuffle)
    habit = None
    if mitigated is None:  # else the model may have read the documents in another order than they were given in
        answers = (row for row in swept if not row["correct"] and "outcome" not in row)
        wrong = ((row["id"], row["placement"], row["response"]) for row in answers)
        habit = find_same_place(builder, examples, placements, wrong)
    return Sweep(
        task=builder.task.name,
        definition=config.task if is_definition(config.task) else "",
        model=with_uris(config.model),
        label=label,
        scaling={"factors": factors} if factors else None,
        metric=config.metric or builder.task.metric,
        n_docs=placements[0].n_docs,
        **summarize(correct, [list(p.positions) for p in placements], config.seed, builder.task.categories(placements)),
        outcomes=answered.outcomes,
        choices=choices,
        same_place=habit,
        baselines=baselines_of(
            baseline_scores(answered.predictions, [e.id for e in examples], config.samples, config.out), correct
        ),
        examples_digest=examples_digest(examples, 0 if builder.fill else config.n_docs, config.shuffle),
        **digests,
        ancestors=ancestors(config.model),
        asked=_asked(config, builder, answered.served, device),
        settings=config.parameter_values(),
        served=answered.served,
        spent=answered.spent,
        filled=builder.fill.filled(builder, examples[0]) if isinstance(builder.fill, Fill) else None,
        mitigation=mitigated.applied_mitigation if mitigated else None,
    )


def _supervision(config: SweepConfig, n_prompts: int, n_placements: int, thoughts: FirstThoughts | None) -> Each:
    """What warns once that at a placement more prompts are not answered than there may be, and ends a sweep of so many
    prompts when there are many such prompts, since it can have no figures any more; and what looks at the `thoughts` of
    the first answers."""
    unanswered: Counter[Placement] = Counter()
    most, failed, is_said = config.max_unanswered / 100 * n_prompts, 0, False

    def each(example: AnyExample, placement: Placement, completion: Completion) -> None:
        nonlocal failed, is_said
        if thoughts:
            thoughts(completion)
        if completion.outcome == "answered":
            return
        failed += completion.outcome == "failed"
        if failed >= _FAILURES and failed > most:
            raise PosgapError(
                f"{with_uris(config.model)}: {failed} of {n_prompts:,} prompts have failed already, the last: "
                f"{completion.reason}; no more than {config.max_unanswered:g} % may go without an answer "
                f"(--max-unanswered). What was answered is kept: when the endpoint works again, {RESUMES}"
            )
        unanswered[placement] += 1
        if unanswered[placement] <= most / n_placements:
            return
        if unanswered.total() >= _UNANSWERED:
            raise PosgapError(
                f"{with_uris(config.model)}: {unanswered.total()} of {n_prompts:,} prompts were not answered already, "
                f"the last: {completion.reason}; no figures can come of this, since no more than "
                f"{config.max_unanswered:g} % at a placement may go without an answer; "
                f"{_MORE_ROOM if completion.outcome == 'truncated' else 'a higher --max-unanswered allows it'}"
            )
        if not is_said and (thoughts is None or thoughts.is_over):
            is_said = True
            log.warning(
                "more than the %g %% of prompts that --max-unanswered allows are not answered with the gold at "
                "%s: there will be no figures (%s: %s)",
                config.max_unanswered, placement.name, completion.outcome, completion.reason,
            )  # fmt: skip

    return each


def _asked(
    config: SweepConfig, builder: TextPromptBuilder, served: EndpointIdentity | None, device: str
) -> PromptSettings:
    backend = BACKENDS[config.backend]
    body = {} if backend.local else config.redacted_dump()["body"]
    decoding = backend.decoding(config, served)
    if config.temperature:
        decoding = f"temperature {config.temperature:g}" if decoding == "greedy" else decoding
        decoding += f", {config.samples} samples" * (config.samples > 1)
    return PromptSettings.from_builder(builder, decoding, body).model_copy(
        update={
            "samples": config.samples,
            "dtype": config.dtype if backend.local else "",
            "device": (device or device_class()) if backend.local else "",
        }
    )
