"""Cells of retrieval logs: plain names, numbers, grades, lists and objects, paths."""

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

from posgap.foundation.errors import Ambiguous, Malformed, PosgapError, shorten
from posgap.foundation.python_text import is_printed_by_numpy, python_value

Fields = Mapping[str, Any]

TABLE = json.loads(Path(__file__).with_name("log_formats.json").read_text(encoding="utf-8"))
_DOTTED = re.compile(r"(?:inputs?|outputs?|reference(?:_outputs)?|attributes|metadata|retrieval|response)\..+")
MAX_GRADE = 10  # of relevance; beyond are scores


def is_filled(cell: Any) -> bool:
    """Whether a cell holds anything: not None, NaN, an empty text, list or object."""
    if isinstance(cell, str):
        return bool(cell.strip())
    if isinstance(cell, float):
        return not math.isnan(cell)
    return cell is not None and (bool(cell) or not isinstance(cell, list | tuple | Mapping))


def fold(text: str) -> str:
    """What two writings of one text have in common."""
    return " ".join(text.split()).casefold()


@lru_cache(4096)  # a log has the same names in each row
def plain_name(name: str) -> str:
    """A field's name in small letters, with _ between words."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip().strip("?:*").removeprefix("document."))
    return re.sub(r"[\s-]+", "_", words.strip()).casefold()


def plain_cells(row: Fields, where: str = "") -> dict[str, Any]:
    """A row's cells by plain names, those of NumPy as lists and numbers. If `where` is given, raises `PosgapError` for
    what is no row, and for two columns that differ and have one plain name, as `Answer` and `answer`."""
    cells: dict[str, Any] = {}
    if where and not isinstance(row, Mapping):
        raise Malformed(f"expected a JSON object, found {shorten(repr(row))}", at=where)
    for name, cell in row.items():
        plain = plain_name(str(name))
        value = cell.tolist() if hasattr(cell, "tolist") else cell
        if not is_filled(cells.get(plain)):
            cells[plain] = value
        elif where and is_filled(value) and cells[plain] != value:
            raise Malformed(f"{where}: two columns are called `{plain}` and differ; rename one")
    return cells


def without(cells: Fields, names: Collection[str]) -> dict[str, Any]:
    """The cells that have none of these names."""
    return {name: cells[name] for name in cells if name not in names}


def pick(cells: Fields, path: str) -> Any:
    """What stands in plain cells at a path like `root.children`, or `output[].answer`, whose [] goes through a list."""
    name, _, rest = path.partition(".")
    found = cells.get(name.removesuffix("[]"))
    if not name.endswith("[]"):
        return pick(plain_cells(as_mapping(found)), rest) if rest else found
    picked: list[Any] = []
    found = opened(found)
    for items in found if isinstance(found, list) else ():
        for item in as_list(items):  # Milvus has a list for each query
            inner = pick(plain_cells(as_mapping(item)), rest) if rest else item
            picked += inner if isinstance(inner, list) else [inner] if is_filled(inner) else []
    return picked


def nest(cells: dict[str, Any]) -> dict[str, Any]:
    """The fields of a row with dotted names, as exports write them into columns (inputs.question), as objects; those of
    a span's attributes too, which OpenTelemetry has as a list of keys and values."""
    if attributes := opened(cells.get("attributes")):
        if isinstance(attributes, list):
            pairs = map(as_mapping, attributes)
            attributes = {pair.get("key"): next(iter(as_mapping(pair.get("value")).values()), None) for pair in pairs}
        flat = {f"attributes.{name}": cell for name, cell in as_mapping(attributes).items()}
        cells = without(cells, ["attributes"]) | flat
    dotted = {name: cell for name, cell in cells.items() if _DOTTED.fullmatch(name)}
    return {**without(cells, dotted), **_tree(dotted)} if dotted else cells


def _tree(cells: Fields) -> Any:
    """An object of objects of cells with dotted names, or a list if the names are 0, 1, 2 ..."""
    groups: dict[str, dict[str, Any]] = {}
    for name, cell in cells.items():
        outer, _, rest = name.partition(".")
        groups.setdefault(outer, {})[rest] = cell
    tree = {outer: group[""] if "" in group else _tree(group) for outer, group in groups.items()}
    return [tree[name] for name in sorted(tree, key=int)] if all(map(str.isdecimal, tree)) else tree


