"""The tasks of Inspect, `inspect eval posgap/kv`: one for each task of posgap, with the gap among its metrics.

Inspect finds them by the entry point `posgap` of its group `inspect_ai`.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import GenerateConfig
from inspect_ai.scorer import Metric, SampleScore, Score, Scorer, Target, metric, scorer
from inspect_ai.solver import TaskState

from posgap.peers.questions import PlacedExample, PositionFigures, Questions, Scoring
from posgap.tasks.metrics import RightAnswers
from posgap.tasks.placements import Placement
from posgap.tasks.positions import format_positions, parse_positions
from posgap.tasks.registry import TASKS

_NO_ANSWER = "no_response"  # Inspect's word for it


def _position_task(name: str) -> Callable[..., Task]:
    """posgap's task of this name, which Inspect then knows too."""

    @task(name=name)
    def position_task(examples: int | str | Path = 100, **options: Any) -> Task:
        """Every example at every placement, asked and scored as `posgap sweep` does.

        `-T examples=examples.jsonl -T n_docs=20`: a file, or how many examples are made, and options of `posgap sweep`
        by their names.
        """
        questions = Questions(f"posgap/{name}", name, examples, **options)
        scoring, names = questions.scoring, [format_positions(at.positions) for at in questions.placements]
        return Task(
            dataset=MemoryDataset(list(map(partial(_sample, questions), questions.all)), name=name),
            scorer=sweep_score(name, scoring.metric, list(scoring.stop)),
            metrics=[position_figures(names, questions.config.n_docs, questions.categories)],
            # What ends a response is cut off afterwards: endpoints stop before any text of the answer too.
            config=GenerateConfig(temperature=0.0, max_tokens=questions.builder.max_new_tokens),
            name=name,
        )

    return position_task


def _sample(questions: Questions, question: PlacedExample) -> Sample:
    answers = questions.right_answers(question)
    return Sample(
        id=f"{question.example.id} at {question.name}",
        input=questions.prompt_text(question),
        target=list(answers),
        metadata={"example": question.example.id, "placement": question.name, "candidates": answers.others},
    )


POSITION_TASKS = {choice.name: _position_task(choice.name) for choice in TASKS}


@scorer(metrics=[])
def sweep_score(task: str, metric: str, stop: Sequence[str]) -> Scorer:
    """Scores a response by a task and a metric of posgap ("": the task's own), up to a string of `stop`."""
    scoring = Scoring(TASKS[task], metric, tuple(stop))

    async def score_state(state: TaskState, target: Target) -> Score:
        response = scoring.response(state.input_text, state.output.completion)
        value = scoring.score(response, RightAnswers(target, (state.metadata or {}).get("candidates", ())))
        if math.isnan(value):  # Inspect would leave it out of the metrics
            return Score(value=0.0, answer=response, reason=_NO_ANSWER)
        return Score(value=value, answer=response)

    return score_state


@metric
def position_figures(placements: Sequence[str], n_docs: int, categories: Sequence[str] = ()) -> Metric:
    """The gap with its 95 % interval, and the accuracy in all, at each part of the prompt and at each placement."""
    figures = PositionFigures([Placement(parse_positions(name), n_docs) for name in placements], categories)

    def of_scores(scores: list[SampleScore]) -> dict[str, float]:
        scored = [(*_example_and_placement(each), _value(each.score)) for each in scores]
        return {figure: figures.value(figure, scored) for figure in figures.higher_is_better}

    return of_scores


def _example_and_placement(scored: SampleScore) -> tuple[str, str]:
    """The example's id and the placement."""
    metadata = scored.sample_metadata or {}
    return metadata["example"], metadata["placement"]


def _value(score: Score) -> float:
    return math.nan if score.reason == _NO_ANSWER else score.as_float()
