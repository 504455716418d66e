"""MLproject: its entry points are what the command line takes. tests/infra/test_packaging.py runs one."""

import os
import shlex
import subprocess

import click
import pytest
from mlflow.projects._project_spec import load_project
from places import ROOT

from posgap.cli.main import build
from posgap.cli.mlproject import POINTS, mlproject

PROJECT = load_project(str(ROOT))


def test_mlproject_is_what_the_configs_say():
    assert (ROOT / "MLproject").read_text() == mlproject(), "run `make mlproject`"
    assert PROJECT._entry_points.keys() == {*POINTS, "verb"}


def parsed(command: str) -> dict:
    """What the verb of an entry point's command takes."""
    program, *arguments = shlex.split(command)
    assert program == "posgap"
    context = build().make_context("posgap", arguments, resilient_parsing=False)
    word, verb, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
    assert isinstance(verb, click.Command)
    return verb.make_context(word, rest, parent=context).params


@pytest.mark.parametrize("name", POINTS)
def test_an_entry_point_is_a_verb_that_the_command_line_takes(name, tmp_path):
    point = PROJECT.get_entry_point(name)
    needed = [p.name for p in point.parameters.values() if p.default is None]
    values = {each: f"a folder/{each}" for each in needed}
    taken = parsed(point.compute_command(values, str(tmp_path)))
    assert {each: taken[each] for each in needed} == values
    assert needed or name == "demo"


def test_an_entry_point_s_flags_can_be_set_and_left(tmp_path):
    flags = {
        (name, flag)
        for name, point in PROJECT._entry_points.items()
        for flag, parameter in point.parameters.items()
        if isinstance(parameter.default, bool)
    }
    assert {("demo", "smoke"), ("promote", "approval"), ("teacher", "keep_incorrect")} < flags
    for name, flag in flags:
        point = PROJECT.get_entry_point(name)
        values = {each: "x,y" for each, parameter in point.parameters.items() if parameter.default is None}
        for value in ("true", "false", "True", "False"):
            taken = parsed(point.compute_command(values | {flag: value}, str(tmp_path)))
            assert taken[flag] is (value.lower() == "true"), (name, flag, value)


def test_any_verb_takes_its_arguments_as_a_text_that_a_shell_reads(tmp_path):
    text = """scale search --model 'a b' --label "it's" --out run/x"""
    command = PROJECT.get_entry_point("verb").compute_command({"arguments": text}, str(tmp_path))
    (tmp_path / "posgap").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "posgap").chmod(0o755)
    path = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", command], env=path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == shlex.split(text)
