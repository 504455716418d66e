"""The four faces of a stage (function, verb, MLproject entry point, KFP component) agree."""

import subprocess
import sys

import pytest
import yaml
from conftest import ROOT
from kfp import compiler
from posgap.components.compare.component import compare
from posgap.components.data_version.component import data_version
from posgap.components.diagnose.component import diagnose
from posgap.components.distill.component import distill
from posgap.components.gate.component import gate
from posgap.components.promote.component import promote
from posgap.components.scale_apply.component import scale_apply
from posgap.components.scale_search.component import scale_search
from posgap.components.sweep.component import sweep
from posgap.components.teacher.component import teacher
from posgap.components.train_job.component import train_job
from posgap.components.validate.component import validate
from posgap.components.wrapper import IMAGE, component
from posgap.pipelines import smoke
from posgap.pipelines.mitigation import mitigation

from posgap.cli import PIPELINE, SCHEDULE, STAGES, build, words
from posgap.config import Role, SweepConfig, role

COMPONENTS = {
    "validate": validate,
    "teacher": teacher,
    "distill": distill,
    "train_job": train_job,
    "scale_search": scale_search,
    "scale_apply": scale_apply,
    "sweep": sweep,
    "compare": compare,
    "diagnose": diagnose,
    "gate": gate,
    "promote": promote,
    "data_version": data_version,
}


@pytest.mark.parametrize("name", STAGES)
def test_verb_and_component_take_the_config_s_parameters_and_defaults(name):
    config, _ = STAGES[name]
    command = build()
    for word in words(name):
        command = command.commands[word]
    options = {p.name: p for p in command.params}
    assert options.keys() == config.model_fields.keys()
    inputs = COMPONENTS[name].component_spec.inputs
    for field, info in config.parameters().items():
        assert inputs[field].default == config.default(field) == info.get_default(call_default_factory=True)
        assert inputs[field].description == options[field].help == info.description
        assert info.description, f"{name}.{field} has no description"
    # What KFP is not given and has no default for, the component's function would lack.
    optional = {f for f, i in config.model_fields.items() if not i.is_required() and role(i) is not Role.INPUT}
    assert all(inputs[field].default is not None for field in optional - {"force"})


@pytest.mark.parametrize("verbs", [PIPELINE, SCHEDULE])
def test_every_option_of_the_pipeline_verbs_says_what_it_is(verbs):
    for config, _ in verbs.values():
        assert config.__doc__
        assert all(info.description for info in config.model_fields.values())


def test_every_stage_has_a_folder_with_its_component():
    folders = {p.parent.name for p in (ROOT / "components").glob("*/component.py")}
    assert folders == STAGES.keys() == COMPONENTS.keys()


@pytest.mark.parametrize("name", STAGES)
def test_every_component_has_the_registry_s_metadata(name):
    metadata = yaml.safe_load((ROOT / "components" / name / "metadata.yaml").read_text())
    assert metadata["name"] == name
    assert metadata["stability"] in ("alpha", "beta", "stable")
    assert "Pipelines" in [d["name"] for d in metadata["dependencies"]["kubeflow"]]
    assert metadata["tags"] and metadata["lastVerified"]


def test_a_component_with_other_parameters_than_its_config_is_refused():
    def wrong(positions: list, speed: int):
        pass

    with pytest.raises(TypeError, match=r"component wrong: parameters differ from SweepConfig: .*'speed'"):
        component(SweepConfig)(wrong)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory) -> dict:
    file = tmp_path_factory.mktemp("pipeline") / "mitigation.yaml"
    compiler.Compiler().compile(mitigation, str(file))
    return yaml.safe_load(file.read_text())


def test_the_pipeline_compiles_with_described_parameters_in_our_image(compiled):
    parameters = compiled["root"]["inputDefinitions"]["parameters"]
    assert all(p.get("description") for p in parameters.values())
    assert smoke.PARAMETERS.keys() <= parameters.keys()
    images = {
        executor["container"]["image"]
        for executor in compiled["deploymentSpec"]["executors"].values()
        if "container" in executor
    }
    assert images == {IMAGE}


def test_the_pipeline_is_the_chain_and_promotes_only_behind_the_gate(compiled):
    tasks = compiled["root"]["dag"]["tasks"]
    after = {name: set(task.get("dependentTasks", [])) for name, task in tasks.items()}
    assert {"validate", "sweep"} <= after["teacher"]
    assert "teacher" in after["distill"]
    assert "distill" in after["sweep-2"]
    assert {"sweep", "sweep-2"} <= after["gate"]
    (condition,) = [task for name, task in tasks.items() if name.startswith("condition")]
    assert "gate" in condition["dependentTasks"]
    assert "promote" not in tasks
    (branch,) = [c for name, c in compiled["components"].items() if name.startswith("comp-condition")]
    assert not branch["dag"]["tasks"]["promote"]["cachingOptions"].get("enableCache")


def test_help_imports_neither_torch_nor_mlflow_nor_kfp():
    probe = (
        "import sys, posgap.cli\n"
        "for words in ('', 'sweep', 'data make kv', 'pipeline submit', 'pipeline schedule create'):\n"
        "    try: posgap.cli.main([*words.split(), '--help'])\n"
        "    except SystemExit as stopped: assert stopped.code == 0\n"
        "print(sorted({'torch', 'transformers', 'mlflow', 'kfp', 'boto3', 'pandas', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
