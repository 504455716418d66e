"""The questions of a search: every example at every placement, with its right response if there is only one."""

from collections.abc import Sequence
from typing import NamedTuple

from posgap.models.rope_lengths import RopeLengths
from posgap.tasks.examples import AnyExample
from posgap.tasks.metrics import METRICS
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import Prompt, PromptBuilder


class SearchQuestion(NamedTuple):
    """A prompt as token ids, the token ids of its only right response (empty if responses are generated and scored),
    and the answers that are right."""

    prompt: list[int]
    response: list[int]
    answers: Sequence[str] = ()

    @property
    def token_ids(self) -> list[int]:
        """Returns the tokens that teacher forcing reads: all but the response's last, whose output is not needed."""
        return self.prompt + self.response[:-1]


def one_right_response(builder: PromptBuilder, examples: Sequence[AnyExample], metric: str) -> bool:
    """Returns whether every question has only one right response: a fixed wording, a single answer to each example, and
    a metric that says when it is right."""
    has_one = bool(builder.task.slot_names) or all(len(example.answers) == 1 for example in examples)
    return builder.task.one_wording and has_one and bool(METRICS[metric].right_after)


def right_response(builder: PromptBuilder, example: AnyExample, placement: Placement, metric: str) -> list[int]:
    """Returns the token ids of the only right response: up to the end of its answer, or whole with its end token if the
    metric's `right_after` is "end".

    The end token is left out if strings end responses (`builder.stop`): a model without a chat template writes one of
    these there, and continues.
    """
    if METRICS[metric].right_after == "end":
        whole = builder.gold_response(example, placement)
        return whole[:-1] if builder.stop else whole
    text = builder.task.target.partition("{answer}")[0] + builder.task.right_answers(example, placement)[0]
    return builder.response_ids(example, placement, text)[:-1]


def make_questions(
    builder: PromptBuilder,
    examples: Sequence[AnyExample],
    placements: Sequence[Placement],
    metric: str,
    teacher_forced: bool,
) -> list[list[SearchQuestion]]:
    """Returns the questions [E][P], with their right responses under `metric` if they are to be teacher-forced."""
    questions = []
    for example in examples:
        row = []
        for placement in placements:
            response = right_response(builder, example, placement, metric) if teacher_forced else []
            answers = builder.task.right_answers(example, placement)
            row.append(SearchQuestion(builder(example, placement), response, answers))
        questions.append(row)
    return questions


def as_groups(questions: Sequence[Sequence[SearchQuestion]]) -> list[list[Prompt]]:
    """Returns the prompts of `questions [E][P]`, as a generator takes them."""
    return [[Prompt("", question.prompt) for question in row] for row in questions]


def unlike_generation(rope: RopeLengths, questions: Sequence[Sequence[SearchQuestion]]) -> str:
    """Returns why a model with such a RoPE would generate something else than teacher forcing sees; empty if it
    would not."""
    return rope.why_not_forced([(len(each.prompt), len(each.response)) for row in questions for each in row])
