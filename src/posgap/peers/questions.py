"""Examples at placements as other programs ask them: with the prompts, the limits and the scores of a sweep."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product, starmap
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posgap.data.made import made_examples
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import parse_as
from posgap.generation.backends import BACKENDS
from posgap.generation.endings import before_stop
from posgap.generation.thoughts import split_thoughts
from posgap.measurement import statistics
from posgap.measurement.config import SweepConfig
from posgap.measurement.shape import regions
from posgap.measurement.sweep_run import SweepRun
from posgap.storage.inputs import fetch_place
from posgap.tasks.examples import AnyExample
from posgap.tasks.metrics import RightAnswers
from posgap.tasks.placements import Placement
from posgap.tasks.positions import format_positions
from posgap.tasks.reading import read_examples
from posgap.tasks.task import Task

# The options of `posgap sweep` that say what is asked; how it is asked is the other program's business.
OPTIONS = ("n_docs", "positions", "limit", "metric", "max_new_tokens", "question", "shuffle", "stop", "seed")


class PlacedExample(NamedTuple):
    """An example, and the placement of its gold documents, at which it is asked for."""

    example: AnyExample
    placement: Placement

    @property
    def name(self) -> str:
        """The placement as text: "7", or "3+7"."""
        return format_positions(self.placement.positions)


class Scoring(NamedTuple):
    """How a task scores what a model wrote; `metric` "" means the task's own. A response ends before a string of
    `stop`."""

    task: Task
    metric: str
    stop: tuple[str, ...]

    def response(self, prompt: str, text: str) -> str:
        """The part of the text that is scored: without the model's thoughts, and up to a stop string."""
        return before_stop(split_thoughts(text, None, prompt).answer, self.stop).strip()

    def score(self, response: str, answers: Sequence[str]) -> float:
        """The score of a response, from 0 to 1, where these answers are right; nan without any text, which is no answer
        and counts as wrong."""
        return float(self.task.score(response, answers, self.metric)) if response else math.nan


class Questions:
    """Every example of a sweep at every placement, an example's one after the other.

    `examples` is a file, a folder, or a number: so many are made for the task, as `posgap.sweep` makes them. `options`
    are those of `OPTIONS`, by the names and with the defaults of `posgap sweep`. `where` names who asks in errors.

    Raises `PosgapError` for bad input.
    """

    def __init__(self, where: str, task: str, examples: int | str | Path = 100, **options: Any):
        unknown = sorted(set(options) - set(OPTIONS))
        if unknown:
            raise PosgapError(f"{where}: there is no option {unknown[0]}; choose among examples, {', '.join(OPTIONS)}")
        # What a sweep has beside these says how a model is reached.
        reached = {"model": "-", "examples": "-", "out": "-", "backend": "openai", "base_url": "http://localhost"}
        self.config = parse_as(SweepConfig, reached | {"task": task} | options, where)
        self.builder = BACKENDS["openai"].builder(self.config)
        sweep_run = SweepRun.plan(self.config, self.builder, self._read_or_make(examples))
        self.placements = sweep_run.placements
        self.all = list(starmap(PlacedExample, product(sweep_run.examples, self.placements)))
        asked_of, metric = self.builder.task, self.config.metric
        self.scoring = Scoring(asked_of, metric, self.config.stop_strings(asked_of.stop(metric)))

    @property
    def scoring_of_base(self) -> Scoring:
        """How responses of a model without a chat template are scored, which a sweep ends earlier."""
        usual = self.scoring.task.stop_of_base(self.scoring.metric)
        return self.scoring._replace(stop=self.config.stop_strings(usual))

    @property
    def categories(self) -> list[str]:
        """The category of each placement; empty where there are none."""
        return self.builder.task.categories(self.placements)

    def right_answers(self, question: PlacedExample) -> RightAnswers:
        """The accepted answers, as far as the task says."""
        return self.builder.task.right_answers(*question)

    def prompt_text(self, question: PlacedExample) -> str:
        """The prompt's text, without any chat template."""
        return self.builder.text(*question)

    def _read_or_make(self, named: int | str | Path) -> list[AnyExample]:
        if isinstance(named, bool) or not isinstance(named, int | str | Path):
            raise PosgapError(f"examples: expected a file, a folder, or how many are to be made, got {named!r}")
        if isinstance(named, int) or str(named).isdecimal():  # as text, where it comes from a command line
            return list(made_examples(self.builder.task, int(str(named)), self.config.n_docs, self.config.seed))
        return read_examples(fetch_place(named))


PlacedScore = tuple[str, str, float]  # an example's id, a placement as text, and the score there, or nan


class PositionFigures:
    """The figures of scores, as fractions from 0 to 1, by the names under which other programs show them.

    They are of the examples that were asked for at every one of the `placements`, as in a sweep; a limit of the other
    program may have cut the last one. `categories` are those of the placements, if they have some.
    """

    def __init__(self, placements: Iterable[Placement], categories: Sequence[str] = ()):
        self.placements = list(placements)
        self.names = [format_positions(placement.positions) for placement in self.placements]
        self._of_regions = regions([placement.positions for placement in self.placements], categories)

    @property
    def higher_is_better(self) -> dict[str, bool]:
        """Every figure, in the order in which one reads them, and whether a model is the better the higher it is."""
        accuracies = ["accuracy", *self._of_regions, *(f"at_{name}" for name in self.names)]
        return dict.fromkeys(["gap", "gap_low", "gap_high", "unanswered"], False) | dict.fromkeys(accuracies, True)

    def value(self, figure: str, scores: Iterable[PlacedScore]) -> float:
        """One figure; nan where no example was asked for at every placement."""
        answers = self._score_table(scores)
        if not len(answers):
            return math.nan
        if figure == "unanswered":
            return float(np.isnan(answers).mean())
        correct = np.nan_to_num(answers)
        accuracy = correct.mean(axis=0)
        if figure == "accuracy":
            return float(accuracy.mean())
        if figure == "gap":
            return float(accuracy.max() - accuracy.min())
        if figure in ("gap_low", "gap_high"):
            return statistics.gap_interval(correct)[figure == "gap_high"] / 100
        columns = self._of_regions.get(figure) or [self.names.index(figure.removeprefix("at_"))]
        return float(accuracy[columns].mean())

    def _score_table(self, scores: Iterable[PlacedScore]) -> np.ndarray:
        """The scores [E, P], nan without an answer, of the examples that were asked for at every placement."""
        of_examples: dict[str, dict[str, float]] = {}
        for example, name, score in scores:
            of_examples.setdefault(example, {})[name] = score
        rows = []
        for scored in of_examples.values():
            if len(scored) == len(self.names):
                rows.append(list(map(scored.get, self.names)))
        return np.array(rows)


def options_among(given: Mapping[str, Any]) -> dict[str, Any]:
    """The examples and options that are among settings which are for others too."""
    return {name: value for name, value in given.items() if name in ("examples", *OPTIONS)}
