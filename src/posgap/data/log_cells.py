"""Cells of retrieval logs: what a text in JSON, or as Python prints it, holds; numbers, grades, lists, paths."""

import ast
import contextlib
import io
import json
import math
import re
import tokenize
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from posgap.foundation.errors import Ambiguous, Malformed, PosgapError, shorten
from posgap.foundation.json_text import parse_json

Fields = Mapping[str, Any]

TABLE = json.loads(Path(__file__).with_name("log_formats.json").read_text(encoding="utf-8"))
_ENDS_OF_LINES = (tokenize.NL, tokenize.NEWLINE)
MAX_GRADE = 10  # of relevance; beyond are scores


def is_filled(cell: Any) -> bool:
    """Whether a cell holds anything: not None, NaN, an empty text, list or object."""
    if cell is None:  # first, since a row has few of the names that a field may have
        return False
    if isinstance(cell, str):
        return bool(cell.strip())
    if isinstance(cell, list | tuple | Mapping):
        return bool(cell)
    return not (isinstance(cell, float) and math.isnan(cell))


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


def root_of(path: str) -> str:
    """The name at which a path like `output[].answer` begins."""
    return path.partition(".")[0].removesuffix("[]")


def pick(value: Any, path: str) -> Any:
    """What stands at a path like `root.children`, or `output[].answer`, whose [] goes through a list's items."""
    name, _, rest = path.partition(".")
    found = plain_cells(as_mapping(value)).get(name.removesuffix("[]"))
    if not name.endswith("[]"):
        return pick(found, rest) if rest else found
    picked: list[Any] = []
    found = opened(found)
    for items in found if isinstance(found, list) else ():
        for item in as_list(items):  # Milvus has a list for each query
            inner = pick(item, rest) if rest else item
            picked += inner if isinstance(inner, list) else [inner] if is_filled(inner) else []
    return picked


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
    if isinstance(value, str) and _is_printed_by_numpy(value):
        what = "a list as NumPy prints it, without commas between the texts; write JSON (json.dumps) or Parquet"
    elif isinstance(value, str) and is_list(value):
        what = f"a list that breaks off or is not JSON, in {len(value):,} characters that end with {value[-30:]!r}"
        what += "; spreadsheets cut cells at 32,767 characters: write JSON lines or Parquet"
    raise Malformed(f"{where}: {what}")


def _transpose(columns: Fields, where: str) -> list[Any]:
    """The rows of an object of lists, as `datasets` writes a list of objects; else its objects, or itself."""
    lists = {name: column for name, column in columns.items() if isinstance(column, list)}
    if not lists:
        are_rows = bool(columns) and all(isinstance(cell, dict) for cell in columns.values())
        return list(columns.values()) if are_rows else [dict(columns)]
    if len({len(column) for column in lists.values()}) > 1:
        raise Malformed(f"{where}: its lists differ in length")
    return [dict(zip(lists, cells)) for cells in zip(*lists.values())]


def python_value(cell: str) -> Any:
    """The value of a text in JSON, or as Python prints it; None if it is neither. What Python prints of objects, as
    `Document(page_content=...)`, are their fields by name."""
    with contextlib.suppress(PosgapError):
        return parse_json(cell, "")
    if _is_printed_by_numpy(cell):
        return None
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        return _value_of(ast.parse(cell.strip(), mode="eval").body)
    return None


def _value_of(node: ast.AST) -> Any:
    if isinstance(node, ast.Call):
        named = {each.arg: _value_of(each.value) for each in node.keywords if each.arg}
        return _value_of(node.args[0]) if node.args else named  # array([...], dtype=object), UUID('...')
    if isinstance(node, ast.List | ast.Tuple):
        return [_value_of(each) for each in node.elts]
    if isinstance(node, ast.Dict):
        return {_value_of(key): _value_of(value) for key, value in zip(node.keys, node.values) if key}
    if isinstance(node, ast.Name | ast.Attribute):
        return None  # nan, <Enum.member>
    return ast.literal_eval(node)


def _is_printed_by_numpy(cell: str) -> bool:
    """Whether texts stand side by side without a comma, which Python would take for one text."""
    try:
        kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(cell).readline)]
    except (tokenize.TokenError, SyntaxError):
        return False
    return (tokenize.STRING, tokenize.STRING) in pairwise(kind for kind in kinds if kind not in _ENDS_OF_LINES)


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
