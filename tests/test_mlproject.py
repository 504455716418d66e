"""MLproject: its entry points are what the command line takes. tests/test_packaging.py runs one."""

import shlex

import click
import pytest
from conftest import ROOT
from mlflow.projects._project_spec import load_project

from posgap.cli.main import build
from posgap.cli.mlproject import mlproject
from posgap.cli.verbs import STAGES

PROJECT = load_project(str(ROOT))
POINTS = {"demo", "smoke", "scale", "rollout", *STAGES}


def test_mlproject_is_what_the_configs_say():
    assert (ROOT / "MLproject").read_text() == mlproject(), "run `make mlproject`"
    assert PROJECT._entry_points.keys() == POINTS
    assert {"validate", "teacher", "distill", "sweep", "gate", "promote"} <= POINTS


def parsed(command: str) -> dict:
    """What the verbs of an entry point's command take."""
    taken = {}
    for verb in command.split(" && "):
        program, *arguments = shlex.split(verb)
        assert program == "posgap"
        context = build().make_context("posgap", arguments, resilient_parsing=False)
        while isinstance(context.command, click.Group):
            word, group, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
            context = group.make_context(word, rest, parent=context)
        taken |= context.params
    return taken


@pytest.mark.parametrize("name", sorted(POINTS))
def test_an_entry_point_is_verbs_that_the_command_line_takes(name, tmp_path):
    point = PROJECT.get_entry_point(name)
    needed = [p.name for p in point.parameters.values() if p.default is None]
    values = {each: f"a folder/{each}" for each in needed} | ({"sweeps": "a,b"} if "sweeps" in needed else {})
    taken = parsed(point.compute_command(values, str(tmp_path)))
    assert {each: taken[each] for each in needed if each not in ("out", "sweeps")} == {
        each: values[each] for each in needed if each not in ("out", "sweeps")
    }
    assert str(taken["out"]).startswith("a folder/out") or "out" not in needed


def test_an_entry_point_s_flags_can_be_set_and_left(tmp_path):
    flags = {
        (name, flag)
        for name, point in PROJECT._entry_points.items()
        for flag, parameter in point.parameters.items()
        if isinstance(parameter.default, bool)
    }
    assert {("smoke", "smoke"), ("data_version", "only_new"), ("scale", "halving")} < flags
    for name, flag in flags:
        point = PROJECT.get_entry_point(name)
        values = {each: "x,y" for each, parameter in point.parameters.items() if parameter.default is None}
        for value in ("true", "false", "True", "False"):
            taken = parsed(point.compute_command(values | {flag: value}, str(tmp_path)))
            assert taken[flag] is (value.lower() == "true"), (name, flag, value)
