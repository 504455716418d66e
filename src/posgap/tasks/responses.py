"""The file of the teacher's responses, which `teacher` writes and `distill` reads."""

import random
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import Record, read_models, read_object
from posgap.tasks.placements import Placement

RESPONSES_FILE, TEACHER_FILE = "responses.jsonl", "teacher.json"
_POOR = 80  # percent right, below which a student should not be held to its teacher; SmolLM2 had 38, Gemma 100
_CUT = 5  # percent of answers cut at the limit of tokens


class Response(Record):
    """A response to one example at an advantageous placement."""

    id: str = Field(description="id of the example")
    content: str = Field(description="digest of the example's content")
    placement: list[int] = Field(description="placement at which the teacher answered")
    n_docs: int = Field(description="documents in the prompt")
    response: str = Field(description="text of the response")
    token_ids: list[int] = Field(description="token ids of the response, with the end token")
    correct: bool = Field(description="whether the response is correct")

    @property
    def at(self) -> Placement:
        """The advantageous placement that the response was sampled at."""
        return Placement(tuple(self.placement), self.n_docs)


def read_responses(path: Path) -> list[Response]:
    """Reads responses from a folder that `teacher` wrote, or their file; raises `PosgapError` naming line and field."""
    responses = [response for _, response in read_models(Response, path, RESPONSES_FILE)]
    if not responses:
        raise PosgapError(f"{path}: holds no responses")
    return responses


def at_one_placement(responses: Sequence[Response], seed: int) -> list[Response]:
    """Keeps each example's responses at one placement, in their order.

    If the teacher answered an example at several placements, one of those with a right answer is drawn, or any of them
    if none is right. The draw depends only on the example's content and on `seed`, so other examples, and their number,
    do not change it.
    """
    by_content: dict[str, list[Response]] = {}
    for response in responses:
        by_content.setdefault(response.content, []).append(response)
    drawn = {}
    for of_example, answers in by_content.items():
        right = [answer for answer in answers if answer.correct] or answers
        drawn[of_example] = random.Random(f"{seed} {of_example}").choice(sorted({answer.at for answer in right}))
    return [response for response in responses if response.at == drawn[response.content]]


def require_prompts(path: Path, digest: str) -> None:
    """Raises `PosgapError` if the folder's responses answer prompts with another digest."""
    file = path / TEACHER_FILE
    if file.is_file() and read_object(file).get("prompts", digest) != digest:
        raise PosgapError(
            f"{path}: answers other prompts than these; give the task, question, shuffle, system, template, "
            "template_args and date that the teacher was given, or sample the responses again"
        )


def describe_poor_teacher(path: Path) -> str:
    """Returns a line if this folder's teacher is often wrong, or its answers are often cut; else empty."""
    file = path / TEACHER_FILE
    if not file.is_file():
        return ""
    about = read_object(file)
    outcomes = about.get("outcomes", {})
    cut = 100 * outcomes.get("cut", 0) / max(outcomes.get("answered", 0), 1)
    accuracy = about.get("accuracy", 100)
    if accuracy >= _POOR and cut < _CUT:
        return ""
    return (
        f"the teacher is right in {accuracy:.0f} % of the examples, and {cut:.0f} % of its answers are cut: "
        "an anchor would preserve that at the student's best position; try --anchoring 0 or --method seqkd, or "
        "--method sft if you have gold answers"
    )
