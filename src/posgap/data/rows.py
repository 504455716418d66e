"""Rows of public files: JSON arrays or lines in, parsed items out, faults named by line and field."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from posgap.errors import PosgapError, first_fault
from posgap.files import read_json, read_jsonl

M = TypeVar("M", bound=BaseModel)


def rows(path: Path) -> Iterator[tuple[int, Any]]:
    """(number from 1, item) of a JSON array, or of lines where the name says so."""
    if ".jsonl" in Path(path).suffixes:
        yield from read_jsonl(path)
        return
    items = read_json(path)
    if not isinstance(items, list):
        raise PosgapError(f"{path}: expected a JSON array of questions; name a file of lines .jsonl")
    yield from enumerate(items, start=1)


def parsed(model: type[M], path: Path, number: int, row: Any) -> M:
    """The row as `model`; `PosgapError` names file, number and field where it is not one."""
    try:
        return model.model_validate(row)
    except ValidationError as error:
        raise PosgapError(f"{path}:{number}: {first_fault(error)}") from None
