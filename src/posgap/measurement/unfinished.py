"""Keeps the answers of a sweep under way, so that an interrupted sweep resumes."""

import errno
import json
import os
import weakref
from pathlib import Path

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import Record, digest_of, parse_as
from posgap.foundation.json_text import parse_json
from posgap.generation.generator import Completion, Outcome, Usage
from posgap.generation.served import EndpointIdentity


class _Answer(Record):
    """A line of the file, without default values."""

    example: int = Field(ge=0)
    number: int = Field(ge=0)
    text: str
    outcome: Outcome = "answered"
    thoughts: str = ""
    reason: str = ""
    cut: bool = False
    usage: Usage | None = None
    token_ids: list[int] = Field([])


class Unfinished:
    """Completions by (index of the example, number of the prompt among the example's), with or without token ids, and
    with an endpoint's statements about itself.

    Each is appended to a file when it arrives. The file's name in `folder` is made of `identity`, so its completions
    belong to the same prompts and model. Drops a line that an interruption cut off, and everything after a damaged
    line. Failed prompts are read as if they had never been sent, so they are retried.
    """

    def __init__(self, folder: Path, identity: dict, token_ids: bool = False):
        self.token_ids = token_ids
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / f"answers-{digest_of(identity)[:16]}.jsonl"
        self._said = self.file.with_suffix(".served.json")
        self.served = EndpointIdentity.read_from(self._said)
        self.completions: dict[tuple[int, int], Completion] = {}
        self.file.touch()
        with open(self.file, "r+b") as file:
            whole = 0
            for line in file:
                try:
                    kept = parse_as(_Answer, parse_json(line, str(self.file)), str(self.file))
                except PosgapError:
                    break
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                if kept.outcome != "failed":
                    fields = {name: getattr(kept, name) for name in Completion._fields}
                    self.completions[kept.example, kept.number] = Completion(**fields)
            file.truncate(whole)
        # Not buffered: written lines are with the operating system, whatever becomes of this process.
        self._descriptor = os.open(self.file, os.O_WRONLY | os.O_APPEND)
        weakref.finalize(self, os.close, self._descriptor)

    def add(self, example: int, number: int, completion: Completion) -> None:
        """Keeps the completion of this prompt."""
        if not self.token_ids:
            completion = completion._replace(token_ids=[])
        self.completions[example, number] = completion
        answer = _Answer(example=example, number=number, **completion._asdict())
        line = json.dumps(answer.model_dump(mode="json", exclude_defaults=True), ensure_ascii=False).encode() + b"\n"
        if os.write(self._descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.file))

    def note(self, served: EndpointIdentity) -> None:
        """Keeps what an endpoint says of itself."""
        if served != self.served:
            self.served = served
            served.write_to(self._said)
