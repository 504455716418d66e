"""The predictions of a sweep: `predictions.jsonl`, a line for each response."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, NotRequired, cast

from pydantic import ConfigDict, Field, with_config
from typing_extensions import TypedDict

from posgap.foundation.files import read_models
from posgap.generation.generator import Completion, Outcome
from posgap.measurement.outcomes import Ending, OutcomeCounts, Outcomes
from posgap.tasks.echo import Copying, Others
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement

PREDICTIONS_FILE = "predictions.jsonl"


@with_config(ConfigDict(extra="allow", allow_inf_nan=False))
class Prediction(TypedDict):
    """A line of `predictions.jsonl`: the response to an example at a placement, and its score from 0 to 1.

    A completion's usual fields are left out: `outcome` if it was answered, `thoughts` and `reason` if there are none,
    `cut` if the token limit did not end the response, `others` if it names no other candidate beside the right answer.
    `echo` says whether an answer repeats the prompt; older versions of posgap did not check. `sample` counts the
    responses to one prompt from 0; 0 is left out. A prompt of a `baseline` has no placement.
    """

    id: str
    content: str
    placement: list[int]
    response: str
    correct: bool | Annotated[float, Field(ge=0, le=1)]
    outcome: NotRequired[Outcome]
    thoughts: NotRequired[str]
    reason: NotRequired[str]
    cut: NotRequired[bool]
    others: NotRequired[Others]
    sample: NotRequired[Annotated[int, Field(ge=0)]]
    baseline: NotRequired[str]
    echo: NotRequired[bool]


def make_prediction(
    example: AnyExample,
    content: str,
    placement: Placement,
    sample: int,
    completion: Completion,
    score: float,
    copied: Copying,
) -> Prediction:
    """Returns the line of `predictions.jsonl` for a completion with its copies; without an answer its score is 0."""
    answered = completion.outcome == "answered"
    row: Prediction = {
        "id": example.id,
        "content": content,
        "placement": list(placement.positions),
        "response": completion.text,
        "correct": score if answered else False,
    }
    unusual = {
        "outcome": "" if answered else completion.outcome,
        "thoughts": completion.thoughts,
        "reason": completion.reason,
        "cut": completion.cut,
        "others": copied.others if answered else "",
        "sample": sample,
        "baseline": placement.baseline,
    }
    kept = {name: value for name, value in unusual.items() if value}
    return cast(Prediction, row | kept | ({"echo": copied.echo} if answered else {}))


def read_predictions(path: Path) -> list[Prediction]:
    """Reads a sweep's predictions; `path` is its folder or `sweep.json`."""
    folder = path if path.is_dir() else path.parent
    return [row for _, row in read_models(Prediction, folder, PREDICTIONS_FILE)]


def swept_rows(predictions: Iterable[Prediction]) -> list[Prediction]:
    """Returns the predictions at the sweep's placements, without the baselines'."""
    return [row for row in predictions if "baseline" not in row]


def outcome_of(row: Prediction) -> Outcome:
    """How a prompt ended. An answer without text counts as unanswered: older sweeps did not distinguish."""
    outcome = row.get("outcome", "answered")
    return "empty" if outcome == "answered" and not row["response"].strip() else outcome


def ending_of(row: Prediction) -> Ending:
    """How a prompt ended, and what its answer copies."""
    return Ending(outcome_of(row), row.get("cut", False), row.get("echo"), row.get("others", ""))


def outcomes_of(predictions: Iterable[Prediction], placements: Sequence[Sequence[int]]) -> Outcomes:
    """Counts how the prompts of these predictions ended, at each placement."""
    endings: dict[tuple[int, ...], list[Ending]] = {tuple(placement): [] for placement in placements}
    for row in swept_rows(predictions):
        endings[tuple(row["placement"])].append(ending_of(row))
    return Outcomes.at([OutcomeCounts.count(of_placement) for of_placement in endings.values()])
