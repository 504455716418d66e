"""Reads options of verbs from a YAML file: a section for each verb, with the names of its flags.

A flag overrides the environment (POSGAP_SWEEP_N_DOCS), and that overrides the file: click reads them in this order. The
key `tracking` beside the sections says where runs go, unless MLFLOW_TRACKING_URI does.
"""

import json
import os
from collections.abc import Iterable
from typing import Any

import click
from click.shell_completion import CompletionItem

from posgap.foundation.errors import PosgapError, shorten, suggestion
from posgap.foundation.fields import is_function
from posgap.options.table import VERBS

TRACKING = "tracking"
VARIABLE = "POSGAP_CONFIG"
PREFIX = "POSGAP"  # of the variables that stand for options
MAX_BYTES = 2**20  # of a file
_UNSAID = ("config", "help", "help_all")  # which no section has


class TextType(click.ParamType):
    """Takes text unchanged; keeps a file's lists and dictionaries: the verb's config checks them.

    Shells complete paths for it.
    """

    name = "text"

    def __init__(self, is_path: bool = False):
        self.is_path = is_path

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if isinstance(value, list | dict | bool) else click.STRING.convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")] if self.is_path else []


def option() -> click.Option:
    """`--config FILE`, which is read before the other options."""
    return click.Option(
        ["--config"],
        type=TextType(is_path=True),
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_take,
        envvar=VARIABLE,
        help=f"YAML file with a section of options for each verb, which flags and variables ({PREFIX}_VERB_OPTION) "
        "override",
    )


def _take(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if not value or ctx.resilient_parsing:  # a shell asks for completions
        return
    sections = _read_sections(value)
    verb = ctx.command_path.partition(" ")[2]  # its words, which name its section
    _require_known(value, sections.keys() - {TRACKING}, [*VERBS, verb, TRACKING], "verb")
    place = sections.get(TRACKING)
    if place:
        if not isinstance(place, str):
            raise PosgapError(f"{value}: {TRACKING}: write the address of an MLflow server, or sqlite:///FILE")
        os.environ["MLFLOW_TRACKING_URI"] = os.environ.get("MLFLOW_TRACKING_URI") or place
    section = sections.get(verb) or {}
    if not isinstance(section, dict):
        raise PosgapError(f"{value}: {verb}: write options below it, NAME: VALUE")
    given = {str(name).replace("-", "_"): each for name, each in section.items()}
    options = {option.name: option for option in ctx.command.params if option.name not in _UNSAID}
    _require_known(
        f"{value}: {verb}", (str(name) for name in section), [_option_name(name) for name in options], "option"
    )
    if is_function(given.get("model")):  # a file may come from others, and a function can do anything
        raise PosgapError(f"{value}: {verb}: model: give a function on the command line: --model {given['model']}")
    ctx.default_map = {name: _as_given(each, options[name]) for name, each in given.items() if each is not None}


def _as_given(value: Any, option: click.Parameter) -> Any:
    """Returns a value as the command line would give it. Several NAME=VALUE are a dictionary in a file. Raises
    `PosgapError` for several values if an option takes one."""
    if isinstance(value, dict) and getattr(option, "multiple", False):
        return [f"{name}={each if isinstance(each, str) else json.dumps(each)}" for name, each in value.items()]
    if option.nargs == -1 or getattr(option, "multiple", False):
        return [str(each) for each in value] if isinstance(value, list) else [str(value)]
    if isinstance(option.type, TextType):
        return value
    if isinstance(value, list | dict):
        raise PosgapError(f"--{_option_name(option.name)}: write one value, got {shorten(repr(value))}")
    return value if isinstance(value, bool) and getattr(option, "is_flag", False) else str(value)


def _read_sections(file: str) -> dict[str, Any]:
    from posgap.foundation.yaml_text import parse_yaml  # late: most commands read no file

    where = f"--config: {shorten(file)}"
    try:
        with open(file, "rb") as opened:
            data = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise PosgapError(f"{where}: {getattr(error, 'strerror', None) or 'is not a file name'}") from None
    sections = parse_yaml(data, where, "a config file", MAX_BYTES, typed=True)
    if not isinstance(sections, dict) or not all(isinstance(name, str) for name in sections):
        raise PosgapError(f"{where}: write a section for each verb, with its options below it")
    return sections


def _require_known(where: str, given: Iterable[str], known: list[str], what: str) -> None:
    for name in given:
        plain = name.replace("_", "-")
        if plain in known or name in known:
            continue
        meant = suggestion(plain, known, f"it may be {', '.join(known[:12])}, ...", at_most=1)
        raise PosgapError(f"{where}: no {what} is called {shorten(name)}; {meant}")


def _option_name(name: str | None) -> str:
    return (name or "").replace("_", "-")
