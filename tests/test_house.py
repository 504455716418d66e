"""The rooms of src/posgap and how they depend on each other: downwards only (CONTRIBUTING has the tree)."""

import ast
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT

SOURCE = ROOT / "src" / "posgap"


def imports(file: Path) -> set[str]:
    """The modules of posgap that a file imports, wherever in it: "posgap.tasks.prompts"."""
    modules = set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for_types = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    for node in set(ast.walk(tree)) - {inner for block in for_types for inner in ast.walk(block)}:
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {module for module in modules if module.split(".")[0] == "posgap"}


def room(module: str) -> str:
    """The room of a module: its folder, or the module itself where it stands at the root; "" for names in it."""
    name = module.split(".")[1] if "." in module else ""
    return name if (SOURCE / name).is_dir() or (SOURCE / f"{name}.py").is_file() else ""


@cache
def arrows() -> dict[str, set[str]]:
    imported: dict[str, set[str]] = {}
    for file in SOURCE.rglob("*.py"):
        name = file.relative_to(SOURCE).with_suffix("").parts[0]
        imported.setdefault(name, set()).update(room(module) for module in imports(file))
    return {name: others - {name, "", "__init__"} for name, others in imported.items()}


def test_no_room_depends_on_itself_through_others():
    below = arrows()

    def reached(name: str, seen: set[str]) -> set[str]:
        for other in below.get(name, set()) - seen:
            seen |= {other} | reached(other, seen | {other})
        return seen

    assert not [name for name in below if name in reached(name, set())]


GROUND = [
    "printing",
    "errors",
    "locations",
    "progress",
    "tables",
    "positions",
    "redaction",
    "json_text",
    "choices",
    "config",
]


@pytest.mark.parametrize("name", GROUND)
def test_the_ground_floor_rests_on_nothing_but_itself(name):
    assert arrows()[name] <= set(GROUND)


def test_no_stage_imports_another():
    stages = {file.stem for file in (SOURCE / "stages").glob("*.py")}
    for file in (SOURCE / "stages").glob("*.py"):
        others = {f"posgap.stages.{name}" for name in stages - {file.stem, "__init__"}}
        assert not imports(file) & others, file.name


def test_the_tree_names_every_room():
    tree = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition("## The tree")[2]
    rooms = {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").is_file()}
    assert not {name for name in rooms if f"  {name}/ " not in tree}
