"""The responses of a sweep under way, so that one that is interrupted goes on where it was."""

import json
from pathlib import Path

from posgap.files import digest_of


class Unfinished:
    """Responses by example, each appended to a file as it is there.

    The file lies in `folder` under a name made of `identity`: whatever else the folder holds, its
    responses are those of the same prompts to the same model. A line that an interruption cut off
    is dropped.
    """

    def __init__(self, folder: Path, identity: dict):
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / f"predictions-{digest_of(identity)[:16]}.jsonl"
        self.responses: dict[int, list[str]] = {}
        written = self.file.read_bytes() if self.file.exists() else b""
        whole = written[: written.rfind(b"\n") + 1]
        for line in whole.splitlines():
            row = json.loads(line)
            self.responses[row["example"]] = row["responses"]
        if whole != written:
            with open(self.file, "r+b") as file:
                file.truncate(len(whole))

    def add(self, example: int, responses: list[str]) -> None:
        """Keeps the responses to the example of this index, one a placement."""
        self.responses[example] = responses
        line = json.dumps({"example": example, "responses": responses}, ensure_ascii=False)
        # Opened each time: what is written is with the operating system, whatever becomes of this process.
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(line + "\n")
