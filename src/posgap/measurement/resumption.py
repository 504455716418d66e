"""Responses to examples at placements, each kept as it comes, so that an interrupted run goes on where it was."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from typing import Any

from posgap.data.reading import examples_file
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_path, work_folder
from posgap.foundation.locations import with_uris
from posgap.foundation.printing import format_count
from posgap.foundation.progress import meter
from posgap.generation.backends import BACKENDS, open_generator
from posgap.generation.generator import Completion, Generator, Sampling, Usage
from posgap.generation.pace import EndpointPace, PacedGenerator
from posgap.generation.served import EndpointGenerator, EndpointIdentity
from posgap.measurement.probe import FirstAnswers, why_hopeless
from posgap.measurement.prompt_mitigator import PromptMitigator, Question
from posgap.measurement.spending import estimated_tokens
from posgap.measurement.unfinished import Unfinished
from posgap.options.generation import BackendConfig
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import Prompt, TextPromptBuilder

log = logging.getLogger(__name__)
# Of a stage's parameters those that change no response, beside those that change no result at all.
# What prompts are filled with, and how they are mitigated, stands in their digest.
_IN_DIGEST = {"lengths", "depths", "most_gap", "mitigation", "mitigation_settings"}
_WITHOUT_EFFECT = {"metric", "limit", "label", "keep_incorrect"} | _IN_DIGEST
HANDFUL = 16  # first prompts to an endpoint, whose answers decide whether the others are sent
OnCompletion = Callable[[AnyExample, Placement, Completion], None]
OpensGenerator = Callable[[], Generator]


@dataclass(frozen=True)
class PromptGrid:
    """Examples at placements, each asked `samples` times, and how prompts are made and answered.

    `cache_key` holds what the responses depend on beside the config's parameters and the examples' file. A prompt's
    number among those of its example is its placement's times `samples`, and its sample's. With `n_docs`, an example's
    prompts have that many documents, and the placements are at the same depths among them.
    """

    config: BackendConfig
    builder: TextPromptBuilder
    examples: Sequence[AnyExample]
    placements: Sequence[Placement]
    sampling: Sampling
    cache_key: Mapping[str, Any]
    samples: int = 1
    mitigator: PromptMitigator | None = None
    n_docs: Sequence[int] = ()

    @property
    def count(self) -> int:
        """The number of prompts, before a mitigation makes several of one."""
        return len(self.examples) * len(self.placements) * self.samples

    def question(self, example: int, number: int) -> Question:
        """Returns what the prompt of this number asks."""
        at, sample = divmod(number, self.samples)
        placement = self.placements[at].among(self.n_docs[example]) if self.n_docs else self.placements[at]
        return Question(self.examples[example], placement, sample)

    def prompt(self, example: int, number: int) -> Prompt:
        """Returns the prompt of this number, of no mitigation."""
        question = self.question(example, number)
        return self.builder.prompt(question.example, question.placement)._replace(sample=question.sample)

    def complete(
        self, generator: Generator, missing: Mapping[int, Sequence[int]], sampling: Sampling
    ) -> Iterator[tuple[int, int, Completion]]:
        """Yields (example, number, completion) of the prompts that are `missing`, by example and number."""
        generate: Callable = generator.generate
        make: Callable = self.prompt
        if self.mitigator:
            generate, make = partial(self.mitigator.generate, generator), self.question
        by_example = list(missing.items())
        groups = (list(map(partial(make, example), numbers)) for example, numbers in by_example)
        for which, at, completion in generate(groups, sampling):
            example, numbers = by_example[which]
            yield example, numbers[at], completion

    def identity(self) -> dict[str, Any]:
        """Returns all that the responses depend on."""
        names = [name for name in self.config.cache_key_fields() if name not in _WITHOUT_EFFECT]
        identity = {name: getattr(self.config, name) for name in names}
        identity["stop"] = list(self.builder.stop)  # which may come from the metric
        # Responses are kept by the place of their example in its file, of which another `limit` takes more.
        digest_of_file = digest_path(examples_file(self.config.examples))
        return identity | {"model": self.config.model, "examples_digest": digest_of_file} | dict(self.cache_key)

    def describe(self) -> str:
        """Like "2,000 prompts: 100 examples, each at 20 placements"; of an endpoint with tokens, by some prompts."""
        n_examples, often = len(self.examples), f", {self.samples} times" if self.samples > 1 else ""
        each = (
            f"{format_count(n_examples, 'example')}, each at {format_count(len(self.placements), 'placement')}{often}"
        )
        if not self.asks_endpoint:
            return f"{self.count:,} prompts: {each}"
        some = range(0, n_examples, 1 + n_examples // 8)
        tokens = self.count * sum(estimated_tokens(self.prompt(example, 0).text) for example in some) // len(some)
        about = round(tokens, 2 - len(str(tokens)))  # two digits: nobody has counted
        most = self.count * (self.builder.max_new_tokens + self.builder.max_thinking_tokens)
        return f"{self.count:,} prompts of about {about:,} tokens, with answers of at most {most:,}: {each}"

    @property
    def asks_endpoint(self) -> bool:
        """Whether an endpoint is asked by prompts of no mitigation, each of which may cost something."""
        return not BACKENDS[self.config.backend].local and self.mitigator is None

    @property
    def numbers(self) -> range:
        """The numbers of an example's prompts."""
        return range(len(self.placements) * self.samples)

    def first_handful(self) -> dict[int, list[int]]:
        """Returns the numbers of some prompts by example, which differ in both as far as there are others."""
        handful: dict[int, list[int]] = {}
        for shift, example in islice(product(self.numbers, range(len(self.examples))), HANDFUL):
            handful.setdefault(example, []).append((example + shift) % len(self.numbers))
        return handful

    def list_missing(self, answered: Collection[tuple[int, int]]) -> dict[int, list[int]]:
        """Returns the numbers of the prompts by example that are not among these (example, number)."""
        missing = {}
        for example in range(len(self.examples)):
            left = [number for number in self.numbers if (example, number) not in answered]
            if left:
                missing[example] = left
        return missing


