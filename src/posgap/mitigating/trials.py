"""Trials of mitigations on some examples, each kept as it comes, so that who was interrupted goes on."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from pydantic import Field
from transformers import PreTrainedModel

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import Record, read_model, write_json
from posgap.foundation.interruption import RESUMES
from posgap.foundation.progress import track
from posgap.generation.generator import Completion, Sampling
from posgap.generation.generator import Generator as Answering
from posgap.generation.served import MUST_STAY, AsServed, Changed, Served
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.mitigated import Mitigated, Question
from posgap.measurement.probe import FirstAnswers
from posgap.measurement.thinking import FirstThoughts
from posgap.mitigating.budget import clearly_worse
from posgap.mitigating.config import MitigateConfig, seconds_of
from posgap.mitigating.splits import MIN_EXAMPLES
from posgap.mitigations.in_force import apply, remove
from posgap.mitigations.mitigation import Mitigation, ModelMitigation, PromptMitigation, Settings, TriedOn
from posgap.mitigations.registry import MITIGATIONS
from posgap.mitigations.state import in_force
from posgap.scaling.fitness import Objective, fitness
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder

BASE = "base"  # the model as it is
_PROMPTS = 4  # on which a mitigation may measure the model before it proposes settings


class OutOfTime(Exception):
    """A trial was given up since its time was over."""


class CannotHave(PosgapError):
    """A mitigation is not for where the model is."""


class Tried(Record):
    """The settings of a mitigation, and the accuracy [P] in points that came of them on a part of the examples.

    Of the model as it is also the `scores` [N, P] of all questions, 0 to 1. `given_up` says why not all questions were
    asked; those that were not count as wrong. It is empty where all were.
    """

    name: str
    settings: dict
    part: str
    accuracy: list[float]
    seconds: float
    scores: list[list[float]] = Field([])
    given_up: str = ""


class _State(Record):
    identity: str
    seconds: float
    tried: list[Tried]
    served: Served = Served()
    kept: dict[str, list[int]] = Field({})  # of a part, the examples that the budget has room for, by index


class Clock:
    """The seconds spent of a budget, those before an interruption included."""

    def __init__(self, budget: float, spent: float = 0.0, now: Callable[[], float] = time.monotonic):
        self.budget, self.now, self.began = budget, now, now() - spent

    @property
    def spent(self) -> float:
        """Seconds spent so far."""
        return self.now() - self.began


class Asking(NamedTuple):
    """A model that is asked, with what makes its prompts and what scores its answers, 0 to 1: a `model` in memory, or
    one that only answers prompts, `elsewhere`. Where the examples have an order of their own, that of a retriever,
    `as_retrieved` asks them in it, and mitigations are to gain over that."""

    model: PreTrainedModel | None
    build: TextPromptBuilder
    placements: Sequence[Placement]
    score: Callable[[str, Sequence[str]], float]
    config: MitigateConfig
    elsewhere: Answering | None = None
    as_retrieved: Placement | None = None

    @property
    def tried_at(self) -> Sequence[Placement]:
        """Where trials ask: in the retriever's order alone, if there is one."""
        return [self.as_retrieved] if self.as_retrieved else self.placements

    @property
    def measured_prompts(self) -> float:
        """How many times as many prompts as a trial a measurement asks: at all placements, and as retrieved."""
        return len(self.placements) + 1 if self.as_retrieved else 1

    @property
    def in_memory(self) -> tuple[PreTrainedModel, PromptBuilder]:
        """The model in memory, and its prompts as token ids; raises `CannotHave` where it is elsewhere."""
        if self.model is None:
            raise CannotHave(f"changes the model itself, and backend {self.config.backend} only takes prompts")
        return self.model, cast(PromptBuilder, self.build)

    @contextmanager
    def under(self, name: str, settings: Settings | None) -> Iterator[Answering]:
        """Within the block the model is as a mitigation has it, or as it is; yields what answers prompts."""
        if self.elsewhere is not None:
            yield self.elsewhere
            return
        model, build = self.in_memory
        mitigation = MITIGATIONS[name] if name != BASE else None
        before = in_force(model)
        changes = mitigation is not None and mitigation.of_model
        if changes:
            assert settings is not None
            apply(model, name, settings)
        try:
            yield TransformersGenerator(model, build.tokenizer, self.config.batch_tokens, pack=True)
        finally:
            if changes and name in before:
                apply(model, name, before[name])
            elif changes:
                remove(model, name)

    def mitigated(self, name: str, settings: Settings | None) -> Mitigated | None:
        """How it is asked by a mitigation of prompts; None by others."""
        if name == BASE or MITIGATIONS[name].of_model:
            return None
        assert settings is not None
        return Mitigated(self.build, cast(PromptMitigation, MITIGATIONS[name]), settings, self.config.seed)


