"""The answers of a model to examples at placements, each kept as it comes, so that who was interrupted goes on."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from posgap.foundation.files import digest_path, work_folder
from posgap.foundation.progress import track
from posgap.generation.backends import BACKENDS, BackendConfig, open_generator
from posgap.generation.generator import Completion, Generator, Sampling, Usage
from posgap.generation.served import EndpointGenerator, EndpointIdentity
from posgap.measurement.probe import FirstAnswers
from posgap.measurement.prompt_mitigator import PromptMitigator, Question
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
Each = Callable[[AnyExample, Placement, Completion], None]


def answers(
    config: BackendConfig,
    examples: Sequence[AnyExample],
    placements: Sequence[Placement],
    builder: TextPromptBuilder,
    sampling: Sampling,
    what: str,
    beside: dict[str, Any],
    each: Each = lambda example, placement, completion: None,
    samples: int = 1,
    token_ids: bool = False,
    generator: Generator | None = None,
    mitigated: PromptMitigator | None = None,
) -> tuple[list[Completion], EndpointIdentity | None]:
    """The completions of every example at every placement, in this order, with all `samples` of a prompt one after the
    other, and what an endpoint said of itself.

    They are kept beside the config's `out` as they come, with their token ids or without; what is known already is not
    asked for. `beside` has what decides the answers besides the config's parameters and the examples' file. `each` is
    called with all of them, those of before the interruption first, and may raise. `what` names the work where its
    progress is shown. Without a `generator` the config's backend answers.
    What is `mitigated` is asked so; an answer from several prompts is kept when all of them are there.
    """
    identity = {name: getattr(config, name) for name in config.cache_key_fields() if name not in _WITHOUT_EFFECT}
    identity["stop"] = list(builder.stop)  # which may come from the metric
    # Answers are kept by the place of their example in its file, of which another `limit` takes more.
    identity |= {"model": config.model, "examples_digest": digest_path(examples_file(config.examples))} | beside
    unfinished = Unfinished(work_folder(config.out), identity, token_ids)
    prompts = list(product(range(len(examples)), range(len(placements) * samples)))
    missing: dict[int, list[int]] = {}
    for example, number in prompts:
        if (example, number) not in unfinished.completions:
            missing.setdefault(example, []).append(number)
    left = sum(map(len, missing.values()))
    if left < len(prompts):
        log.info("%d of %d prompts were answered before the interruption", len(prompts) - left, len(prompts))
    else:
        log.info("%s", _amount(len(examples), len(placements), samples))
    for (example, number), completion in sorted(unfinished.completions.items()):
        if example < len(examples):
            each(examples[example], placements[number // samples], completion)
    for example in missing:
        # What does not fit is said before anything is spent; other placements differ by a few tokens.
        builder.prompt(examples[example], placements[0])
    if missing:

        def question(example: int, number: int) -> Question:
            placement, sample = divmod(number, samples)
            return Question(examples[example], placements[placement], sample)

        def prompt(example: int, number: int) -> Prompt:
            placement, sample = divmod(number, samples)
            return builder.prompt(examples[example], placements[placement])._replace(sample=sample)

        if sampling.temperature:
            # What goes on draws other samples than what was interrupted.
            sampling = replace(sampling, seed=sampling.seed + len(prompts) - left)
        generator, first = generator or open_generator(config, builder), FirstAnswers(builder, left, config.metric)
        if mitigated:
            generate = partial(mitigated.generate, generator)
            asked = ask(generator, unfinished, missing, question, sampling, what, generate)
        else:
            asked = ask(generator, unfinished, missing, prompt, sampling, what)
        for example, number, completion in asked:
            first(examples[example], placements[number // samples], completion)
            each(examples[example], placements[number // samples], completion)
    served = None if BACKENDS[config.backend].local else unfinished.served
    return [unfinished.completions[prompt] for prompt in prompts], served


def _amount(n_examples: int, n_placements: int, samples: int) -> str:
    """Like "2,000 prompts: 100 examples, each at 20 placements"."""
    each = f"{n_examples:,} example{'s' * (n_examples > 1)}, each at {n_placements} placements"
    often = f", {samples} times" if samples > 1 else ""
    return f"{n_examples * n_placements * samples:,} prompts: {each}{often}"


def ask(
    generator: Generator,
    unfinished: Unfinished,
    missing: Mapping[int, Sequence[int]],
    prompt: Callable[[int, int], Any],
    sampling: Sampling,
    what: str,
    generate: Callable[[Iterable[Sequence[Any]], Sampling], Iterator[tuple[int, int, Completion]]] | None = None,
) -> Iterator[tuple[int, int, Completion]]:
    """Asks the prompts that are `missing`, by (group, numbers within it), and yields (group, number, completion).

    Each completion is kept as it comes, with the seconds since the one before unless the generator says what it took,
    and so is what an endpoint says of itself, which must go on from what it said before. `generate` answers in place of
    the generator itself, by way of it, and then what `prompt` gives is whatever that takes.
    """
    if isinstance(generator, EndpointGenerator):
        generator.served = unfinished.served
    of_group = list(missing.items())
    groups = ([prompt(group, number) for number in numbers] for group, numbers in of_group)
    answered = (generate or generator.generate)(groups, sampling)
    asked = time.monotonic()
    for which, at, completion in track(answered, sum(map(len, missing.values())), what):
        usage = completion.usage or Usage()
        if usage.seconds is None:
            completion = completion._replace(usage=usage._replace(seconds=time.monotonic() - asked))
        group, numbers = of_group[which]
        if isinstance(generator, EndpointGenerator):
            unfinished.note(generator.served)
        unfinished.add(group, numbers[at], completion)
        yield group, numbers[at], completion
        asked = time.monotonic()
