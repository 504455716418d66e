"""A light core: what measuring needs is installed by itself, and the rest says which extra brings it."""

import re
import sys
import tomllib
from functools import cache

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT

from posgap.cli import main as cli
from posgap.cli.main import main
from posgap.foundation.errors import PosgapError
from posgap.foundation.extras import EXTRA_OF, how_to_install, import_extra

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = {Requirement(each).name for each in PROJECT["dependencies"]}
# What one of those brings, and cannot do without.
CARRIED = {"huggingface_hub", "safetensors", "tokenizers", "packaging", "pydantic_core", "typing_extensions"}
# Modules that are of use with an extra alone, and so import it at their top.
OF_EXTRAS = ("components/", "pipelines/", "src/posgap/peers/harness.py", "src/posgap/peers/inspect_tasks.py")
UNDER_OTHER_NAMES = {"yaml": "pyyaml"}


# Lines of Python, which is a tenth of the time that parsing takes; indented: in a function, or there for types alone.
IMPORT = re.compile(r"^( *)(?:import ([\w.]+)(?: as \w+)?(?: +#.*)?|from ([\w.]+) import .*)$", re.MULTILINE)


@cache
def imported() -> dict[str, tuple[set[str], set[str]]]:
    """By file of the package: the packages of others that it imports wherever, and at its top."""
    found = {}
    for folder in ("src/posgap", "components", "pipelines"):
        for file in (ROOT / folder).rglob("*.py"):
            lines = IMPORT.findall(file.read_text(encoding="utf-8"))
            named = [(indented, (plain or of).partition(".")[0]) for indented, plain, of in lines]
            others = [
                (indented, name) for indented, name in named if name not in sys.stdlib_module_names | {"posgap", ""}
            ]
            anywhere, top = {name for _, name in others}, {name for indented, name in others if not indented}
            found[file.relative_to(ROOT).as_posix()] = anywhere, top
    return found


def in_core(package: str) -> bool:
    return package in CARRIED or UNDER_OTHER_NAMES.get(package, package) in CORE


def test_every_package_is_of_the_core_or_of_an_extra():
    everything = set().union(*(anywhere for anywhere, _ in imported().values()))
    assert {each for each in everything if not in_core(each)} - EXTRA_OF.keys() == {"datasets"}  # which says so itself
    assert not [each for each in EXTRA_OF if in_core(each)]
    # Those are looked for by their names.
    assert EXTRA_OF.keys() - everything <= {"vllm", "flash_attn", "inspect_ai", "lm_eval"}


def test_what_measuring_imports_is_of_the_core():
    wrong = {file: {p for p in top if not in_core(p)} for file, (_, top) in imported().items()}
    assert {file for file, found in wrong.items() if found and not file.startswith(OF_EXTRAS)} == set()


@pytest.mark.parametrize("module", EXTRA_OF)
def test_the_extra_that_is_named_brings_the_package(module):
    carriers = {
        "sqlalchemy": "mlflow",
        "alembic": "mlflow",
        "requests": "mlflow",
        "google": "kfp",
        "urllib3": "kfp",
        "kubernetes": "kubeflow",
    }
    carriers |= {"kfp_server_api": "kfp", "botocore": "boto3", "s3transfer": "boto3"}
    brought = PROJECT["optional-dependencies"][EXTRA_OF[module]]
    assert canonicalize_name(carriers.get(module, module)) in {
        canonicalize_name(Requirement(each).name) for each in brought
    }


def test_all_is_what_fits_into_one_environment():
    (together,) = PROJECT["optional-dependencies"]["all"]
    named = set(re.fullmatch(r"posgap\[(.*)\]", together)[1].split(","))
    apart = {"gpu", "vllm", "inspect", "harness", "docs", "test", "all"}
    assert named == PROJECT["optional-dependencies"].keys() - apart


@pytest.mark.usefixtures("mlflow_store")
def test_a_verb_without_its_extra_names_it_in_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(SystemExit) as ended:
        main(["rollback", "some-model", "--reason", "slow"])
    shown = capsys.readouterr().err
    assert ended.value.code == 2 and shown.count("\n") == 1
    assert "needs posgap's extra mlflow (mlflow is not installed): pip install 'posgap[mlflow]'" in shown


def test_a_module_of_nobody_s_extra_is_a_fault_of_posgap_s(monkeypatch, capsys, tmp_path):
    def work(_):
        import a_module_that_is_nowhere  # noqa: F401

    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path))
    monkeypatch.setattr(cli, "_work_of", lambda _: work)
    with pytest.raises(SystemExit) as ended:
        main(["rollback", "some-model", "--reason", "slow"])
    assert ended.value.code == 1 and "internal error" in capsys.readouterr().err
    assert how_to_install("a_module_that_is_nowhere") == ""
    with pytest.raises(ModuleNotFoundError):
        import_extra("a_module_that_is_nowhere")


def test_in_python_too_the_extra_is_named(monkeypatch):
    assert import_extra("json").loads("1") == 1
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(PosgapError, match=r"extra tables \(pandas is not.*posgap\[tables\]"):
        import_extra("pandas")
