"""YAML that anybody may have written, read within limits: nothing in it can exhaust memory or the stack.

Every value is read as text, which the fields that it is for then parse: YAML's own reading takes `1.10` for 1.1, and
`no` for false. If no field defines a value's type, it can be read as in JSON.
"""

import json
import re
from typing import Any, ClassVar

import yaml

from posgap.foundation.errors import Malformed, TooLarge, first_line


def parse_yaml(data: bytes, where: str, what: str, max_bytes: int, typed: bool = False) -> Any:
    """Returns the value of a YAML text. Raises `Malformed` or `TooLarge` at `where`.

    The message says `what` the text should be, such as "a policy". It refuses texts of more than `max_bytes`, aliases,
    and duplicate names. With `typed`, null, true, false and numbers get their types, and numbers must be valid JSON;
    every JSON text reads as in JSON.
    """
    if len(data) > max_bytes:
        raise TooLarge(f"more than {max_bytes} bytes, too much for {what}", at=where)
    loader = type("Loader", (_CoreLoader if typed else _TextLoader,), {"what": what})
    try:
        value = yaml.load(data, loader)
        json.dumps(value, allow_nan=False)
        return value
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise Malformed(f"not YAML: {error.problem}{line}", at=where) from None
    except yaml.YAMLError as error:
        raise Malformed(f"not YAML: {first_line(error)}", at=where) from None
    except RecursionError:
        raise Malformed("not YAML: nested too deep", at=where) from None
    except (ValueError, TypeError) as error:
        raise Malformed(f"cannot be read as YAML: {error}", at=where) from None


class _StrictLoader:
    """A mixin for loaders that refuses aliases and duplicate names."""

    what = "it"

    def compose_node(self: Any, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem=f"an alias, which {self.what} cannot have", problem_mark=mark)
        return super().compose_node(parent, index)  # type: ignore[misc]

    def construct_mapping(self: Any, node: Any, deep: bool = False) -> dict:
        names = set[str]()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue  # which is refused below
            if key.value in names:
                raise yaml.MarkedYAMLError(problem=f"{key.value[:60]!r} is there twice", problem_mark=node.start_mark)
            names.add(key.value)
        return super().construct_mapping(node, deep)  # type: ignore[misc]


class Quoted(str):
    """A value in quotes: text, whatever it looks like."""


class _TextLoader(_StrictLoader, yaml.BaseLoader):
    """Reads every value as text."""

    def construct_scalar(self, node: Any) -> str:
        value = super().construct_scalar(node)
        return Quoted(value) if node.style in ("'", '"') else value


class _CoreLoader(_StrictLoader, yaml.SafeLoader):
    """Reads values by the core schema of YAML 1.2 (section 10.3.2), less its octal and infinite numbers.

    YAML 1.1, which PyYAML reads, takes 1e-5 for text, 1:30 for ninety and 2026-11-23 for a date.
    """

    yaml_implicit_resolvers: ClassVar[dict[str, Any]] = {}
    yaml_constructors: ClassVar[dict[Any, Any]] = {
        tag: constructor
        for tag, constructor in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag.rpartition(":")[2] in ("null", "bool", "int", "float", "str", "seq", "map")
    }


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", list("-+.0123456789")),
):
    _CoreLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"(?:{_pattern})\Z"), _first)
