"""YAML that anybody may have written, read within limits: nothing in it can exhaust memory or the stack.

Every value is read as text, which the fields that it is for then parse: YAML's own reading takes `1.10` for 1.1, and
`no` for false.
"""

from typing import Any

import yaml

from posgap.errors import PosgapError


def parse(data: bytes, where: str, what: str, most_bytes: int) -> Any:
    """The value of a YAML text; `PosgapError` begins with `where` and says what is wrong.

    `what` the text is to be, as "a policy", is in what it says. Refused are texts of more than `most_bytes`, aliases,
    and names that are there twice.
    """
    if len(data) > most_bytes:
        raise PosgapError(f"{where}: more than {most_bytes} bytes, too much for {what}")
    loader = type("Loader", (_Texts,), {"what": what})
    try:
        return yaml.load(data, loader)
    except yaml.MarkedYAMLError as error:
        line = f" in line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise PosgapError(f"{where}: not YAML: {error.problem}{line}") from None
    except yaml.YAMLError as error:
        raise PosgapError(f"{where}: not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise PosgapError(f"{where}: not YAML: nested too deep") from None


class _Texts(yaml.BaseLoader):
    """Reads every value as text, and neither aliases nor a name twice."""

    what = "it"

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem=f"an alias, which {self.what} cannot have", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := [name for i, name in enumerate(names) if name in names[:i]]:
            raise yaml.MarkedYAMLError(problem=f"{twice[0][:60]!r} is there twice", problem_mark=node.start_mark)
        return super().construct_mapping(node, deep)
