"""The teacher's responses, as `teacher` writes and `distill` reads them."""

from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from posgap.errors import PosgapError, first_fault
from posgap.files import read_jsonl
from posgap.tasks.placements import Placement

RESPONSES_FILE = "responses.jsonl"


class Response(BaseModel):
    """A response to one example at the advantageous placement; `token_ids` end with the end token.

    `content` is the example's (`posgap.tasks.content`), by which it is found again.
    """

    model_config = ConfigDict(frozen=True)

    id: str
    content: str
    placement: list[int]
    n_docs: int
    response: str
    token_ids: list[int]
    correct: bool

    @property
    def at(self) -> Placement:
        return Placement(tuple(self.placement), self.n_docs)


def read_responses(path: Path) -> list[Response]:
    """Reads the responses in the folder `teacher` wrote; `PosgapError` names line and field."""
    file, responses = path / RESPONSES_FILE if path.is_dir() else path, []
    for number, row in read_jsonl(file):
        try:
            responses.append(Response.model_validate(row))
        except ValidationError as error:
            raise PosgapError(f"{file}:{number}: {first_fault(error)}") from None
    if not responses:
        raise PosgapError(f"{file}: holds no responses")
    return responses
