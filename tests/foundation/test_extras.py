"""A light core: what measuring needs is installed by itself, and the rest says which extra brings it."""

import os
import re
import subprocess
import sys
import tomllib
from functools import cache

import pytest
from endpoint import Endpoint, retrieve, served
from examples import kv_example
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from places import ROOT

from posgap.cli import main as cli
from posgap.cli.main import main
from posgap.data.reading import write_examples
from posgap.foundation.errors import MissingPackage
from posgap.foundation.extras import EXTRA_OF, how_to_install, import_extra

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = {Requirement(each).name for each in PROJECT["dependencies"]}
# What one of those brings, and cannot do without.
CARRIED = {"packaging", "pydantic_core", "typing_extensions"}
# Most modules are only imported where a model of this machine is read; the last test here holds who does without.
OF_LOCAL = {package for package, extra in EXTRA_OF.items() if extra == "local"}
# Modules that are of use with an extra alone, and so import it at their top.
OF_EXTRAS = ("components/", "pipelines/", "src/posgap/foundation/parquet.py", "src/posgap/api/inspect_tasks.py")
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
    # A SOCKS proxy needs aiohttp_socks, which the line that refuses the proxy without it names.
    everything = set().union(*(anywhere for anywhere, _ in imported().values())) - {"aiohttp_socks"}
    assert not {each for each in everything if not in_core(each)} - EXTRA_OF.keys()
    assert not [each for each in EXTRA_OF if in_core(each)]
    # Those are looked for by their names.
    assert EXTRA_OF.keys() - everything <= {"vllm", "flash_attn"}


def test_what_measuring_imports_is_of_the_core():
    wrong = {file: {p for p in top if not in_core(p) | (p in OF_LOCAL)} for file, (_, top) in imported().items()}
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
    carriers |= {"safetensors": "transformers", "tokenizers": "transformers"}
    carriers |= {"kfp_server_api": "kfp", "botocore": "boto3", "s3transfer": "boto3"}
    brought = PROJECT["optional-dependencies"][EXTRA_OF[module]]
    assert canonicalize_name(carriers.get(module, module)) in {
        canonicalize_name(Requirement(each).name) for each in brought
    }


def test_all_is_what_fits_into_one_environment():
    (together,) = PROJECT["optional-dependencies"]["all"]
    named = set(re.fullmatch(r"posgap\[(.*)\]", together)[1].split(","))
    apart = {"gpu", "vllm", "inspect", "docs", "test", "all"}
    assert named == PROJECT["optional-dependencies"].keys() - apart


@pytest.mark.usefixtures("mlflow_store")
def test_a_verb_without_its_extra_names_it_in_one_line(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(SystemExit) as ended:
        main(["rollback", "some-model", "--reason", "slow"])
    shown = capsys.readouterr().err
    assert ended.value.code == 2 and shown.count("\n") == 1
    assert "needs posgap's extra mlflow (mlflow is not installed): pip install 'posgap[mlflow]'" in shown


def test_a_pipeline_run_says_what_a_later_step_lacks_before_any_runs(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "great_expectations", None)
    with pytest.raises(SystemExit):
        main(["pipeline", "run", "--smoke", "--out", str(tmp_path / "run")])
    assert capsys.readouterr().err.startswith("posgap: error: this needs posgap's extra validate (great_expectations")
    assert not (tmp_path / "run").exists()


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
    with pytest.raises(MissingPackage, match=r"posgap\[tables\]"):
        import_extra("pandas")


@pytest.mark.full
def test_an_endpoint_is_swept_without_torch_and_a_local_model_names_the_extra(tmp_path):
    """In a Python where nothing of the extra `local` can be imported."""
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(4)])
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules |= dict.fromkeys({sorted(OF_LOCAL)})\n")
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}

    def posgap(verb: str, model: str, *options: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "posgap", verb, model]
        command += ["--task", "kv", "--examples", "e.jsonl", "--n-docs", "3"]
        return subprocess.run([*command, *options], cwd=tmp_path, env=environment, capture_output=True, text=True)

    with served(Endpoint(retrieve)) as endpoint:
        swept = posgap("sweep", f"{endpoint.url}#m", "--out", "swept")
        assert swept.returncode == 0, swept.stderr
        mitigated = posgap("mitigate", f"{endpoint.url}#m", "--budget", "5s", "--out", "mitigated")
        assert "extra" not in mitigated.stderr and "internal error" not in mitigated.stderr
    refused = posgap("sweep", "gpt2", "--out", "local")
    assert refused.returncode == 2
    assert "needs posgap's extra local (torch is not installed): pip install 'posgap[local]'" in refused.stderr
