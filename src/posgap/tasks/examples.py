"""Examples and their file format: one JSON object per line.

A document example holds `id, question, answers[], gold[{title, text}], distractors[{title, text}]`;
a key-value example holds `id, question, answers[], key, value, records[[key, value], ...]`, and its gold document and
distractors are taken from the records.
"""

from collections.abc import Iterable, Iterator
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
    """A question for the value of a key among records; the record of that key is the gold document.

    Documents are made anew each time, since they take several times the memory of their records.
    """

    id: str
    question: str
    answers: list[str]
    key: str
    value: str
    records: list[tuple[str, str]]

    @property
    def gold(self) -> list[Document]:
        return [Document(title=k, text=v) for k, v in self.records if k == self.key]

    @property
    def distractors(self) -> list[Document]:
        return [Document(title=k, text=v) for k, v in self.records if k != self.key]


AnyExample = Example | KVExample
EXAMPLES_FILE = "examples.jsonl.gz"


def examples_file(path: Path) -> Path:
    """`path` itself, or the examples file inside it if it is a stage's folder."""
    return path / EXAMPLES_FILE if Path(path).is_dir() else Path(path)


def read_examples(path: Path) -> list[AnyExample]:
    """Reads examples from a `.jsonl` or `.jsonl.gz` file, or from the folder of `validate`.

    Raises `PosgapError` that names the line, and the field if the schema is wrong, or both lines if two examples have
    the same id.
    """
    file = examples_file(path)
    examples = list(told_apart(file, _parsed_lines(file)))
    if not examples:
        raise PosgapError(f"{file}: holds no examples")
    return examples


def first_example(path: Path) -> AnyExample:
    """The first of the examples that `read_examples` reads; the others are not looked at."""
    file = examples_file(path)
    for _, example in _parsed_lines(file):
        return example
    raise PosgapError(f"{file}: holds no examples")


def _parsed_lines(file: Path) -> Iterator[tuple[int, AnyExample]]:
    for number, row in read_jsonl(file):
        kind: type[AnyExample] = KVExample if "records" in row else Example
        yield number, parsed(kind, row, f"{file}:{number}")


def told_apart(file: Path, examples: Iterable[tuple[int, AnyExample]]) -> Iterator[AnyExample]:
    """Yields the examples of (line, example); raises `PosgapError` if one has the id of an earlier one.

    Results are kept by id, so two examples with the same id could not be told apart in them.
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
    """Writes examples, one per line, gzipped if the name ends in `.gz`; returns their number."""
    return write_jsonl(path, (example.model_dump(mode="json") for example in examples))
