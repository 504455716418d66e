"""`posgap pipeline compile` writes what KFP reads, always the same; `run` runs it here."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT
from google.protobuf import json_format
from kfp import components, dsl
from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineSpec, PlatformSpec
from toy_pipeline import fails, posgap, toy, write_toy
from warm import warm_steps  # noqa: F401  a fixture

from posgap.pipelines import compilation, smoke
from posgap.pipelines.compilation import compiled_text, load, parse

COMMITTED = ROOT / "pipelines" / "mitigation.yaml"
OURS = pytest.mark.parametrize("name", ["mitigation", "watch"])


@OURS
def test_the_committed_pipeline_is_what_compiles_in_any_process_and_folder(tmp_path, name):
    committed = ROOT / "pipelines" / f"{name}.yaml"
    for seed in ("1", "2"):
        words = ["pipeline", "compile", "--pipeline", name, "--out", f"{seed}.yaml"]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", f"from posgap.cli import main; main({words})"]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "1.yaml").read_bytes() == (tmp_path / "2.yaml").read_bytes()
    assert committed.read_bytes() == (tmp_path / "1.yaml").read_bytes(), "run `make pipeline`"
    assert str(ROOT) not in committed.read_text()


@OURS
def test_kfp_reads_back_what_is_written(name):
    committed = ROOT / "pipelines" / f"{name}.yaml"
    loaded = components.load_component_from_text(committed.read_text())
    assert loaded.name == f"posgap-{name}"
    assert loaded.component_spec.inputs.keys() == load(committed).parameters.keys()
    assert all(spec["description"] for spec in load(committed).parameters.values())


def test_both_documents_are_written_where_the_pipeline_asks_anything_of_kubernetes(tmp_path):
    spec, platform = yaml.safe_load_all(write_toy(tmp_path).read_text())
    assert json_format.ParseDict(spec, PipelineSpec()).pipeline_info.name == "toy"
    executors = json_format.ParseDict(platform, PlatformSpec()).platforms["kubernetes"].deployment_spec.executors
    assert "exec-train" in executors


def test_without_out_the_pipeline_goes_to_standard_output(capsys):
    code, out, _ = posgap(capsys, "compile")
    assert code == 0 and out == COMMITTED.read_text()


def test_a_pipeline_with_a_parameter_nobody_described_is_refused_and_nothing_is_written(capsys, tmp_path, monkeypatch):
    @dsl.component(base_image="python:3.11", install_kfp_package=False)
    def work(n: int):
        print(n)

    @dsl.pipeline(name="bare")
    def bare(n: int, described: int = 1):
        """Works.

        Args:
            described: Described.
        """
        work(n=n)

    monkeypatch.setattr(compilation, "pipeline", lambda name: bare)
    (tmp_path / "old.yaml").write_text("as it was")
    complaint = fails(capsys, "compile", "--out", tmp_path / "old.yaml")
    assert complaint == "pipeline bare: describe these parameters in its docstring: n"
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("old.yaml", "as it was")]


@pytest.mark.parametrize("text", ["", "a: [", "a: 1", "- 1", "pipelineInfo: {name: x}", "spec: {workflow: argo}"])
def test_what_is_no_compiled_pipeline_is_refused_in_one_line(capsys, tmp_path, text):
    (tmp_path / "p.yaml").write_text(text)
    complaint = fails(capsys, "lint", "--file", tmp_path / "p.yaml")
    assert complaint.startswith(f"{tmp_path / 'p.yaml'}: not a compiled KFP pipeline (")
    assert complaint.endswith("write one with `posgap pipeline compile`")


def test_a_missing_file_is_named(capsys, tmp_path):
    assert fails(capsys, "lint", "--file", tmp_path / "p.yaml") == f"{tmp_path / 'p.yaml'}: No such file or directory"


def test_switching_the_cache_off_reaches_steps_within_groups():
    compiled = parse(compiled_text(toy), "toy")
    cached = [task for dag in compiled.dags() for task in dag["tasks"].values() if task.get("cachingOptions")]
    assert len(cached) == 6
    off = compiled.uncached()
    assert not any("cachingOptions" in task for dag in off.dags() for task in dag["tasks"].values())
    assert cached[0]["cachingOptions"] == {"enableCache": True}


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def write(text: str, times: int, out: dsl.Output[dsl.Artifact]):
    if times > 5:
        from posgap.errors import PosgapError

        raise PosgapError("times: too many")
    with open(out.path, "w") as file:
        file.write(text * times)


@dsl.pipeline(name="writes")
def writes(text: str, times: int = 1) -> dsl.Artifact:
    """Writes.

    Args:
        text: What is written.
        times: How often.
    """
    return write(text=text, times=times).outputs["out"]


@pytest.fixture
def writing(monkeypatch):
    monkeypatch.setattr(compilation, "pipeline", lambda name: writes)
    monkeypatch.setattr(smoke, "PARAMETERS", {"times": 2})


def test_run_takes_the_parameters_by_their_types_and_prints_where_outputs_are(capsys, tmp_path, writing):
    code, out, _ = posgap(capsys, "run", "--out", tmp_path, "--param", "text=12", "--param", "times=3")
    assert code == 0 and (Path(out.strip()) / "write" / "out").read_text() == "121212"
    posgap(capsys, "run", "--out", tmp_path / "small", "--param", "text=a=b", "--smoke")
    (written,) = (tmp_path / "small").glob("steps/*/write/out")
    assert written.read_text() == "a=ba=b"


def test_run_ends_with_the_failed_step_s_line(capsys, tmp_path, writing):
    complaint = fails(capsys, "run", "--out", tmp_path, "--param", "text=x", "--param", "times=9")
    assert complaint.startswith("times: too many (the whole log is in ")


def test_run_needs_what_has_no_default(capsys, tmp_path, writing):
    for out in (tmp_path, tmp_path / "new"):
        assert fails(capsys, "run", "--out", out) == "the pipeline needs text: give --param text=..."
        assert not list(tmp_path.iterdir())
