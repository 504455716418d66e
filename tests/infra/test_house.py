"""The rooms of posgap and how they depend on each other: downwards only (CONTRIBUTING has the tree).

An arrow runs from a file to each file that it names: by an import at its top or inside a function, by one for the type
checker alone, or by a module's path in a string.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest
from places import ROOT

FOLDERS = {
    "posgap": ROOT / "src" / "posgap",
    "posgap.components": ROOT / "components",
    "posgap.pipelines": ROOT / "pipelines",
}
# From the ground up: a room rests on rooms that stand before it, never on one behind it.
FLOORS = [
    "foundation",
    "models",
    "storage",
    "tasks",
    "data",
    "mitigations",
    "generation",
    "measurement",
    "scaling",
    "distillation",
    "tracking",
    "gating",
    "rollout",
    "mitigations/search",
    "demo",
    "options",
    "kubeflow",
    "components",
    "pipelines",
    "verbs",
    "api",
    "cli",
]
# What takes so long to import that a function may do it, and with it our own modules that need it at their top.
HEAVY = {
    "accelerate",
    "aiohttp",
    "boto3",
    "botocore",
    "great_expectations",
    "httpx2",
    "jinja2",
    "kfp",
    "kfp_kubernetes",
    "kubeflow",
    "matplotlib",
    "mlflow",
    "numpy",
    "pandas",
    "peft",
    "pyarrow",
    "scipy",
    "torch",
    "transformers",
    "vllm",
    "yaml",
}
PATH = re.compile(r"(posgap(?:\.\w+)+)(?::\w+)?")  # of a module, and perhaps of what is in it


@cache
def files() -> dict[str, Path]:
    """Every module of posgap with its file; a package is its __init__.py."""
    found = {}
    for package, folder in FOLDERS.items():
        for file in folder.rglob("*.py"):
            parts = [part for part in file.relative_to(folder).with_suffix("").parts if part != "__init__"]
            found[".".join([package, *parts])] = file
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(files()[module].read_text(encoding="utf-8"))


def module_of(name: str) -> str:
    """The module that a dotted name leads to: itself, or that in which it stands; empty for no module of posgap."""
    while name and name not in files():
        name = name.rpartition(".")[0]
    return name


def named(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The dotted names that these nodes import."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def in_strings(module: str) -> Iterator[str]:
    """The modules whose paths stand in strings, as "posgap.verbs.sweep:sweep" does."""
    for node in ast.walk(tree(module)):
        path = PATH.fullmatch(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
        # A word like "posgap.tasks" is also a group of entry points, and the name of no file.
        if path and path[1] in files() and files()[path[1]].name != "__init__.py":
            yield path[1]


@cache
def arrows(module: str) -> set[str]:
    """The modules of posgap that a module names in any way."""
    imported = {module_of(name) for name in named(ast.walk(tree(module)))}
    return (imported | set(in_strings(module))) - {"", "posgap", module}


def room(module: str) -> str:
    """The folder in which a module stands; empty for the two at the root."""
    parts = module.split(".")
    if f"{'/'.join(parts[1:3])}" in FLOORS:
        return "/".join(parts[1:3])
    return parts[1] if len(parts) > 1 and (len(parts) > 2 or files()[module].name == "__init__.py") else ""


def circle(below: dict[str, set[str]]) -> list[str]:
    """Whatever can be reached from itself."""

    def reached(name: str) -> set[str]:
        seen: set[str] = set()
        ahead = list(below[name])
        while ahead:
            if (each := ahead.pop()) not in seen:
                seen.add(each)
                ahead += below.get(each, ())
        return seen

    return sorted(name for name in below if name in reached(name))


@pytest.mark.full
def test_no_file_depends_on_itself_through_others():
    assert not circle({module: arrows(module) for module in files()})


def test_every_arrow_points_down():
    upward = {
        f"{module} names {other}"
        for module in files()
        for other in arrows(module)
        if room(module) and room(other) and FLOORS.index(room(other)) > FLOORS.index(room(module))
    }
    assert not upward


def test_the_root_holds_no_loose_module():
    assert {file.name for file in FOLDERS["posgap"].glob("*.py")} == {"__init__.py", "__main__.py"}


@cache
def heavy(module: str) -> bool:
    """Whether the import of a module takes long: of one of ours, that of what it imports at its top."""
    if module.split(".")[0] != "posgap":
        return module.split(".")[0] in HEAVY
    if not (here := module_of(module)) or here == "posgap":
        return False
    return any(heavy(name) for name in named(tree(here).body))


def test_functions_import_only_what_is_heavy():
    """vLLM's plugin is imported by vLLM before posgap is there."""
    light = {
        f"{files()[module].relative_to(ROOT)}:{node.lineno}"
        for module in files()
        if module != "posgap.scaling.vllm_plugin"
        for function in ast.walk(tree(module))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        for name in named([node])
        if name.split(".")[0] == "posgap" and not heavy(name)
    }
    assert not light


@pytest.mark.parametrize("wrong", ["from {0} import x", "import {0}", 'f = import_module("{0}")', 'WORK = "{0}:x"'])
@pytest.mark.parametrize("where", ["{0}", "def f():\n    {0}", "if TYPE_CHECKING:\n    {0}"])
def test_an_arrow_is_seen_wherever_it_stands(wrong, where, monkeypatch):
    module, other = "posgap.foundation.errors", "posgap.cli.main"
    text = where.format(wrong.format(other))
    monkeypatch.setattr(sys.modules[__name__], "tree", lambda _: ast.parse(text))
    assert arrows.__wrapped__(module) == {other}


def test_the_tree_names_every_room():
    written = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The tree")[2]
    assert not {name for name in FLOORS if f"{name}/" not in written}
    assert {room(module) for module in files()} - {""} == set(FLOORS)
