"""The wheel and the source distribution: built from a copy of the tree, and tried where no checkout is at hand."""

import hashlib
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml
from command_line import stage_configs
from mlflow import MlflowClient
from places import ROOT
from written_sweeps import write_sweep

from posgap import __version__
from posgap.gating.verdict import read_verdict
from posgap.storage.inputs import read_manifest

STAGES = stage_configs()
# What a checkout gathers and nobody commits.
GATHERED = (
    ".git",
    ".venv",
    ".*cache",
    "*.egg-info",
    "__pycache__",
    "build",
    "runs",
    "mlruns",
    "mlflow.db",
    "mlartifacts",
)
FOLDERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
SHARED = f"posgap-{__version__}.data/data/share/posgap"


def built(tree: Path, out: Path, *kinds: str) -> Path:
    command = [sys.executable, "-m", "build", "--no-isolation", *kinds, "--outdir", out, tree]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return out


def contents(wheel: Path) -> dict[str, str]:
    """The files in a wheel with their sha256."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """A copy of the checkout, so that nothing of an earlier build gets in, and none is left behind."""
    ignored = shutil.ignore_patterns(*GATHERED)
    return shutil.copytree(ROOT, tmp_path_factory.mktemp("tree") / "posgap", ignore=ignored, symlinks=True)


@pytest.fixture(scope="module")
def distributions(tree, tmp_path_factory) -> Path:
    """The source distribution, and the wheel built from what is in it."""
    return built(tree, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(distributions) -> Path:
    (file,) = distributions.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory) -> Path:
    """A virtual environment with the wheel, which sees the packages that posgap needs and not the checkout."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", folder / "bin" / "python"]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", wheel], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    # A path in a .pth file is searched, and the .pth files in it, by which the checkout is installed, are not read.
    (packages / "packages.pth").write_text(sysconfig.get_path("purelib"))
    return folder


