"""Responses to examples at placements, each kept as it comes, so that an interrupted run goes on where it was."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from typing import Any

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_path, work_folder
from posgap.foundation.locations import with_uris
from posgap.foundation.progress import meter
from posgap.generation.backends import BACKENDS, BackendConfig, open_generator
from posgap.generation.generator import Completion, Generator, Sampling, Usage
from posgap.generation.served import EndpointGenerator, EndpointIdentity
from posgap.measurement.probe import FirstAnswers, why_hopeless
from posgap.measurement.prompt_mitigator import PromptMitigator, Question
from posgap.measurement.spending import estimated_tokens
from posgap.measurement.unfinished import Unfinished
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import Prompt, TextPromptBuilder
from posgap.tasks.reading import examples_file

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
    number among those of its example is its placement's times `samples`, and its sample's.
    """

    config: BackendConfig
    builder: TextPromptBuilder
    examples: Sequence[AnyExample]
    placements: Sequence[Placement]
    sampling: Sampling
    cache_key: Mapping[str, Any]
    samples: int = 1
    mitigator: PromptMitigator | None = None

    @property
    def count(self) -> int:
        """The number of prompts, before a mitigation makes several of one."""
        return len(self.examples) * len(self.placements) * self.samples

    def question(self, example: int, number: int) -> Question:
        """Returns what the prompt of this number asks."""
        placement, sample = divmod(number, self.samples)
        return Question(self.examples[example], self.placements[placement], sample)

    def prompt(self, example: int, number: int) -> Prompt:
        """Returns the prompt of this number, of no mitigation."""
        question = self.question(example, number)
        return self.builder.prompt(question.example, question.placement)._replace(sample=question.sample)

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
        plural = "s" if n_examples > 1 else ""
        each = f"{n_examples:,} example{plural}, each at {len(self.placements)} placements{often}"
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

    def first_handful(self) -> list[tuple[int, int]]:
        """Returns examples and numbers of prompts that differ in both as far as there are others."""
        numbers, examples = len(self.placements) * self.samples, range(len(self.examples))
        diagonals = product(range(numbers), examples)
        return [(example, (example + shift) % numbers) for shift, example in islice(diagonals, HANDFUL)]


def generate_resumably(
    prompts: PromptGrid,
    title: str,
    opens: OpensGenerator | None = None,
    on_completion: OnCompletion = lambda example, placement, completion: None,
    first_answers: FirstAnswers | None = None,
    token_ids: bool = False,
) -> tuple[list[Completion], EndpointIdentity | None]:
    """Returns the completions of all prompts, in order, and what an endpoint said of itself.

    They are kept beside the config's `out` as they come, with their token ids or without; those of an interrupted run
    are not asked for again. `on_completion` is called with all of them, those of before the interruption first, and may
    raise; `first_answers`, or another of its kind, with the others; without it no more than a handful is sent to an
    endpoint whose first answers say that nothing can come of it. `title` names the work where its progress is shown.
    Where something is missing `opens`, or the config's backend, gives what answers.
    """
    unfinished = Unfinished(work_folder(prompts.config.out), prompts.identity(), token_ids)
    numbers = range(len(prompts.placements) * prompts.samples)
    missing: dict[int, list[int]] = {}
    for example in range(len(prompts.examples)):
        left = [number for number in numbers if (example, number) not in unfinished.completions]
        if left:
            missing[example] = left
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
        prompts.builder.prompt(prompts.examples[example], prompts.placements[0])
    if missing:
        sampling, builder = prompts.sampling, prompts.builder
        if sampling.temperature:
            # What goes on draws other samples than what was interrupted.
            sampling = replace(sampling, seed=sampling.seed + prompts.count - n_missing)
        generator = opens() if opens else open_generator(prompts.config, builder)
        parts = [missing]
        if first_answers is None and prompts.asks_endpoint and HANDFUL < n_missing == prompts.count:
            parts = _split_handful(missing, prompts.first_handful())
        first_answers = first_answers or FirstAnswers(builder, n_missing, prompts.config.metric)
        make, generate = prompts.prompt, generator.generate
        if prompts.mitigator:
            make, generate = prompts.question, partial(prompts.mitigator.generate, generator)
        for part in parts:
            of_part, seen = title if part is parts[-1] else f"{title}, the first {HANDFUL}", []
            for example, number, completion in stream_missing(
                generator, unfinished, part, make, sampling, of_part, generate
            ):
                asked = (*prompts.question(example, number)[:2], completion)
                first_answers(*asked)
                on_completion(*asked)
                seen.append(asked)
            if part is not parts[-1]:
                _require_hope(prompts, seen)
    served = None if BACKENDS[prompts.config.backend].local else unfinished.served
    kept = unfinished.completions
    return [kept[at] for at in product(range(len(prompts.examples)), numbers)], served


def _split_handful(
    missing: Mapping[int, Sequence[int]], handful: Sequence[tuple[int, int]]
) -> list[dict[int, list[int]]]:
    """Splits missing prompts into a handful and the others."""
    first: dict[int, list[int]] = {}
    for example, number in handful:
        first.setdefault(example, []).append(number)
    others = {}
    for example, numbers in missing.items():
        left = [number for number in numbers if number not in first.get(example, ())]
        if left:
            others[example] = left
    return [first, others]


def _require_hope(prompts: PromptGrid, seen: Sequence[tuple[AnyExample, Placement, Completion]]) -> None:
    """Raises `PosgapError` where nothing can come of the other prompts by what the first answers are."""
    why = why_hopeless(prompts.builder, seen, prompts.config.metric)
    if why:
        raise PosgapError(
            f"{with_uris(prompts.config.model)}: {why}; the other {prompts.count - len(seen):,} prompts were not sent; "
            "run the command again to send them all the same"
        )


def stream_missing(
    generator: Generator,
    unfinished: Unfinished,
    missing: Mapping[int, Sequence[int]],
    prompt: Callable[[int, int], Any],
    sampling: Sampling,
    title: str,
    generate: Callable[[Iterable[Sequence[Any]], Sampling], Iterator[tuple[int, int, Completion]]] | None = None,
) -> Iterator[tuple[int, int, Completion]]:
    """Asks the prompts that are `missing`, by (group, numbers within it), and yields (group, number, completion).

    Each completion is kept as it comes, with the seconds since the one before unless the generator says what it took,
    and so is what an endpoint says of itself, which must go on from what it said before. `generate` answers in place of
    the generator itself, by way of it, and then what `prompt` gives is whatever that takes.
    """
    if isinstance(generator, EndpointGenerator):
        generator.served = unfinished.served
    by_group = list(missing.items())
    groups = (list(map(partial(prompt, group), numbers)) for group, numbers in by_group)
    sent = time.monotonic()
    with meter(sum(map(len, missing.values())), title) as note_done:
        for which, at, completion in (generate or generator.generate)(groups, sampling):
            usage = completion.usage or Usage()
            if usage.seconds is None:
                completion = completion._replace(usage=usage._replace(seconds=time.monotonic() - sent))
            group, numbers = by_group[which]
            if isinstance(generator, EndpointGenerator):
                unfinished.note(generator.served)
            unfinished.add(group, numbers[at], completion)
            yield group, numbers[at], completion
            note_done(1)
            sent = time.monotonic()
