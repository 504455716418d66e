"""Examples and their file format: one JSON object a line.

A document example holds `id, question, answers[], gold[{title, text}], distractors[{title, text}]`;
a key-value example holds `id, question, answers[], key, value, records[[key, value], ...]`, and
its gold and distractors are read off the records.
"""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from posgap.errors import PosgapError, first_fault
from posgap.files import read_jsonl, write_jsonl


class Document(BaseModel):
    """A titled passage; for key-value retrieval, a key and its value."""

    model_config = ConfigDict(frozen=True)

    title: str
    text: str


class Example(BaseModel):
    """A question, its accepted answers, its gold documents and its distractors."""

    model_config = ConfigDict(frozen=True)

    id: str
    question: str
    answers: list[str]
    gold: list[Document]
    distractors: list[Document]


class KVExample(BaseModel):
    """A key asked for among records; the record of that key is the gold document."""

    model_config = ConfigDict(frozen=True)

    id: str
    question: str
    answers: list[str]
    key: str
    value: str
    records: list[tuple[str, str]]

    @cached_property
    def gold(self) -> list[Document]:
        return [Document(title=k, text=v) for k, v in self.records if k == self.key]

    @cached_property
    def distractors(self) -> list[Document]:
        return [Document(title=k, text=v) for k, v in self.records if k != self.key]


AnyExample = Example | KVExample
EXAMPLES_FILE = "examples.jsonl.gz"


def examples_file(path: Path) -> Path:
    """`path` itself, or the examples inside it where it is the folder of a stage."""
    return path / EXAMPLES_FILE if Path(path).is_dir() else Path(path)


def read_examples(path: Path) -> list[AnyExample]:
    """Reads examples from a `.jsonl` or `.jsonl.gz` file, or from the folder of `validate`.

    Raises `PosgapError` naming the line, and the field where the schema is wrong.
    """
    file, examples = examples_file(path), []
    for number, row in read_jsonl(file):
        kind = KVExample if "records" in row else Example
        try:
            examples.append(kind.model_validate(row))
        except ValidationError as error:
            raise PosgapError(f"{file}:{number}: {first_fault(error)}") from None
    if not examples:
        raise PosgapError(f"{file}: holds no examples")
    return examples


def write_examples(path: Path, examples: Iterable[AnyExample]) -> None:
    """Writes examples, one a line; gzipped where the name ends in `.gz`."""
    write_jsonl(path, (example.model_dump(mode="json") for example in examples))
