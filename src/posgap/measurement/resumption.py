"""Collects responses to examples at placements, and keeps each as it comes, so that an interrupted run resumes."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from typing import Any, NamedTuple

from posgap.data.reading import examples_file
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_path, work_folder
from posgap.foundation.locations import with_uris
from posgap.foundation.printing import format_count
from posgap.foundation.progress import meter
from posgap.generation.backends import open_generator
from posgap.generation.generator import Completion, Generator, Sampling, Usage
from posgap.generation.pace import EndpointPace, PacedGenerator
from posgap.generation.served import EndpointGenerator, EndpointIdentity
from posgap.measurement.probe import FirstAnswers, why_hopeless
from posgap.measurement.prompt_mitigator import PromptMitigator, Question
from posgap.measurement.settings import AskingSettings
from posgap.measurement.spending import estimated_tokens
from posgap.measurement.unfinished import Unfinished
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import Prompt, TextPromptBuilder

log = logging.getLogger(__name__)
HANDFUL = 16  # first prompts to an endpoint, whose answers decide whether the others are sent
OnCompletion = Callable[[AnyExample, Placement, Completion], None]
OpensGenerator = Callable[[], Generator]


@dataclass(frozen=True)
class PromptGrid:
    """Examples at placements, each answered `samples` times, and how prompts are made and answered.

    `digests` are what the responses depend on besides the settings and the examples' file. An example's prompts are
    numbered: the placement's number times `samples`, plus the sample's number. With `n_docs`, an example's prompts have
    that many documents, at placements of the same depths.
    """

    settings: AskingSettings
    builder: TextPromptBuilder
    examples: Sequence[AnyExample]
    placements: Sequence[Placement]
    sampling: Sampling
    digests: Mapping[str, Any]
    samples: int = 1
    mitigator: PromptMitigator | None = None
    n_docs: Sequence[int] = ()

    @property
    def count(self) -> int:
        """The number of prompts, before a mitigation makes several of one."""
        return len(self.examples) * len(self.placements) * self.samples

    def question(self, example: int, number: int) -> Question:
        """Returns the question of the prompt with this number."""
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
            generate = partial(self.mitigator.generate, generator)
            make = self.question
        by_example = list(missing.items())
        groups = (list(map(partial(make, example), numbers)) for example, numbers in by_example)
        for which, at, completion in generate(groups, sampling):
            example, numbers = by_example[which]
            yield example, numbers[at], completion

    def identity(self) -> dict[str, Any]:
        """Returns all that the responses depend on."""
        asked = {"model": self.settings.model, "stop": list(self.builder.stop)}  # which may come from the metric
        # Responses are kept by their example's place in the file; a larger `limit` takes more of the file.
        digest_of_file = digest_path(examples_file(self.settings.examples))
        return {**self.settings.response_key, **asked, "examples_digest": digest_of_file, **self.digests}

    def describe(self) -> str:
        """Like "2,000 prompts: 100 examples, each at 20 placements"; of an endpoint with tokens, by some prompts."""
        n_examples = len(self.examples)
        often = f", {self.samples} times" if self.samples > 1 else ""
        each = (
            f"{format_count(n_examples, 'example')}, each at {format_count(len(self.placements), 'placement')}{often}"
        )
        if not self.asks_endpoint:
            return f"{self.count:,} prompts: {each}"
        some = range(0, n_examples, 1 + n_examples // 8)
        tokens = self.count * sum(estimated_tokens(self.prompt(example, 0).text) for example in some) // len(some)
        about = round(tokens, 2 - len(str(tokens)))  # two digits: it is an estimate
        most = self.count * (self.builder.max_new_tokens + self.builder.max_thinking_tokens)
        return f"{self.count:,} prompts, in all about {about:,} tokens and answers of at most {most:,}: {each}"

    @property
    def asks_endpoint(self) -> bool:
        """Whether prompts go to an endpoint without a mitigation; each may then cost money."""
        return not self.settings.is_local and self.mitigator is None

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


class GridAnswers(NamedTuple):
    """The completions of all prompts of a grid, in order, an endpoint's statements about itself, and its speed; None
    for a local model, and if nothing was left to ask."""

    completions: list[Completion]
    served: EndpointIdentity | None
    pace: EndpointPace | None


def generate_resumably(
    prompts: PromptGrid,
    title: str,
    opens: OpensGenerator | None = None,
    on_completion: OnCompletion = lambda example, placement, completion: None,
    first_answers: FirstAnswers | None = None,
    token_ids: bool = False,
    answers_are_there: bool = False,
) -> GridAnswers:
    """Returns the answers to all prompts, and sends only those that no earlier run has.

    They are kept beside the settings' `out` as they come, with or without token ids; an interrupted run's answers are
    reused. `on_completion` is called with every answer, those from before the interruption first, and may raise.
    `first_answers` (by default a new `FirstAnswers`) is called with the new ones. Without it, an endpoint gets only a
    handful of prompts if its first answers show that the work is pointless. `title` names the work in progress
    messages. If an answer is missing, `opens`, or the settings' backend, opens the generator. If `answers_are_there`,
    in files, nothing else is asked: `PosgapError` says how many are missing, after all present ones are kept.
    """
    unfinished = Unfinished(work_folder(prompts.settings.out), prompts.identity(), token_ids)
    work = _ResumableWork(prompts, unfinished, title, on_completion, first_answers)
    if first_answers is None:  # else it is one of many sweeps of a comparison, which reports its own progress
        work.say_how_much()
    work.replay_known()
    work.require_fit()
    pace = None
    if work.n_missing:
        sampling = prompts.sampling if answers_are_there else work.fresh_sampling()
        generator = opens() if opens else open_generator(prompts.settings.access, prompts.builder)
        if not answers_are_there and work.is_worth_a_handful:
            work.ask_handful(generator, sampling)
        work.ask(generator, work.list_missing(), sampling, title)
        pace = generator.pace if isinstance(generator, PacedGenerator) else None
    work.require_all()
    served = None if prompts.settings.is_local else unfinished.served
    return GridAnswers(work.list_completions(), served, pace)


@dataclass
class _ResumableWork:
    """Prompts, some perhaps already answered, and the actions on each answer as it comes. `n_missing` were unanswered
    at the start."""

    prompts: PromptGrid
    unfinished: Unfinished
    title: str
    on_completion: OnCompletion
    first_answers: FirstAnswers | None

    def __post_init__(self) -> None:
        prompts = self.prompts
        self.n_missing = sum(map(len, self.list_missing().values()))
        self.note_first = self.first_answers or FirstAnswers(prompts.builder, self.n_missing, prompts.settings.metric)

    def list_missing(self) -> dict[int, list[int]]:
        """Returns the numbers of the prompts by example that are not answered yet."""
        return self.prompts.list_missing(self.unfinished.completions)

    def list_completions(self) -> list[Completion]:
        """Returns all completions, in the order of the prompts."""
        every = product(range(len(self.prompts.examples)), self.prompts.numbers)
        return [self.unfinished.completions[at] for at in every]

    @property
    def is_worth_a_handful(self) -> bool:
        """Returns whether some prompts go first as a probe: if all go to an endpoint and no other check sees the first
        answers."""
        is_new = HANDFUL < self.n_missing == self.prompts.count
        return is_new and self.prompts.asks_endpoint and self.first_answers is None

    def say_how_much(self) -> None:
        """Says how many prompts there are, or how many of them were answered before an interruption."""
        n_known = self.prompts.count - self.n_missing
        if n_known:
            log.info("%d of %d prompts were answered before the interruption", n_known, self.prompts.count)
        else:
            log.info("%s", self.prompts.describe())

    def replay_known(self) -> None:
        """Passes on the answers from before the interruption."""
        for (example, number), completion in sorted(self.unfinished.completions.items()):
            if example < len(self.prompts.examples):
                self.on_completion(*self.prompts.question(example, number)[:2], completion)

    def require_fit(self) -> None:
        """Raises `PosgapError` before anything is spent if a prompt does not fit; an example's differ by few tokens."""
        for example in self.list_missing():
            self.prompts.prompt(example, 0)

    def fresh_sampling(self) -> Sampling:
        """Returns the sampling settings: resumed work draws other samples than the interrupted work."""
        sampling = self.prompts.sampling
        n_known = self.prompts.count - self.n_missing
        return replace(sampling, seed=sampling.seed + n_known) if sampling.temperature else sampling

    def ask_handful(self, generator: Generator, sampling: Sampling) -> None:
        """Asks some prompts. Raises `PosgapError` if these answers show that the others are pointless."""
        prompts = self.prompts
        seen = self.ask(generator, prompts.first_handful(), sampling, f"{self.title}, the first {HANDFUL}")
        why = why_hopeless(prompts.builder, seen, prompts.settings.metric)
        if why:
            raise PosgapError(
                f"{with_uris(prompts.settings.model)}: {why}; the other {prompts.count - len(seen):,} prompts were not "
                "sent; run the command again to send them all the same"
            )

    def ask(
        self, generator: Generator, missing: Mapping[int, Sequence[int]], sampling: Sampling, title: str
    ) -> list[tuple[AnyExample, Placement, Completion]]:
        """Asks prompts by example and number, and hands on each answer as it comes; returns them."""
        seen = []
        for example, number, completion in self._keep(generator, missing, sampling, title):
            asked = (*self.prompts.question(example, number)[:2], completion)
            self.note_first(*asked)
            self.on_completion(*asked)
            seen.append(asked)
        return seen

    def _keep(
        self, generator: Generator, missing: Mapping[int, Sequence[int]], sampling: Sampling, title: str
    ) -> Iterator[tuple[int, int, Completion]]:
        """Yields (example, number, completion), and keeps each completion as it comes.

        Its time is the seconds since the previous one, unless the generator reports its own. It also keeps what an
        endpoint says of itself, which must agree with what it said before.
        """
        if isinstance(generator, EndpointGenerator):
            generator.served = self.unfinished.served
        sent = time.monotonic()
        with meter(sum(map(len, missing.values())), title) as note_done:
            for example, number, completion in self.prompts.complete(generator, missing, sampling):
                usage = completion.usage or Usage()
                if usage.seconds is None:
                    completion = completion._replace(usage=usage._replace(seconds=time.monotonic() - sent))
                if isinstance(generator, EndpointGenerator):
                    self.unfinished.note(generator.served)
                self.unfinished.add(example, number, completion)
                yield example, number, completion
                note_done(1)
                sent = time.monotonic()

    def require_all(self) -> None:
        """Raises `PosgapError` if prompts are still unanswered, as when a file has no answer to them."""
        left = sum(map(len, self.list_missing().values()))
        if left:
            raise PosgapError(
                f"{self.prompts.settings.out}: {left:,} of {self.prompts.count:,} answers are missing; the "
                "answers are kept: give the other files by --answers, or write requests for the missing ones by "
                "--requests FOLDER"
            )
