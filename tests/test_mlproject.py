"""MLproject: its entry points are what the command line takes. tests/test_packaging.py runs one."""

import shlex

import click
import pytest
from conftest import ROOT
from mlflow.projects._project_spec import load_project

from posgap.cli import STAGES, build
from posgap.mlproject import mlproject

PROJECT = load_project(str(ROOT))
POINTS = {"demo", "smoke", "scale", "rollout", *STAGES}


def test_mlproject_is_what_the_configs_say():
    assert (ROOT / "MLproject").read_text() == mlproject(), "run `make mlproject`"
    assert PROJECT._entry_points.keys() == POINTS
    assert {"validate", "teacher", "distill", "sweep", "gate", "promote"} <= POINTS


@pytest.mark.parametrize("name", sorted(POINTS))
def test_an_entry_point_is_verbs_that_the_command_line_takes(name, tmp_path):
    point = PROJECT.get_entry_point(name)
    needed = [p.name for p in point.parameters.values() if p.default is None]
    given = {each: f"a folder/{each}" for each in needed} | ({"sweeps": "a,b"} if "sweeps" in needed else {})
    command = point.compute_command(given, str(tmp_path))
    taken = {}
    for verb in command.split(" && "):
        program, *arguments = shlex.split(verb)
        assert program == "posgap"
        context = build().make_context("posgap", arguments, resilient_parsing=False)
        while isinstance(context.command, click.Group):
            word, command, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
            context = command.make_context(word, rest, parent=context)
        taken |= context.params
    assert {each: taken[each] for each in needed if each not in ("out", "sweeps")} == {
        each: given[each] for each in needed if each not in ("out", "sweeps")
    }
    assert str(taken["out"]).startswith("a folder/out") or "out" not in needed
