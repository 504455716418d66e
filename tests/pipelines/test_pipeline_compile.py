"""`posgap pipeline compile` writes what KFP reads, always the same; `run` runs it here."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from google.protobuf import any_pb2, json_format
from kfp import components, dsl
from kfp.pipeline_spec.pipeline_spec_pb2 import PipelineSpec, PlatformSpec
from places import ROOT
from toy_pipeline import fails, posgap, toy, write_toy

from posgap.foundation.errors import BadOption, PosgapError
from posgap.foundation.fields import parse_settings, settings_text
from posgap.kubeflow.form import candidates, commonly, flat_settings
from posgap.options.pipeline_run import PipelineRunConfig
from posgap.pipelines import compilation, smoke
from posgap.pipelines.arguments import check_arguments, declared_parameters
from posgap.pipelines.compilation import compiled_text, for_server, load, parse
from posgap.tasks.registry import TASKS
from posgap.verbs import pipeline_compile

COMMITTED = ROOT / "pipelines" / "mitigation.yaml"
VERSIONS = ("2.15", "2.16", "2.17")
OURS = pytest.mark.parametrize("name", ["mitigation", "watch"])


def test_the_committed_pipelines_are_what_compiles_in_any_process_and_folder(tmp_path):
    names = ("mitigation", "watch")
    for seed in ("1", "2"):
        (tmp_path / seed).mkdir()
        verbs = [["pipeline", "compile", "--pipeline", name, "--out", f"{name}.yaml"] for name in names]
        code = f"from posgap.cli.main import build\nfor words in {verbs}: build().main(words, standalone_mode=False)"
        environment = os.environ | {"PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", code], cwd=tmp_path / seed, env=environment, check=True)
    for name in names:
        first, second = (tmp_path / seed / f"{name}.yaml" for seed in ("1", "2"))
        assert first.read_bytes() == second.read_bytes()
        committed = ROOT / "pipelines" / f"{name}.yaml"
        assert committed.read_bytes() == first.read_bytes(), "run `make pipeline`"
        assert str(ROOT) not in committed.read_text()


@pytest.mark.full
@OURS
def test_kfp_reads_back_what_is_written(name):
    committed = ROOT / "pipelines" / f"{name}.yaml"
    loaded = components.load_component_from_text(committed.read_text())
    assert loaded.name == f"posgap-{name}"
    assert loaded.component_spec.inputs.keys() == load(committed).parameters.keys()
    assert all(spec["description"] for spec in load(committed).parameters.values())


@OURS
def test_parameters_are_known_before_the_pipeline_is_compiled(name):
    compiled = load(ROOT / "pipelines" / f"{name}.yaml").parameters.items()
    kinds = {field: (spec["parameterType"], "defaultValue" in spec) for field, spec in compiled}
    known = declared_parameters(name).items()
    assert [(field, (spec["parameterType"], spec["isOptional"])) for field, spec in known] == [*kinds.items()]


@OURS
def test_the_form_begins_with_what_it_must_be_told(name):
    """KFP's UI sorts the fields by name."""
    parameters = load(ROOT / "pipelines" / f"{name}.yaml").parameters
    required = {field for field, spec in parameters.items() if "defaultValue" not in spec}
    assert required and set(sorted(parameters)[: len(required)]) == required


def test_choices_are_dropdowns_of_what_the_steps_take():
    parameters = load(COMMITTED).parameters
    offered = {name: spec["literals"] for name, spec in parameters.items() if "literals" in spec}
    assert offered == {"task": TASKS.names(), "inference_backend": ["transformers", "vllm"], "methods": commonly()}
    for methods in offered["methods"]:
        candidates(methods)
    assert all(parameters[name]["defaultValue"] in choices for name, choices in offered.items())
    assert not any("literals" in spec for spec in load(ROOT / "pipelines" / "watch.yaml").parameters.values())


@pytest.fixture(scope="module")
def protos():
    """The messages of each KFP version: of `kfp-pipeline-spec` and `kfp-kubernetes` of that version from PyPI
    (Apache-2.0) the serialized descriptors, as their `_pb2` modules register them."""
    from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, struct_pb2
    from google.rpc import status_pb2

    def of(version):
        pool = descriptor_pool.DescriptorPool()
        for known in (duration_pb2, struct_pb2, any_pb2, status_pb2):
            pool.AddSerializedFile(known.DESCRIPTOR.serialized_pb)
        file = ROOT / "tests" / "schemas" / f"kfp-{version}.0.binpb.gz"
        for each in descriptor_pb2.FileDescriptorSet.FromString(gzip.decompress(file.read_bytes())).file:
            pool.Add(each)
        return lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))()

    return {version: of(version) for version in VERSIONS}


