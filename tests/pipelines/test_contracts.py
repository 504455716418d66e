"""The faces of a stage (function, verb, KFP component) agree."""

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import below, stage_configs
from endpoint import Endpoint, served
from examples import kv_example
from kfp.dsl.base_component import BaseComponent
from pydantic import Field

from posgap.cli.main import build, main
from posgap.components import making, table
from posgap.data.reading import write_examples
from posgap.foundation.fields import Role, role
from posgap.kubeflow.artifacts import PLAN
from posgap.kubeflow.form import STAGES as GIVEN_STAGES
from posgap.kubeflow.steps import STEPS
from posgap.options.base import NO_PARAMETERS
from posgap.options.promote import PromoteConfig
from posgap.options.scale_search import ScaleSearchConfig
from posgap.options.table import VERBS, file_name, work_of
from posgap.options.verb import Kind

# Fields that a component makes itself of what KFP gives it.
MADE = {"compare": {"sweeps"}, "report": {"state", "message"}}
STAGES = stage_configs()
TYPED = {file_name(words): words for words, verb in VERBS.items() if verb.is_stage}
VERSION = re.compile(r"(>=|<=|==)?(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[\w.-]+)?(\+[\w.-]+)?")  # semver.org


@pytest.mark.parametrize("name", STAGES)
def test_verb_and_component_take_the_config_s_parameters_and_defaults(name):
    config = STAGES[name]
    command = build()
    for word in TYPED[name].split():
        command = below(command)[word]
    options = {p.name: p for p in command.params}
    assert options.keys() == VERBS[TYPED[name]].config.options().keys() | {"config", "json", "quiet"}
    inputs = load(name).component_spec.inputs
    for field, info in config.parameters().items():
        if field in MADE.get(name, ()):
            continue
        assert inputs[field].default == (None if info.is_required() else config.default(field))
        assert not inputs[field].description  # KFP shows none of a step
        assert field not in options or options[field].help == info.description
        assert info.description, f"{name}.{field} has no description"
    # What KFP is not given and has no default for, the component's function would lack.
    optional = {
        f for f, i in config.model_fields.items() if not i.is_required() and role(i) not in (Role.INPUT, Role.OUTPUT)
    }
    assert all(inputs[field].default is not None for field in optional - {*NO_PARAMETERS} - MADE.get(name, set()))


def load(name: str) -> BaseComponent:
    return getattr(table, name)


def test_every_stage_has_a_component():
    assert {name for name, made in vars(table).items() if isinstance(made, BaseComponent)} == STAGES.keys()
    assert STEPS.keys() == STAGES.keys()
    assert all(load(name).name == name.replace("_", "-") for name in STAGES)


def test_a_component_takes_a_field_that_its_config_gets_later(monkeypatch):
    """Such as the parameter of a choice that another package registers."""

    class Wider(PromoteConfig):
        speed: float = Field(1.5, description="how fast")
        stops: list[int] = Field(description="where to stop")

    artifacts = {"model": "Model", "gate": "Artifact", "sweep": "Artifact"}
    more = {"optional": {"examples": "Artifact", "base": "Model"}, "settings": True}
    monkeypatch.setattr(making, "stage_config", lambda name: Wider)
    promote_fast = making.make_component("promote_fast", artifacts, {"out": "Artifact"}, **more)
    inputs = promote_fast.component_spec.inputs
    assert (inputs["speed"].type, inputs["speed"].default) == ("Float", 1.5)
    assert (inputs["stops"].type, inputs["stops"].optional) == ("List", False)
    step = dict.fromkeys(("model", "gate", "gate_again", "sweep", "out")) | {
        "name": "m",
        "stops": [1],
        "speed": 2.0,
    }
    step |= {name: PromoteConfig.default(name) for name in PromoteConfig.parameters().keys() - step.keys()}
    every = step | {"settings": {}, "cache_key": "", "examples": None, "base": None}
    seen = []
    monkeypatch.setattr("posgap.kubeflow.steps.run_step", lambda name, arguments: seen.append((name, arguments)))
    promote_fast.python_func(**step)
    # What KFP has the step run is this function, as text, and nothing else.
    program = promote_fast.component_spec.implementation.container.command[-1]
    assert inspect.getsource(promote_fast.python_func) in program
    compiled: dict = {}
    exec(program, compiled)
    compiled["promote_fast"](**step)
    assert seen == [("promote_fast", every)] * 2


