"""The responses of a sweep under way, so that one that is interrupted goes on where it was."""

import json
from pathlib import Path

from posgap.errors import PosgapError
from posgap.files import Record, digest_of, parsed
from posgap.json_text import parse


class _Answered(Record):
    example: int
    responses: list[str]


class Unfinished:
    """Responses by example, each appended to a file as it is there.

    The file lies in `folder` under a name made of `identity`: whatever else the folder holds, its
    responses are those of the same prompts to the same model. A line that an interruption cut off
    is dropped, and so is all that follows a damaged one.
    """

    def __init__(self, folder: Path, identity: dict):
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / f"predictions-{digest_of(identity)[:16]}.jsonl"
        self.responses: dict[int, list[str]] = {}
        self.file.touch()
        with open(self.file, "r+b") as file:
            whole = 0
            for line in file:
                try:
                    answered = parsed(_Answered, parse(line, str(self.file)), str(self.file))
                except PosgapError:
                    break
                if not line.endswith(b"\n"):
                    break
                self.responses[answered.example] = answered.responses
                whole += len(line)
            file.truncate(whole)

    def add(self, example: int, responses: list[str]) -> None:
        """Keeps the responses to the example of this index, one a placement."""
        self.responses[example] = responses
        line = json.dumps({"example": example, "responses": responses}, ensure_ascii=False)
        # Opened each time: what is written is with the operating system, whatever becomes of this process.
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(line + "\n")
