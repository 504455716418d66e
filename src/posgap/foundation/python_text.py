"""Values as Python prints them into a text, such as a cell of CSV. Nothing of the text is run."""

import ast
import contextlib
import io
import tokenize
from itertools import pairwise
from typing import Any

from posgap.foundation.errors import PosgapError
from posgap.foundation.json_text import parse_json

_ENDS_OF_LINES = (tokenize.NL, tokenize.NEWLINE)


def python_value(cell: str) -> Any:
    """The value of a text in JSON, or as Python prints it; None if it is neither. What Python prints of objects, as
    `Document(page_content=...)`, are their fields by name."""
    with contextlib.suppress(PosgapError):
        return parse_json(cell, "")
    if is_printed_by_numpy(cell):
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


def is_printed_by_numpy(cell: str) -> bool:
    """Whether texts stand side by side without a comma, which Python would take for one text."""
    try:
        kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(cell).readline)]
    except (tokenize.TokenError, SyntaxError):
        return False
    return (tokenize.STRING, tokenize.STRING) in pairwise(kind for kind in kinds if kind not in _ENDS_OF_LINES)