def test_a_component_whose_artifacts_are_not_those_of_its_config_is_refused(monkeypatch):
    monkeypatch.setattr(making, "stage_config", lambda name: ScaleSearchConfig)
    inputs, out = {"examples": "Dataset", "model": "Model"}, {"out": "Artifact"}
    exclude = {"optional": {"exclude": "Dataset"}}
    with pytest.raises(TypeError, match=r"component other: .* ScaleSearchConfig: \['speed'\]"):
        making.make_component("other", {**inputs, "speed": "Dataset"}, out, **exclude)
    with pytest.raises(TypeError, match=r"component fewer: .* ScaleSearchConfig: \['model'\]"):
        making.make_component("fewer", {"examples": "Dataset"}, out, **exclude)


def test_preflight_returns_what_the_pipeline_gives_to_every_stage():
    returned = load("preflight").component_spec.outputs.keys() - {"out", "checks"}
    assert returned == PLAN.keys() and returned >= GIVEN_STAGES.keys()


LIGHT = """
import contextlib, sys, posgap.cli.main

def imported(*words, code=0):
    try: posgap.cli.main.main(words)
    except SystemExit as stopped: assert stopped.code == code
    large = {"torch", "transformers", "mlflow", "kfp", "boto3", "matplotlib", "pandas", "numpy"}
    print(*sorted(large & set(sys.modules)), file=sys.stderr)

for words in ("", "sweep", "data make", "pipeline submit", "pipeline schedule"):
    imported(*words.split(), "--help")
at_night = ["--cron", "0 3 * * *", "--host", "http://localhost"]
for wrong in (["--cron", "x"], ["--file", "nowhere.yaml"], ["--param", "colour=red"], ["--host", "localhost"]):
    imported("pipeline", "schedule", "nightly", *at_night, *wrong, code=2)
imported("pipeline", "schedule", "--host", "localhost", code=2)

import posgap.verbs.frame, posgap.verbs.promote, posgap.verbs.validate
import posgap.verbs.gate, posgap.verbs.champion, posgap.verbs.watch
from posgap.tracking.runs import Run

# Without tracking, for which MLflow is imported.
posgap.verbs.frame.start_run = lambda *_: contextlib.nullcontext(Run())
"""


@pytest.mark.full
def test_what_loads_no_model_imports_no_torch(tmp_path, monkeypatch):
    """Help, what a schedule refuses, a stage that is complete, a sweep of an endpoint, and what a pipeline's steps
    import that load no model."""
    (tmp_path / "model").mkdir()
    applied = ["apply", "--model", str(tmp_path / "model"), "--mitigation", "lpes", "--out", str(tmp_path / "applied")]
    write_examples(tmp_path / "e.jsonl", [kv_example()])
    asked = ["sweep", "--backend", "openai", "--model", "m", "--examples", str(tmp_path / "e.jsonl"), "--n-docs", "3"]
    asked += ["--out", str(tmp_path / "swept")]
    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="0"):
        patch.setattr("posgap.verbs.apply.apply.__wrapped__", lambda *_: None)  # it is its frame that is tested here
        main(applied)
    with served(Endpoint()) as endpoint:
        asked += ["--base-url", endpoint.url]
        probe = f"{LIGHT}imported(*{applied})\nimported(*{asked})\nimported(*{asked})"
        done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
        assert len(endpoint.seen) == 3
    lines = [line for line in done.stderr.splitlines() if not line.startswith("posgap")]
    assert lines == [""] * 10 + ["numpy"] + ["matplotlib numpy"] * 2  # the first of these for the picture
    assert re.findall(r"(\w+) is complete, reused", done.stderr) == ["applied", "swept"]


def test_a_complete_output_is_found_before_a_stage_s_module_is_imported():
    for words in TYPED.values():
        module, function = work_of(words).split(":")
        tree = ast.parse(Path(importlib.util.find_spec(module).origin).read_text(encoding="utf-8"))
        (defined,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
        framed = "stage" in map(ast.unparse, defined.decorator_list)
        assert (VERBS[words].kind is Kind.STAGE) == framed, words
