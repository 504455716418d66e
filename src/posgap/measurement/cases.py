"""Examples a reader of the report can open."""

from collections.abc import Sequence
from typing import NamedTuple

from posgap.measurement.diagnoses import TokenShift
from posgap.measurement.sweeps import Prediction, outcome_of
from posgap.positions import format_positions
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import TextPromptBuilder
from posgap.tasks.spans import gold_spans

SHOWN = 6


class Part(NamedTuple):
    """A piece of a prompt, and whether it is a gold document."""

    text: str
    gold: bool


class Answer(NamedTuple):
    """A response, where the gold documents stood, and its score from 0 to 1; of what was not answered its outcome, and
    why."""

    placement: str
    response: str
    score: float
    unanswered: str = ""
    reason: str = ""


class Case(NamedTuple):
    """An example with its responses, the prompt of one of them, and how that one turned if it was diagnosed."""

    id: str
    question: str
    answers: list[str]
    placement: str
    prompt: list[Part]
    responses: list[Answer]
    shift: TokenShift | None = None


def case_of(
    example: AnyExample,
    placement: Placement,
    predictions: Sequence[Prediction],
    build: TextPromptBuilder,
    shift: TokenShift | None = None,
) -> Case:
    """The case of an example, from its rows of predictions.jsonl, with its prompt at `placement`."""
    return Case(
        id=example.id,
        question=example.question,
        answers=example.answers,
        placement=format_positions(placement.positions),
        prompt=_parts(build.text(example, placement), gold_spans(build, example, placement)),
        responses=[_answer(row) for row in predictions],
        shift=shift,
    )


def _answer(row: Prediction) -> Answer:
    outcome = outcome_of(row)
    unanswered = "" if outcome == "answered" else outcome
    return Answer(
        format_positions(row["placement"]), row["response"], row["correct"], unanswered, row.get("reason", "")
    )


def mixed_cases(
    examples: Sequence[AnyExample], predictions: Sequence[Prediction], n_docs: int, build: TextPromptBuilder
) -> list[Case]:
    """The first examples that are answered rightly at some placements and wrongly at others, then
    the first of all, each with its prompt where it is answered worst."""
    rows: dict[str, list[Prediction]] = {}
    for row in predictions:
        rows.setdefault(row["id"], []).append(row)
    mixed = sorted(examples, key=lambda example: len({row["correct"] for row in rows[example.id]}) == 1)
    return [
        case_of(
            example,
            Placement(tuple(min(rows[example.id], key=lambda row: row["correct"])["placement"]), n_docs),
            rows[example.id],
            build,
        )
        for example in mixed[:SHOWN]
    ]


def _parts(text: str, spans: Sequence[tuple[int, int]]) -> list[Part]:
    parts, done = [], 0
    for start, end in sorted(spans):
        parts += [Part(text[done:start], False), Part(text[start:end], True)]
        done = end
    return [*parts, Part(text[done:], False)]