class Trials:
    """Tries mitigations on parts of the examples, at all placements or as retrieved, and keeps what came of it in the
    file `state`.

    A `state` written under another `identity` is ignored. `took` are the seconds of the budget that went before.
    """

    def __init__(
        self,
        asking: Asking,
        parts: Mapping[str, Sequence[AnyExample]],
        state: Path,
        identity: str,
        took: float = 0.0,
    ):
        self.asking, self.parts, self.state, self.identity = asking, dict(parts), state, identity
        self.tried: dict[tuple[str, str, str], Tried] = {}
        self.kept: dict[str, list[int]] = {}
        self.served, spent = Served(), 0.0
        if state.exists():
            kept = read_model(_State, state, state.name)
            if kept.identity == identity:
                self.tried = {_key(row.part, row.name, row.settings): row for row in kept.tried}
                self.served, spent = kept.served, kept.seconds
                for part, which in kept.kept.items():
                    self.leave_out(part, which)
        self.clock = Clock(seconds_of(asking.config.budget), spent + took)

    def __call__(self, part: str, name: str, settings: Settings | None = None, until: float | None = None) -> Tried:
        """The accuracy of a mitigation's settings, or of the model as it is, on a part of the examples.

        Raises `OutOfTime` where it has not come by `until`, in seconds of the clock.
        """
        plain = settings.model_dump(mode="json") if settings else {}
        key = _key(part, name, plain)
        if key not in self.tried:
            began = self.clock.spent
            if isinstance(self.asking.elsewhere, AsServed):
                self.asking.elsewhere.served = self.served
            scores, given_up = self._scores(part, name, settings, until)
            if isinstance(self.asking.elsewhere, AsServed):
                self.served = self.asking.elsewhere.served
            row = Tried(
                name=name,
                settings=plain,
                part=part,
                accuracy=(100 * np.nan_to_num(scores).mean(axis=0)).tolist(),
                seconds=self.clock.spent - began,
                scores=scores.tolist() if name == BASE else [],
                given_up=given_up,
            )
            self.tried[key] = row
            self.keep()
        return self.tried[key]

    def require_same(self, now: Served) -> None:
        """Raises `Changed` where an endpoint said that it was another when settings were tried than it says now."""
        config = self.asking.config
        for name in MUST_STAY[config.identity]:  # type: ignore[attr-defined]  # a registered backend's parameter
            before, others = self.served.said(name), set(now.said(name)).difference(self.served.said(name))
            if before and others:
                raise Changed(
                    f"{config.model}: is no longer what it was: its {name} was {before[-1]}, and is {min(others)} now",
                    "model" if name == "fingerprint" else "any",
                )

    def leave_out(self, part: str, kept: Sequence[int]) -> None:
        """Leaves all examples but those `kept`, by index, out of a part for which the budget has no room."""
        self.kept[part] = list(kept)
        self.parts[part] = [self.parts[part][index] for index in kept]

    def has_tried(self, name: str) -> bool:
        """Whether settings of a mitigation were tried before an interruption."""
        return any(key[1] == name for key in self.tried)

    def seconds_each(self, name: str, settings: Settings | None = None) -> float:
        """The seconds that the measurement of an example will take, with a mitigation or as the model is, by what the
        search took."""
        plain = settings.model_dump(mode="json") if settings else {}
        searched = self.tried[_key("search", name, plain)].seconds / len(self.parts["search"])
        return searched * self.asking.measured_prompts

    def keep(self) -> None:
        """Writes down what was tried, and the time spent."""
        rows = list(self.tried.values())
        saved = _State(identity=self.identity, seconds=self.clock.spent, tried=rows, served=self.served, kept=self.kept)
        write_json(self.state, saved.model_dump(mode="json"))

    def fitness(self, tried: Tried, objective: Objective | None = None) -> float:
        """The objective's value in points, every placement counting alike; by default that of the config."""
        accuracy = np.array(tried.accuracy)
        return fitness(accuracy, np.full(len(accuracy), 1 / len(accuracy)), objective or self.asking.config.objective)

    def _scores(self, part: str, name: str, settings: Settings | None, until: float | None) -> tuple[np.ndarray, str]:
        """The scores `[N, P]` of a part's examples, and why some were not asked for, which are then not a number.

        The model as it is has no trial to spare: at `until` it leaves out the examples that it has not reached.
        """
        asking, examples = self.asking, self.parts[part]
        build, placements, sampling = asking.build, asking.tried_at, Sampling.of(asking.build)
        right, unanswered = np.full((len(examples), len(placements)), np.nan), 0
        last: Completion | None = None  # that was not answered
        is_first = (part, name) == ("search", BASE)
        first = FirstAnswers(build, right.size, asking.config.metric)
        thoughts = FirstThoughts.of(asking.config, right.size if is_first else 0)
        as_it_is = self.tried.get(_key(part, BASE, {}))
        base = np.array(as_it_is.scores) if as_it_is and as_it_is.scores else None
        with asking.under(name, settings) as generator:
            if by := asking.mitigated(name, settings):
                questions = ([Question(example, placement) for placement in placements] for example in examples)
                answered = by.generate(generator, questions, sampling)
            else:
                prompts = ([build.prompt(example, placement) for placement in placements] for example in examples)
                answered = generator.generate(prompts, sampling)
            for example, at, completion in track(answered, right.size, f"{name} on the {part} examples"):
                thoughts(completion)
                if is_first:
                    first(examples[example], placements[at], completion)
                right[example, at] = 0
                if completion.outcome == "answered":
                    answers = build.task.answers(examples[example], placements[at])
                    right[example, at] = asking.score(completion.text, answers)
                elif asking.elsewhere is not None:
                    unanswered, last = unanswered + 1, completion
                # Of a model that thinks, the first answers say together what to do.
                if last and (thoughts.is_over or not last.thoughts):
                    _require_answers(asking.config, name, unanswered, right.size, last.reason)
                if base is not None and (why := _given_up(right, base)):
                    return right, why
                if until is not None and self.clock.spent > until:
                    if name != BASE:
                        raise OutOfTime
                    whole = np.flatnonzero(~np.isnan(right).any(axis=1)).tolist()
                    if MIN_EXAMPLES <= len(whole) < len(examples):
                        self.leave_out(part, whole)
                        return right[whole], ""
        return right, ""