def run(environment: Path, *command: str | Path, **variables: str) -> str:
    """Runs a program of the environment outside the checkout; returns what it prints."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "MLFLOW_", "POSGAP_"))}
    kept |= {"PATH": f"{environment / 'bin'}:{kept['PATH']}", "PYTHONNOUSERSITE": "1"} | variables
    program, *arguments = command
    done = subprocess.run(
        [environment / "bin" / program, *arguments], cwd=environment, env=kept, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_one_version_stands_everywhere():
    said = {
        "CITATION.cff": yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"],
        "CHANGELOG.md": re.search(r"^## .*?(\d[\w.]*)\)?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1],
    }
    # Of images, in what is generated and in what is written by hand.
    shown = [*(ROOT / "pipelines").glob("*.yaml"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "infra").rglob("*.yaml")]
    for file in shown:
        for tag in re.findall(
            r"/posgap-[a-z-]+:(\d[\w.]*\w)|newName: \S+/posgap-\S+\s+newTag: (\S+)", file.read_text()
        ):
            said[f"{file.name}: {tag}"] = "".join(tag)
    assert {*said.values()} == {__version__} and len(said) > 4, said


def test_the_wheel_holds_every_file_of_the_packages_and_the_project(wheel):
    expected = {f"{SHARED}/MLproject", f"{SHARED}/infra/python_env.yaml"}
    for package, folder in FOLDERS.items():
        files = [file.relative_to(ROOT / folder) for file in (ROOT / folder).rglob("*") if file.is_file()]
        inside = package.replace(".", "/")
        expected |= {f"{inside}/{file.as_posix()}" for file in files if "__pycache__" not in file.parts}
    assert {name for name in contents(wheel) if ".dist-info/" not in name} == expected
    assert "posgap/components/table.py" in expected
    licences = {Path(name).name for name in contents(wheel) if ".dist-info/licenses/" in name}
    assert licences == {"LICENSE", "NOTICE"} and "posgap/measurement/templates/preact/LICENSE" in expected


def test_the_readme_s_links_are_absolute_where_the_repository_has_an_address():
    """One setting, in pyproject.toml, decides it."""
    made = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")
    readme, repository = (ROOT / "README.md").read_text(encoding="utf-8"), "https://host/me/posgap"
    text = made["absolute"](readme, repository)
    assert [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("https://")] == []
    assert f"before and after training]({repository}/raw/main/docs/" in text  # the first picture
    assert f"[from data to a champion]({repository}/blob/main/docs/champion.md)" in text
    assert made["absolute"](readme, "") == readme and made["addresses"]("") == {}
    assert made["addresses"](repository)["Changelog"] == f"{repository}/blob/main/CHANGELOG.md"


def test_the_package_s_page_is_the_readme(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(f"posgap-{__version__}.dist-info/METADATA").decode()
    made = runpy.run_path(str(ROOT / "setup.py"), run_name="setup")
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["posgap"]["repository"]
    assert "Description-Content-Type: text/markdown" in metadata
    assert made["absolute"]((ROOT / "README.md").read_text(encoding="utf-8"), repository).strip() in metadata
    assert metadata.count("Project-URL: ") == len(made["addresses"](repository))


@pytest.mark.full
def test_the_source_distribution_holds_all_that_makes_the_wheel(tree, wheel, distributions, tmp_path):
    """The wheel of `distributions` is built from the source distribution alone, the other one from the tree."""
    (direct,) = built(tree, tmp_path, "--wheel").glob("*.whl")
    assert contents(direct) == contents(wheel)
    (archive,) = distributions.glob("*.tar.gz")
    with tarfile.open(archive) as source:
        files = {member.name.partition("/")[2] for member in source if member.isfile()}
    assert {"Makefile", "make/tests.mk", "constraints.txt", "CHANGELOG.md", "tests/conftest.py"} < files
    assert {"infra/images/Dockerfile", "docs/kubeflow.md"} < files


def test_every_version_that_is_installed_but_torch_s_has_hashes():
    wanted = re.findall(r"^[\w.-]+==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    text = (ROOT / "infra" / "images" / "hashes.txt").read_text()
    hashed = re.findall(r"^([\w.-]+==\S+) \\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
    plain = [{re.sub(r"[._-]+", "-", each.lower()) for each in versions} for versions in (wanted, hashed)]
    assert {each.partition("==")[0] for each in plain[0] ^ plain[1]} == {"torch"}, "run `make hashes`"


def test_the_docs_name_the_versions_of_torch_and_transformers_that_are_taken():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    bounds = [each for each in extras["local"] if re.match("(torch|transformers)\\b", each)]
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert len(bounds) == 2 and all(f"`{each}`" in text for each in bounds)


@pytest.mark.full
def test_every_component_of_the_wheel_imports_and_is_the_wheel_s(environment):
    script = (
        "import importlib, json, sys\n"
        "table = importlib.import_module('posgap.components.table')\n"
        f"specs = {{name: getattr(table, name).component_spec.name for name in {[*STAGES]}}}\n"
        "files = {name: module.__file__ for name, module in sys.modules.items() if name.split('.')[0] == 'posgap'}\n"
        "print(json.dumps([specs, files]))"
    )
    specs, files = json.loads(run(environment, "python", "-c", script))
    assert specs == {name: name.replace("_", "-") for name in STAGES}
    assert all(Path(file).is_relative_to(environment) for file in files.values())
    assert "posgap.components.table" in files


@pytest.mark.full
def test_the_wheel_compiles_the_pipeline_of_the_checkout_and_carries_it(environment, tmp_path):
    run(environment, "posgap", "pipeline", "compile", "--out", tmp_path / "pipeline.yaml")
    (carried,) = environment.glob("lib/python*/site-packages/posgap/pipelines/mitigation.yaml")
    text = (ROOT / "pipelines" / "mitigation.yaml").read_text()
    assert (tmp_path / "pipeline.yaml").read_text() == carried.read_text() == text


@pytest.mark.full
def test_the_wheel_s_project_is_the_checkout_s(environment):
    script = "from posgap.cli.mlproject import mlproject; print(mlproject(), end='')"
    project = (ROOT / "MLproject").read_text()
    assert run(environment, "python", "-c", script) == project
    assert (environment / "share" / "posgap" / "MLproject").read_text() == project


@pytest.mark.nightly
def test_mlflow_runs_an_entry_point_of_the_wheel_whose_stage_joins_its_run(environment, tmp_path):
    store = f"sqlite:///{tmp_path}/mlflow.db"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("MLFLOW_TRACKING_URI", store)
        base, new = (write_sweep(tmp_path / name, [skill] * 5) for name, skill in (("base", 0.9), ("new", 0.995)))
    parameters = {"base": base, "candidate": new, "out": tmp_path / "gate", "max_gap": 12.5}
    options = ["-e", "gate", "--env-manager", "local", *(f"-P{name}={value}" for name, value in parameters.items())]
    folder = environment / "share" / "posgap"
    run(environment, "python", "-m", "mlflow", "run", folder, *options, MLFLOW_TRACKING_URI=store, OMP_NUM_THREADS="1")
    assert read_verdict(tmp_path / "gate").rules[0].threshold == 12.5
    project = MlflowClient(store).get_run(read_manifest(tmp_path / "gate")["mlflow_run_id"])
    assert project.data.tags["mlflow.project.entryPoint"] == "gate"
    assert project.data.tags["posgap.gate"] == "admitted"
    assert float(project.data.params["max_gap"]) == 12.5
