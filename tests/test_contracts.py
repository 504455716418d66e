"""The four faces of a stage (function, verb, MLproject entry point, KFP component) agree."""

import ast
import re
import subprocess
import sys

import pytest
import yaml
from conftest import ROOT
from posgap.components.readmes import load, names, readme
from posgap.components.wrapper import component
from posgap.pipelines import forms

from posgap.cli import PIPELINE, SCHEDULE, STAGES, build, words
from posgap.config import PreflightConfig, Role, SweepConfig, role

# Fields that a component makes itself of what KFP gives it.
MADE = {"compare": {"sweeps"}, "report": {"state", "message"}}
VERSION = re.compile(r"(>=|<=|==)?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[\w.-]+)?(\+[\w.-]+)?")  # semver.org


@pytest.mark.parametrize("name", STAGES)
def test_verb_and_component_take_the_config_s_parameters_and_defaults(name):
    config, _ = STAGES[name]
    command = build()
    for word in words(name):
        command = command.commands[word]
    options = {p.name: p for p in command.params}
    assert options.keys() == config.model_fields.keys()
    inputs = load(name).component_spec.inputs
    for field, info in config.parameters().items():
        if field in MADE.get(name, ()):
            continue
        assert inputs[field].default == (None if info.is_required() else config.default(field))
        assert inputs[field].description == options[field].help == info.description
        assert info.description, f"{name}.{field} has no description"
    # What KFP is not given and has no default for, the component's function would lack.
    optional = {f for f, i in config.model_fields.items() if not i.is_required() and role(i) is not Role.INPUT}
    assert all(inputs[field].default is not None for field in optional - {"force"} - MADE.get(name, set()))


@pytest.mark.parametrize("verbs", [PIPELINE, SCHEDULE])
def test_every_option_of_the_pipeline_verbs_says_what_it_is(verbs):
    for config, _ in verbs.values():
        assert config.__doc__
        assert all(info.description for info in config.model_fields.values())


def test_every_stage_has_a_folder_with_its_component():
    assert set(names()) == STAGES.keys()
    assert all(load(name).name == name.replace("_", "-") for name in names())


@pytest.mark.parametrize("name", STAGES)
def test_every_component_keeps_the_rules_of_the_community_registry(name):
    """kubeflow/pipelines-components: docs/CONTRIBUTING.md and scripts/validate_metadata."""
    folder = ROOT / "components" / name
    metadata = yaml.safe_load((folder / "metadata.yaml").read_text())
    assert list(metadata) == ["name", "stability", "dependencies", "tags", "lastVerified", "links"]
    assert metadata["name"] == name and metadata["stability"] in ("experimental", "alpha", "beta", "stable")
    assert metadata["dependencies"].keys() == {"kubeflow", "external_services"}
    known = [one for group in metadata["dependencies"].values() for one in group]
    assert all(one.keys() == {"name", "version"} and VERSION.fullmatch(one["version"]) for one in known)
    assert "Pipelines" in [one["name"] for one in metadata["dependencies"]["kubeflow"]]
    assert metadata["tags"] and all(isinstance(tag, str) for tag in metadata["tags"])
    assert metadata["lastVerified"].tzinfo is not None
    assert metadata["links"].keys() == {"documentation", "issue_tracker"}
    assert (folder / "OWNERS").read_text().startswith("approvers:\n  - ")
    module = ast.parse((folder / "component.py").read_text())
    imported = [node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert {node.module.partition(".")[0] for node in imported} <= {"kfp", "posgap", "typing"}


@pytest.mark.parametrize("name", STAGES)
def test_every_component_s_readme_is_what_its_code_says(name):
    assert (ROOT / "components" / name / "README.md").read_text() == readme(name), "run `make components`"


def test_a_pipeline_with_other_parameters_than_its_form_is_refused():
    def wrong(train_data: str, speed: int):
        pass

    with pytest.raises(TypeError, match=r"pipeline wrong: parameters differ from PreflightConfig: .*'speed'"):
        forms.form(PreflightConfig)(wrong)


def test_the_form_s_page_says_what_the_form_says():
    page = (ROOT / "docs" / "kubeflow.md").read_text().partition("## The form")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", page, re.MULTILINE))
    fields = {n: f.description for n, f in PreflightConfig.model_fields.items() if n not in forms.NO_FIELDS}
    assert rows == fields and list(rows) == sorted(rows)


def test_a_component_with_other_parameters_than_its_config_is_refused():
    def wrong(positions: list, speed: int):
        pass

    with pytest.raises(TypeError, match=r"component wrong: parameters differ from SweepConfig: .*'speed'"):
        component(SweepConfig)(wrong)


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