def _given_up(scores: np.ndarray, base: np.ndarray) -> str:
    """Why a mitigation with these scores, not a number where it was not asked, is given up; empty where it is not."""
    harmed, helped = int((scores < base).sum()), int((scores > base).sum())
    if not clearly_worse(harmed, helped):
        return ""
    asked = int((~np.isnan(scores)).sum())
    return (
        f"clearly worse than the model as it is: of the {asked} questions asked, {harmed} were answered worse and "
        f"{helped} better; {scores.size - asked} more were not asked"
    )


def _require_answers(config: MitigateConfig, name: str, unanswered: int, asked: int, why: str) -> None:
    """Raises `PosgapError` where an endpoint leaves more of a trial's questions without an answer than it may: as wrong
    answers they would count for or against a mitigation."""
    most = config.max_unanswered  # type: ignore[attr-defined]  # a registered rule's parameter
    if 100 * unanswered > most * asked:
        raise PosgapError(
            f"{config.model}: {name}: {unanswered} of {asked} questions are not answered, the last: {why}; no more "
            f"than {most:g} % may be (--max-unanswered). What was tried is kept: {RESUMES}"
        )


def tried_settings(mitigation: Mitigation, asking: Asking, examples: Sequence[AnyExample]) -> list[Settings]:
    """The settings of a mitigation that are tried; raises `PosgapError` where the model cannot have it."""
    if isinstance(mitigation, PromptMitigation):
        if mitigation.needs_ranks and not asking.as_retrieved:
            raise CannotHave("goes by the order of a retriever, which these examples do not have")
        return list(mitigation.tried())
    model, build = asking.in_memory
    middle = asking.placements[len(asking.placements) // 2]
    prompts = [build(example, middle) for example in examples[:_PROMPTS]]
    return list(cast(ModelMitigation, mitigation).tried(TriedOn(model, prompts)))


def _key(part: str, name: str, settings: dict) -> tuple[str, str, str]:
    return part, name, json.dumps(settings, sort_keys=True)
