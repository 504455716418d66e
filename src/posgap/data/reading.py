"""Reads files of examples in any layout, and writes them."""

from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from posgap.data.choice_files import layout_of
from posgap.data.import_report import ImportReport
from posgap.data.retrieval_logs import RetrievalLog, is_log
from posgap.foundation.errors import Malformed, PosgapError
from posgap.foundation.files import parse_as, read_rows, write_jsonl
from posgap.foundation.rows import kind_of_table
from posgap.tasks.examples import AnyExample, Example, KVExample, RankedExample

EXAMPLES_FILE = "examples.jsonl.gz"


def examples_file(path: Path) -> Path:
    """`path` itself, or the examples file inside it if it is a stage's folder; one of Parquet files is read itself."""
    return path / EXAMPLES_FILE if Path(path).is_dir() and not kind_of_table(path) else Path(path)


def read_examples(path: Path, report: ImportReport | None = None) -> list[AnyExample]:
    """Reads examples from a `.jsonl` or `.jsonl.gz` file, or from the folder of `validate`.

    They may also be a table (`posgap.foundation.rows`). Rows of a retrieval log or a trace are read as
    `posgap.data.retrieval_logs` says; rows of options or judged answers as `posgap.data.choice_files` says. How a log
    was read goes to `report`, or is logged. Raises `PosgapError` that names the line, and the field if the schema is
    wrong, or both lines if two examples have the same id.
    """
    return [example for _, example in numbered_examples(path, report)]


def numbered_examples(path: Path, report: ImportReport | None = None) -> list[tuple[int, AnyExample]]:
    """The examples that `read_examples` reads, each with its line, or its row in a table, from 1."""
    file = examples_file(path)
    examples = list(with_unique_ids(file, _parsed_lines(file, report)))
    if not examples:
        raise Malformed("holds no examples", at=str(file))
    return examples


def first_example(path: Path) -> AnyExample:
    """The first of the examples that `read_examples` reads; the others are not looked at."""
    file = examples_file(path)
    for _, example in _parsed_lines(file):
        return example
    raise Malformed("holds no examples", at=str(file))


def task_of_examples(path: Path) -> str:
    """Returns the natural task of a file's examples: rag for retrieved passages, else none."""
    file = examples_file(path)
    try:
        _, row = next(read_rows(file), (0, {}))
    except PosgapError:
        return ""  # the reader of the examples reports it
    is_retrieved = is_log(row, bool(kind_of_table(file))) or kind_of(row) is RankedExample
    return "rag" if row and is_retrieved and not layout_of(row) else ""


def _parsed_lines(file: Path, report: ImportReport | None = None) -> Iterator[tuple[int, AnyExample]]:
    return rows_as_examples(read_rows(file), str(file), bool(kind_of_table(file)), report)


def rows_as_examples(
    rows: Iterable[tuple[int, Mapping[str, Any]]], name: str, table: bool = False, report: ImportReport | None = None
) -> Iterator[tuple[int, AnyExample]]:
    """Yields (number, example) for each (number, row) of the file or table `name`: examples, a retrieval log, or public
    rows with items to choose from. The first row decides which. In a `table`, rows that are no examples belong to a
    log."""
    numbered = iter(rows)
    for first in numbered:
        everything = chain([first], numbered)
        layout = layout_of(first[1])
        if layout:
            yield from layout.usable_examples(everything, name)
        elif is_log(first[1], table):
            yield from RetrievalLog(name).examples(everything, report)
        elif "ordered_kv_records" in first[1]:
            raise Malformed(
                "the public layout of key-value records, not posgap's: turn it into examples first, with `posgap data "
                f"import --format litm-kv --input {name} --out examples.jsonl.gz`",
                at=name,
            )
        else:
            for number, row in everything:
                yield number, parse_as(kind_of(row), row, f"{name}:{number}")


def kind_of(row: Container[str]) -> type[AnyExample]:
    """The kind of example that a row with these fields is."""
    return KVExample if "records" in row else RankedExample if "passages" in row else Example


def with_unique_ids(file: Path, examples: Iterable[tuple[int, AnyExample]]) -> Iterator[tuple[int, AnyExample]]:
    """Yields (line, example) as they come; raises `PosgapError` if one has the id of an earlier one.

    Results are kept by id, so two examples with the same id could not be told apart in them.
    """
    lines: dict[str, int] = {}
    for number, example in examples:
        if example.id in lines:
            raise Malformed(
                f"the id {example.id!r} is also used in line {lines[example.id]}; give each example its own id",
                at=f"{file}:{number}",
            )
        lines[example.id] = number
        yield number, example


def write_examples(path: Path, examples: Iterable[AnyExample]) -> int:
    """Writes examples, one per line, gzipped if the name ends in `.gz`; returns their number."""
    return write_jsonl(path, (example.model_dump(mode="json") for example in examples))
