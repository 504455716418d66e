"""YAML that anybody may have written, read within limits: nothing in it can exhaust memory or the stack.

Every value is read as text, which the fields that it is for then parse: YAML's own reading takes `1.10` for 1.1, and
`no` for false. Where no field says what a value is, it can be read as JSON would have it.
"""

import json
import re
from typing import Any, ClassVar

import yaml

from posgap.foundation.errors import PosgapError


def parse_yaml(data: bytes, where: str, what: str, max_bytes: int, typed: bool = False) -> Any:
    """The value of a YAML text; `PosgapError` begins with `where` and says what is wrong.

    `what` the text is to be, as "a policy", is in what it says. Refused are texts of more than `max_bytes`, aliases,
    and names that are there twice. With `typed`, null, true, false and numbers are read as such, which have to be such
    as JSON has, and so is every JSON text as JSON reads it.
    """
    if len(data) > max_bytes:
        raise PosgapError(f"{where}: more than {max_bytes} bytes, too much for {what}")
    loader = type("Loader", (_CoreLoader if typed else _TextLoader,), {"what": what})
    try:
        value = yaml.load(data, loader)
        json.dumps(value, allow_nan=False)
        return value
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise PosgapError(f"{where}: not YAML: {error.problem}{line}") from None
    except yaml.YAMLError as error:
        raise PosgapError(f"{where}: not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise PosgapError(f"{where}: not YAML: nested too deep") from None
    except (ValueError, TypeError) as error:
        raise PosgapError(f"{where}: not YAML that can be read: {error}") from None


class _StrictLoader:
    """A part of loaders that refuses aliases, and names that are there twice."""

    what = "it"

    def compose_node(self: Any, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem=f"an alias, which {self.what} cannot have", problem_mark=mark)
        return super().compose_node(parent, index)  # type: ignore[misc]

    def construct_mapping(self: Any, node: Any, deep: bool = False) -> dict:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for at, name in enumerate(names):
            if name in names[:at]:
                raise yaml.MarkedYAMLError(problem=f"{name[:60]!r} is there twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)  # type: ignore[misc]


class _TextLoader(_StrictLoader, yaml.BaseLoader):
    """Reads every value as text."""


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
