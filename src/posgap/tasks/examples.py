"""Examples and their file format: one JSON object a line.

A document example holds `id, question, answers[], gold[{title, text}], distractors[{title, text}]`;
a key-value example holds `id, question, answers[], key, value, records[[key, value], ...]`, and
its gold and distractors are read off the records.
"""

from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

from posgap.errors import PosgapError
from posgap.files import Record, parsed, read_jsonl, write_jsonl


class Document(Record):
    """A titled passage; for key-value retrieval, a key and its value."""

    title: str
    text: str


class Example(Record):
    """A question, its accepted answers, its gold documents and its distractors."""

    id: str
    question: str
    answers: list[str]
    gold: list[Document]
    distractors: list[Document]


class KVExample(Record):
    """A key asked for among records; the record of that key is the gold document."""

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

    Raises `PosgapError` naming the line, and the field where the schema is wrong, or both lines of an id that two
    examples have.
    """
    file = examples_file(path)
    examples = list(told_apart(file, _parsed_lines(file)))
    if not examples:
        raise PosgapError(f"{file}: holds no examples")
    return examples


def _parsed_lines(file: Path) -> Iterator[tuple[int, AnyExample]]:
    for number, row in read_jsonl(file):
        yield number, parsed(KVExample if "records" in row else Example, row, f"{file}:{number}")


def told_apart(file: Path, examples: Iterable[tuple[int, AnyExample]]) -> Iterator[AnyExample]:
    """The examples of (line, example) as they come; `PosgapError` where one has the id of another before it.

    Results are kept by id: two examples of one id could not be told apart in them.
    """
    lines: dict[str, int] = {}
    for number, example in examples:
        if example.id in lines:
            raise PosgapError(
                f"{file}:{number}: the id {example.id!r} is that of line {lines[example.id]} too; give each example an "
                "id of its own"
            )
        lines[example.id] = number
        yield example


def write_examples(path: Path, examples: Iterable[AnyExample]) -> int:
    """Writes examples, one a line, gzipped where the name ends in `.gz`; returns how many."""
    return write_jsonl(path, (example.model_dump(mode="json") for example in examples))