def generate_resumably(
    prompts: PromptGrid,
    title: str,
    opens: OpensGenerator | None = None,
    on_completion: OnCompletion = lambda example, placement, completion: None,
    first_answers: FirstAnswers | None = None,
    token_ids: bool = False,
    answers_are_there: bool = False,
) -> tuple[list[Completion], EndpointIdentity | None, EndpointPace | None]:
    """Returns the completions of all prompts, in order, what an endpoint said of itself, and how fast it answered.

    They are kept beside the config's `out` as they come, with their token ids or without; those of an interrupted run
    are not asked for again. `on_completion` is called with all of them, those of before the interruption first, and may
    raise; `first_answers`, or another of its kind, with the others; without it no more than a handful is sent to an
    endpoint whose first answers say that nothing can come of it. `title` names the work where its progress is shown.
    Where something is missing `opens`, or the config's backend, gives what answers. If `answers_are_there`, in files,
    it has no more than those: `PosgapError` says how many are missing, once all that is there is kept.
    """
    unfinished = Unfinished(work_folder(prompts.config.out), prompts.identity(), token_ids)
    missing = prompts.list_missing(unfinished.completions)
    pace: EndpointPace | None = None
    n_missing = sum(map(len, missing.values()))
    if first_answers:
        pass  # one of many sweeps of a comparison, which says itself what it does
    elif n_missing < prompts.count:
        n_known = prompts.count - n_missing
        log.info("%d of %d prompts were answered before the interruption", n_known, prompts.count)
    else:
        log.info("%s", prompts.describe())
    for (example, number), completion in sorted(unfinished.completions.items()):
        if example < len(prompts.examples):
            on_completion(*prompts.question(example, number)[:2], completion)
    for example in missing:
        # What does not fit is said before anything is spent; other placements differ by a few tokens.
        prompts.prompt(example, 0)
    if missing:
        sampling, builder = prompts.sampling, prompts.builder
        if sampling.temperature and not answers_are_there:
            # What goes on draws other samples than what was interrupted.
            sampling = replace(sampling, seed=sampling.seed + prompts.count - n_missing)
        generator = opens() if opens else open_generator(prompts.config.access(), builder)
        costs_something = prompts.asks_endpoint and first_answers is None and not answers_are_there
        tries_handful = costs_something and HANDFUL < n_missing == prompts.count
        note_first = first_answers or FirstAnswers(builder, n_missing, prompts.config.metric)
        seen = []

        def ask(part: Mapping[int, Sequence[int]], words: str) -> None:
            for example, number, completion in _stream(prompts, generator, unfinished, part, sampling, words):
                asked = (*prompts.question(example, number)[:2], completion)
                note_first(*asked)
                on_completion(*asked)
                seen.append(asked)

        if tries_handful:
            ask(prompts.first_handful(), f"{title}, the first {HANDFUL}")
            _require_hope(prompts, seen)
            missing = prompts.list_missing(unfinished.completions)
        ask(missing, title)
        pace = generator.pace if isinstance(generator, PacedGenerator) else None
    left = sum(map(len, prompts.list_missing(unfinished.completions).values()))
    if left:
        raise PosgapError(
            f"{prompts.config.out}: {left:,} of {prompts.count:,} answers are missing; what was read is kept: give "
            "--answers with the other files, or write requests for these alone: --requests FOLDER"
        )
    served = None if BACKENDS[prompts.config.backend].local else unfinished.served
    kept = unfinished.completions
    return [kept[at] for at in product(range(len(prompts.examples)), prompts.numbers)], served, pace


def _require_hope(prompts: PromptGrid, seen: Sequence[tuple[AnyExample, Placement, Completion]]) -> None:
    """Raises `PosgapError` where nothing can come of the other prompts by what the first answers are."""
    why = why_hopeless(prompts.builder, seen, prompts.config.metric)
    if why:
        raise PosgapError(
            f"{with_uris(prompts.config.model)}: {why}; the other {prompts.count - len(seen):,} prompts were not sent; "
            "run the command again to send them all the same"
        )


def _stream(
    prompts: PromptGrid,
    generator: Generator,
    unfinished: Unfinished,
    missing: Mapping[int, Sequence[int]],
    sampling: Sampling,
    title: str,
) -> Iterator[tuple[int, int, Completion]]:
    """Asks the prompts that are `missing`, by example and number, and yields (example, number, completion).

    Each completion is kept as it comes, with the seconds since the one before unless the generator says what it took,
    and so is what an endpoint says of itself, which must go on from what it said before.
    """
    if isinstance(generator, EndpointGenerator):
        generator.served = unfinished.served
    sent = time.monotonic()
    with meter(sum(map(len, missing.values())), title) as note_done:
        for example, number, completion in prompts.complete(generator, missing, sampling):
            usage = completion.usage or Usage()
            if usage.seconds is None:
                completion = completion._replace(usage=usage._replace(seconds=time.monotonic() - sent))
            if isinstance(generator, EndpointGenerator):
                unfinished.note(generator.served)
            unfinished.add(example, number, completion)
            yield example, number, completion
            note_done(1)
            sent = time.monotonic()
