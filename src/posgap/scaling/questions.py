"""What a search asks: every example at every placement, and whether one forward pass can judge it."""

from collections.abc import Sequence
from typing import NamedTuple

from posgap.errors import PosgapError
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder


class Question(NamedTuple):
    """A prompt, the token ids of its one right response (empty where others are right too), and the
    example it asks (none where the token ids tell)."""

    prompt: list[int]
    response: list[int]
    example: AnyExample | None = None

    @property
    def read(self) -> list[int]:
        """What teacher forcing reads: all but the last token, whose output nobody asks for."""
        return self.prompt + self.response[:-1]


def one_right_response(build: PromptBuilder, examples: Sequence[AnyExample]) -> bool:
    """Whether the task words its responses in one way, and each example has a single answer."""
    return build.task.one_wording and all(len(example.answers) == 1 for example in examples)


def right_response(build: PromptBuilder, example: AnyExample, placement: Placement, metric: str) -> list[int]:
    """Token ids of the one right response: under em whole, with the end token; under sub_em as far as
    its answer reaches. `PosgapError` where the task or the example leaves it open."""
    if not one_right_response(build, [example]):
        raise PosgapError(f"example {example.id}: task {build.task.name} has no single right response")
    if metric == "em":
        return build.gold_response(example, placement)
    text = build.task.target.partition("{answer}")[0] + example.answers[0]
    return build.response_ids(example, placement, text)[:-1]


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
                right_response(build, example, placement, metric) if teacher_forced else [],
                example,
            )
            for placement in placements
        ]
        for example in examples
    ]
