"""The file of the teacher's responses, which `teacher` writes and `distill` reads."""

from pathlib import Path

from posgap.errors import PosgapError
from posgap.files import Record, read_models
from posgap.tasks.placements import Placement

RESPONSES_FILE = "responses.jsonl"


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