def refusals(documents, proto) -> set[str]:
    """What a server does not know of a compiled pipeline: it reads each message strictly, as the driver does an
    executor's settings (`backend/src/v2/cmd/driver`)."""
    spec, platform = documents
    config = "PipelineDeploymentConfig"
    parts = [(spec, "ml_pipelines.PipelineSpec"), (platform, "ml_pipelines.PlatformSpec")]
    parts.append((spec["deploymentSpec"], f"ml_pipelines.{config}"))
    executors = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    parts += [(each, "kfp_kubernetes.KubernetesExecutorConfig") for each in executors.values()]
    unknown = set()
    for part, name in parts:
        try:
            json_format.ParseDict(part, proto(name))
        except json_format.ParseError as error:
            unknown.add(re.search(r'no field named "(\w+)"', str(error))[1])
    return unknown


@pytest.mark.full
@OURS
@pytest.mark.parametrize("version", VERSIONS)
def test_each_server_knows_all_that_is_compiled_for_it(protos, name, version):
    written = (ROOT / "pipelines" / f"{name}.yaml").read_text()
    compiled = for_server(written, version)
    assert refusals(yaml.safe_load_all(compiled), protos[version]) == set()
    assert (compiled == written) == (version != "2.15")
    newest = {"mitigation": {"literals", "securityContext"}, "watch": {"securityContext"}}[name]
    assert refusals(yaml.safe_load_all(written), protos[version]) == (newest if version == "2.15" else set())
    # Nothing else is missing.
    before, after = (load_all(text) for text in (written, compiled))
    assert (before == after) == (version != "2.15")
    for settings in before[1]["platforms"]["kubernetes"]["deploymentSpec"]["executors"].values():
        if version == "2.15":
            settings.pop("securityContext")
    for parameter in before[0]["root"]["inputDefinitions"]["parameters"].values():
        if version == "2.15":
            parameter.pop("literals", None)
    assert before == after


def load_all(text):
    return list(yaml.safe_load_all(text))


def test_the_version_is_an_option_and_no_other_is_known(capsys, tmp_path):
    code, out, _ = posgap(capsys, "compile", "--pipeline", "watch", "--kfp", "2.15")
    assert code == 0 and "securityContext" not in out and "posgap-watch" in out
    assert "2.15" in fails(capsys, "compile", "--kfp", "2.14")


def test_a_task_s_file_goes_into_the_settings_as_what_it_says(tmp_path):
    (tmp_path / "own.yaml").write_text('name: own\ntemplate: "a\\n\\n{documents}\\n\\n{question}\\nb"\nmetric: em\n')
    parameters = load(COMMITTED).parameters
    sent = check_arguments(PipelineRunConfig(param={"task": str(tmp_path / "own.yaml"), "shards": "2"}), parameters)
    said = flat_settings(sent["settings"])
    assert sent.keys() == {"settings"} and said["shards"] == 2 and said["task"]["metric"] == "em"
    with pytest.raises(BadOption, match=r"^--param task: .* 'kvv'; .* kv\?"):
        check_arguments(PipelineRunConfig(param={"task": "kvv"}), parameters)
    with pytest.raises(PosgapError, match="nowhere.yaml: "):
        check_arguments(PipelineRunConfig(param={"task": "nowhere.yaml"}), parameters)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("inference_backend=transformer", r" 'transformer'; .* transformers\?$"),
        ("inference_backend=", " ''; .* transformers, vllm$"),
        ("n=3", " 3; .* 1.0, 20.0$"),
        ("n=x", " 'x' "),
        ("n=20", None),
        ("inference_backend=vllm", None),
    ],
)
def test_a_value_that_the_form_does_not_offer_is_refused(given, complaint):
    backend = load(COMMITTED).parameters["inference_backend"]
    parameters = {"inference_backend": backend, "n": {"parameterType": "NUMBER_INTEGER", "literals": [1.0, 20.0]}}
    name, _, value = given.partition("=")
    config = PipelineRunConfig(param={name: value})
    if complaint is None:
        assert check_arguments(config, parameters) == {name: type(parameters[name].get("literals")[0])(value)}
        return
    with pytest.raises(PosgapError, match=f"^--param {name}:.*{complaint}"):
        check_arguments(config, parameters)


def test_what_the_form_does_not_ask_for_goes_into_its_settings():
    parameters = load(COMMITTED).parameters
    given = {"methods": "r1+lpes", "shards": "4", "sweep.limit": "9", "sweep.positions": "1,4", "max_gap": "5"}
    given |= {"settings": "shards: 2\nvalidate: {limit: 8}", "learning_rate": "1e-5"}
    values = check_arguments(PipelineRunConfig(param=given), parameters)
    assert values.keys() == {"settings", "max_gap"} and values["max_gap"] == 5.0
    said = {"shards": 4, "validate": {"limit": 8}, "methods": "r1+lpes", "sweep.limit": 9, "sweep.positions": "1,4"}
    assert parse_settings(values["settings"]) == said | {"learning_rate": 1e-5}
    offered = {"methods": "r1 then mitigate", "base_model": "m"}
    assert check_arguments(PipelineRunConfig(param=offered), parameters) == offered
    for wrong, complaint in {
        "max_gpa": r"^--param max_gpa: .* max_gap\b",
        "epocs": r"^--param epocs: .* epochs\?",
    }.items():
        with pytest.raises(BadOption, match=complaint):
            check_arguments(PipelineRunConfig(param={wrong: "5"}), parameters)
    for wrong, complaint in {
        "sweep: {limits: 1}": r"settings: sweep.limits: .* sweep.limit\b",
        "base_model: m": "settings: base_model: ",
        "a: 1\na: 2": "settings: .* 'a' .* line 1",
        "- 1": "settings: .* {shards: 4, ",
    }.items():
        with pytest.raises(PosgapError, match=complaint):
            check_arguments(PipelineRunConfig(param={"settings": wrong}), parameters)


