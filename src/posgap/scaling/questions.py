"""What a search asks: every example at every placement, and whether one forward pass can judge it."""

from collections.abc import Sequence
from typing import NamedTuple

from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder


class Question(NamedTuple):
    """A prompt, the token ids of its one right response (empty where others are right too), and the
    answers accepted in text."""

    prompt: list[int]
    response: list[int]
    answers: list[str]


def one_right_response(build: PromptBuilder, examples: Sequence[AnyExample]) -> bool:
    """Whether the task words its responses in one way, and each example has a single answer."""
    return bool(build.task.answer) and all(len(example.answers) == 1 for example in examples)


def ask(
    build: PromptBuilder,
    examples: Sequence[AnyExample],
    placements: Sequence[Placement],
    metric: str,
    teacher_forced: bool,
) -> list[list[Question]]:
    """Questions [E][P], with the right responses under `metric` where they are to be teacher-forced."""
    return [
        [
            Question(
                build(example, placement),
                build.response_ids(example, placement, metric) if teacher_forced else [],
                example.answers,
            )
            for placement in placements
        ]
        for example in examples
    ]
