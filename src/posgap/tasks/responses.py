"""The file of the teacher's responses, which `teacher` writes and `distill` reads."""

from pathlib import Path

from posgap.errors import PosgapError
from posgap.files import Record, read_models, read_object
from posgap.tasks.placements import Placement

RESPONSES_FILE, TEACHER_FILE = "responses.jsonl", "teacher.json"


class Response(Record):
    """A response to one example at the advantageous placement; `token_ids` end with the end token.

    `content` is the example's (`posgap.tasks.content`), by which it is found again.
    """

    id: str
    content: str
    placement: list[int]
    n_docs: int
    response: str
    token_ids: list[int]
    correct: bool

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


def require_prompts(path: Path, digest: str) -> None:
    """`PosgapError` where the folder of responses says that they answer other prompts than those of this digest."""
    file = path / TEACHER_FILE
    if file.is_file() and read_object(file).get("prompts", digest) != digest:
        raise PosgapError(
            f"{path}: answers other prompts than these; give the task, question, shuffle, system, template, "
            "template_args and date that the teacher was given, or sample the responses again"
        )