def test_settings_are_read_by_yaml_1_2_and_every_json_text_as_json():
    read = parse_settings(
        "a: no\nb: 1e-5\nc: 1:30\nd: 2026-11-23\ne: 010\nf: true\ng: -3\nh: null\ni: .5\nj: 1,4\nk:\n"
    )
    assert read == dict(zip("abcdefghijk", ["no", 1e-5, "1:30", "2026-11-23", "010", True, -3, None, 0.5, "1,4", None]))
    value = {"x": [1, 1.5, 1e-05, "yes", {"y": None}], "z": 'a "b" \\ {{ é', "big": 1e22}
    assert parse_settings(json.dumps(value)) == value == parse_settings(settings_text(value))
    assert type(parse_settings("b: 1e-5")["b"]) is float and parse_settings("") == {}
    for text in ("a: &x 1\nb: *x", "a: !!python/none 1", "a: 1e999", "a: [", "[" * 9999, "1: 2", "a: " + "x" * 65536):
        with pytest.raises(ValueError):
            parse_settings(text)


def test_both_documents_are_written_where_the_pipeline_asks_anything_of_kubernetes(tmp_path):
    spec, platform = yaml.safe_load_all(write_toy(tmp_path).read_text())
    assert json_format.ParseDict(spec, PipelineSpec()).pipeline_info.name == "toy"
    executors = json_format.ParseDict(platform, PlatformSpec()).platforms["kubernetes"].deployment_spec.executors
    assert "exec-train" in executors


@pytest.mark.full
def test_without_out_the_pipeline_goes_to_standard_output(capsys):
    code, out, _ = posgap(capsys, "compile")
    assert code == 0 and out == COMMITTED.read_text()


def test_a_pipeline_with_an_undescribed_parameter_is_refused_and_not_written(capsys, tmp_path, monkeypatch):
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

    monkeypatch.setattr(pipeline_compile, "pipeline", lambda name: bare)
    (tmp_path / "old.yaml").write_text("as it was")
    complaint = fails(capsys, "compile", "--force", "--out", tmp_path / "old.yaml")
    assert complaint == "pipeline bare: describe these parameters in its docstring: n"
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("old.yaml", "as it was")]


def test_a_foreign_file_is_refused_before_anything_is_compiled(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline_compile, "compiled_text", lambda compiled: pytest.fail("it was compiled"))
    (tmp_path / "notes.yaml").write_text("as it was")
    complaint = fails(capsys, "compile", "--out", tmp_path / "notes.yaml")
    assert complaint == f"{tmp_path / 'notes.yaml'}: was not written by this command; --force replaces it"
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("notes.yaml", "as it was")]


@pytest.mark.parametrize("text", ["", "a: [", "a: 1", "- 1", "pipelineInfo: {name: x}", "spec: {workflow: argo}"])
def test_what_is_no_compiled_pipeline_is_refused_in_one_line(capsys, tmp_path, text):
    (tmp_path / "p.yaml").write_text(text)
    complaint = fails(capsys, "submit", "--host", "http://localhost:1", "--file", tmp_path / "p.yaml")
    assert complaint.startswith(f"{tmp_path / 'p.yaml'}: not a compiled KFP pipeline (")
    assert complaint.endswith("write one with `posgap pipeline compile`")


def test_a_missing_file_is_named(capsys, tmp_path):
    complaint = fails(capsys, "submit", "--host", "http://localhost:1", "--file", tmp_path / "p.yaml")
    assert complaint == f"{tmp_path / 'p.yaml'}: No such file or directory"


def test_switching_the_cache_off_reaches_steps_within_groups():
    compiled = parse(compiled_text(toy), "toy")
    cached = [task for dag in compiled.dags() for task in dag["tasks"].values() if task.get("cachingOptions")]
    assert len(cached) == 6
    off = compiled.without_cache()
    assert not any("cachingOptions" in task for dag in off.dags() for task in dag["tasks"].values())
    assert cached[0]["cachingOptions"] == {"enableCache": True}


@dsl.component(base_image="python:3.11", install_kfp_package=False)
def write(text: str, times: int, out: dsl.Output[dsl.Artifact]):
    if times > 5:
        from posgap.foundation.errors import PosgapError

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


@pytest.mark.full
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
        assert "--param text=" in fails(capsys, "run", "--out", out)
        assert not list(tmp_path.iterdir())
