"""The command line in this process."""

import click
import pytest
from click.testing import CliRunner

from posgap.cli.main import build, main
from posgap.options.base import Config
from posgap.options.table import VERBS, file_name, stage_config


def run(capsys, *words) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    return stopped.value.code or 0, capsys.readouterr().err


def fails(capsys, *words) -> str:
    code, shown = run(capsys, *words)
    errors = [line for line in shown.splitlines() if "error" in line]
    assert code == 2 and len(errors) == 1 and "Traceback" not in shown, shown
    return errors[0].removeprefix("posgap: error: ")


def below(group: click.Group) -> dict[str, click.Command]:
    """The commands of a group by name, each made."""
    context = click.Context(group)
    return {name: group.get_command(context, name) for name in group.list_commands(context)}


def stage_configs() -> dict[str, type[Config]]:
    """The options of every stage, by the name of its file and KFP component."""
    names = [file_name(words) for words, verb in VERBS.items() if verb.is_stage]
    return {name: stage_config(name) for name in names}


def commands(group: click.Group) -> list[click.Command]:
    """All commands below a group."""
    found = []
    for command in below(group).values():
        found += commands(command) if isinstance(command, click.Group) else [command]
    return found


def shown(words: str, *more: str, of: click.Group | None = None) -> str:
    """What a verb prints for `--help`, or for another option."""
    return CliRunner().invoke(of or build(), [*words.split(), *(more or ["--help"])], prog_name="posgap").output