def as_text(value: Any) -> str:
    """An id, or a number, as text; 2.0 is 2, as of a column that had empty cells."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def parse_grade(label: Any, where: str) -> float:
    """Returns a label as a grade, above 0 if it is relevant, and a percentage as a share of 1; `PosgapError` if it says
    nothing of relevance."""
    written = "" if label is None else str(label).strip().lower()
    if written in (*TABLE["true"], *TABLE["false"]):
        return float(written in TABLE["true"])
    try:
        number = parse_number(written.removesuffix("%"), where) or 0.0
    except PosgapError:
        what = f"{shorten(repr(label))} does not say whether the passage is relevant: write true or false, or a grade"
        raise Malformed(f"{what}; rename the field if it is something else (docs/log-fields.md)", at=where) from None
    return number / 100 if written.endswith("%") else number


def parse_number(value: Any, where: str) -> float | None:
    """A finite number, also with a comma for its point; None for an empty cell, NaN and infinity."""
    if not is_filled(value):
        return None
    try:
        number = float(value.replace(",", ".") if isinstance(value, str) and value.count(",") == 1 else value)
    except (TypeError, ValueError, OverflowError):
        raise Malformed(f"{where}: expected a number, found {shorten(repr(value))}") from None
    return number if number - number == 0 else None


def is_list(value: Any) -> bool:
    """Whether a cell may hold a list: anything but a text, or a text that begins like one."""
    return not isinstance(value, str) or value.lstrip().startswith(("[", "{", "array("))


def opened(value: Any) -> Any:
    """What a text holds that is a list or an object, in JSON or as Python prints it; else the value itself."""
    inner = python_value(value) if isinstance(value, str) and is_list(value) else None
    return value if inner is None else inner


def as_list(value: Any) -> list[Any]:
    """A list of the value, or of what is in it."""
    return list(value) if isinstance(value, list | tuple) else [value]


def parse_list(value: Any, where: str) -> list[Any]:
    """A list, also as a cell of CSV has it: in JSON, or as Python prints it."""
    read = python_value(value) if isinstance(value, str) else value
    if isinstance(read, Mapping):
        return _transpose(read, where)
    if isinstance(read, list | tuple) or value is None:
        return list(read or ())
    what = f"expected a list, found {shorten(repr(value))}"
    if isinstance(value, str) and is_printed_by_numpy(value):
        what = "a list as NumPy prints it, without commas between the texts; write JSON (json.dumps) or Parquet"
    elif isinstance(value, str) and is_list(value):
        what = f"a list that breaks off or is not JSON, in {len(value):,} characters that end with {value[-30:]!r}"
        what += "; spreadsheets cut cells at 32,767 characters: write JSON lines or Parquet"
    raise Malformed(f"{where}: {what}")


def _transpose(columns: Fields, where: str) -> list[Any]:
    """The rows of an object of lists, as `datasets` writes a list of objects; else the object itself."""
    lists = {name: column for name, column in columns.items() if isinstance(column, list)}
    if not lists:
        return [dict(columns)]
    if len({len(column) for column in lists.values()}) > 1:
        raise Malformed(f"{where}: its lists differ in length")
    return [dict(zip(lists, cells)) for cells in zip(*lists.values())]


def as_mapping(value: Any) -> Fields:
    """The value itself if it is a mapping, or JSON of one, else an empty one."""
    value = opened(value)
    return value if isinstance(value, Mapping) else {}


def ask(what: str, *options: str, where: str) -> NoReturn:
    """Raises `Ambiguous` with what has two readings, and the options that decide."""
    way = f"by `posgap data import --format rag` with `{'` or `'.join(options)}` (docs/log-fields.md)"
    raise Ambiguous(f"{what}; say which is right, {way}", at=where)


def list_names(row: Iterable[str]) -> str:
    """The names of a row's fields, for an error."""
    return shorten(", ".join(row)) or "no fields"
