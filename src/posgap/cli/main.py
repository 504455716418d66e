"""The command line: the verbs of posgap.options.table, their options read off their configs.

Exit codes: 0 done, 1 `verify` or `doctor` found something, or a fault of posgap itself (its line names
the file that has the traceback), 2 bad input (one line says what, where and what to do), 3 the gate refused, 4 a
submitted run failed, 5 it was cancelled, 6 it was still under way when the time was up, 7 the gate had not enough
evidence, 130 stopped by Ctrl-C, 143 stopped by SIGTERM.
"""

import importlib
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args, get_origin

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from posgap import __version__
from posgap.cli import config_file
from posgap.foundation import printing
from posgap.foundation.errors import (
    INTERNAL_ERROR,
    OUT_OF_MEMORY,
    STOPPED,
    SYSTEM_ERROR,
    BadOption,
    GateRefusal,
    MissingPackage,
    NotEnoughEvidence,
    NotFound,
    OfAll,
    PosgapError,
    Rejection,
    complaint_of,
    place_of_fault,
    shorten,
)
from posgap.foundation.extras import how_to_install
from posgap.foundation.fields import POSITIONAL, RARE, choices_of, is_endpoint, plain_type, role
from posgap.foundation.internal_errors import describe_internal_error
from posgap.foundation.interruption import raise_on_termination
from posgap.foundation.launch import exit_process, is_main_process, leave_together
from posgap.foundation.locations import as_location, with_uris
from posgap.foundation.redaction import redact
from posgap.foundation.registry import SECRET
from posgap.foundation.termination import leave_message
from posgap.options.base import Config
from posgap.options.table import FIRST, GROUPS, SECTIONS, VERBS, work_of
from posgap.options.verb import Kind, Verb
from posgap.storage.inputs import source
from posgap.verbs.frame import stage_at
from posgap.verbs.inputs import with_local_paths

log = logging.getLogger(__name__)


def _click_type(info: FieldInfo) -> dict[str, Any]:
    """Returns click's type for a field: the type it checks; values that pydantic parses itself stay text."""
    annotation = info.annotation
    registered = choices_of(info)
    if registered:
        # MLproject has no way to leave a parameter out: an empty one leaves the choice open.
        names = registered.names() + ([""] if info.default == "" else [])
        shown = filter(None, [*registered.names(), registered.instead])
        return {"type": _RegistryChoice(names, registered.takes), "metavar": f"[{'|'.join(shown)}]"}
    if annotation is bool:
        return {"is_flag": True}
    if annotation == dict[str, str]:
        return {"multiple": True, "metavar": "NAME=VALUE"}
    members = get_args(annotation)
    choices = [member for member in members if isinstance(member, str)]
    if choices:
        return {"type": click.Choice(choices), "metavar": f"[{'|'.join(filter(None, choices))}]"}
    if int in members or float in members:  # a number that may be left empty
        return {"type": config_file.TextType(), "metavar": "INTEGER" if int in members else "FLOAT"}
    kind = plain_type(info)
    return {"type": kind if kind in (int, float) else config_file.TextType(is_path=role(info) is not None)}


class _RegistryChoice(click.Choice):
    """A choice by its name, or by what its registry takes in place of one, as a task's file."""

    def __init__(self, names: list[str], takes: Callable[[str], bool]):
        super().__init__(names)
        self.takes = takes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if self.takes(str(value)) else super().convert(value, param, ctx)


def is_argument(field: FieldInfo) -> bool:
    """Whether a field is given without its name: `posgap compare A B`."""
    return POSITIONAL in field.metadata


class _Argument(click.Argument):
    """An argument that help describes."""

    def __init__(self, *names: Any, description: str | None, **more: Any):
        super().__init__(*names, **more)
        self.help = description

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return self.make_metavar(ctx), self.help or ""


class _Option(click.Option):
    """An option that a long help may leave to `--help-all`."""

    def __init__(self, *names: Any, rare: bool = False, **more: Any):
        super().__init__(*names, **more)
        self.rare = rare


class _ModelOption(_Option):
    """`--model`, which is optional if `--base-url` is given: the endpoint says which model it serves."""

    def consume_value(self, ctx: click.Context, opts: Any) -> tuple[Any, ParameterSource]:
        value, origin = super().consume_value(ctx, opts)
        if self.required and self.value_is_missing(value):
            for option in ctx.command.params:
                if option.name == "base_url" and is_endpoint(option.consume_value(ctx, opts)[0]):
                    return "", ParameterSource.COMMANDLINE
        return value, origin


class _Missing(click.MissingParameter):
    """Options that are missing, in words of ours."""

    def format_message(self) -> str:
        return self.message


class _VerbCommand(click.Command):
    """The command of a verb: its options are the fields of the verb's config.

    Flags may be given a value too, after an equals sign: `--force=false`. MLproject and other programs that write
    command lines have no way to leave an option out.

    Its help has at most `MAX_SHOWN` options. If it has more, only `--help-all` shows the rare ones, and the
    explanations of long lists of choices.
    """

    def __init__(self, words: str, verb: Verb):
        self.words = words
        self.verb = verb
        super().__init__(
            words.rpartition(" ")[2],
            params=[*_parameters(verb.config), config_file.option(), *printing.output_options()],
            help=verb.config.__doc__,
            epilog=f"\b\nExample:\n  {example_command(words)}",
        )

    def invoke(self, ctx: click.Context) -> None:
        """Does the verb's work. The result file in its folder is kept to be printed as JSON, also for a refusal, which
        is then raised."""
        verb = self.verb
        config = _to_config(self.verb.config, self.words, ctx)
        place = str(getattr(config, "out", None) or "")
        with printing.result_alone():
            try:
                _work_of(self.words)(config)
            except (GateRefusal, NotEnoughEvidence):
                _keep_result(verb, place)
                raise
            except Rejection:
                with suppress(PosgapError):  # nothing was written
                    _keep_result(verb, f"{place}.rejected")
                raise
            if place and not getattr(config, "estimate", False):
                _keep_result(verb, place)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), _HELP_ALL]

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes nothing: `format_options` lists arguments, as click before 8.5 does not."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        in_full = ctx.meta.get(_IN_FULL)
        arguments: list[tuple[click.Parameter, tuple[str, str]]] = []
        options: list[tuple[click.Parameter, tuple[str, str]]] = []
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                (arguments if isinstance(param, click.Argument) else options).append((param, record))
        shown = options
        if not in_full:
            if len(options) > MAX_SHOWN:
                shown = [each for each in options if not getattr(each[0], "rare", False)]
            shown = [(param, _shorten(param, record)) for param, record in shown]
        for heading, described in (("Arguments", arguments), ("Options", shown)):
            if described:
                with formatter.section(heading):
                    formatter.write_dl([record for _, record in described])
        if len(shown) < len(options):
            formatter.write_paragraph()
            formatter.write_text(f"{len(options) - len(shown)} more options: {ctx.command_path} --help-all")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if self._takes_model and args and not args[0].startswith("-"):
            args = [_MODEL, *args]  # `posgap sweep MODEL`
        words = [each for word in args for each in self._without_value(ctx, word)]
        try:
            return super().parse_args(ctx, list(words))
        except click.MissingParameter as error:
            raise self._all_missing(ctx, words) or error from None

    def _without_value(self, ctx: click.Context, word: str) -> list[str]:
        """A word as click takes it: a flag with a value is the flag, or the one that turns it off, or nothing."""
        name, equals, value = word.partition("=")
        for flag in self.params if equals else ():
            if name in flag.opts and isinstance(flag, click.Option) and flag.is_flag:
                is_set = click.BOOL.convert(value, flag, ctx)
                return flag.opts[:1] if is_set else flag.secondary_opts[:1]
        return [word]

    def _all_missing(self, ctx: click.Context, args: list[str]) -> click.MissingParameter | None:
        """Returns the error that names all missing options, while click names only the first; None for a missing
        argument."""
        missing = []
        with ctx.scope(cleanup=False):
            opts, *_ = self.make_parser(ctx).parse_args(args)
            for param in self.params:
                is_wanted = isinstance(param, click.Option) and param.required
                if is_wanted and param.value_is_missing(param.consume_value(ctx, opts)[0]):
                    missing.append(f"'{param.opts[0]}'")
        plural = "s" if len(missing) > 1 else ""
        return _Missing(f"Missing option{plural} {', '.join(missing)}.", ctx) if missing else None

    @property
    def _takes_model(self) -> bool:
        """Whether the first word may be the model without its option."""
        has_option = any(isinstance(param, _ModelOption) for param in self.params)
        return has_option and not any(isinstance(param, click.Argument) for param in self.params)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*(["[MODEL]"] if self._takes_model else []), *super().collect_usage_pieces(ctx)]


def _shorten(option: click.Parameter, record: tuple[str, str]) -> tuple[str, str]:
    """Returns an option's line in a help; if it has many choices, with their names alone."""
    names = [name for name in getattr(option.type, "choices", ()) if name]
    start = record[1].find(f"; {names[0]}: ") if len(names) > MAX_DESCRIBED else -1
    if start < 0:
        return record
    default = record[1].rfind("  [")
    behind = record[1][default:] if default > start else ""
    return record[0], f"{record[1][:start]}; --help-all says what each is{behind}"


def _help_all(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[_IN_FULL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_MODEL = "--model"
_SHORT = {"model": ("-m",), "out": ("-o",)}
MAX_SHOWN = 30  # options of a verb in its help
MAX_DESCRIBED = 4  # choices of an option in it
MAX_SENTENCE = 200  # characters of a verb's first sentence
_IN_FULL = "posgap.help_all"


def _help_all_option(what: str) -> click.Option:
    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        allow_from_autoenv=False,
        callback=_help_all,
        help=f"Show all {what} and exit.",
    )


_HELP_ALL = _help_all_option("options")


def _parameters(config_type: type[Config]) -> list[click.Parameter]:
    """click's arguments and options for the fields of a config."""
    parameters = list[click.Parameter]()
    for field, info in config_type.options().items():
        if is_argument(info):
            several: dict[str, Any] = {"nargs": -1} if get_origin(info.annotation) is list else {}
            parameters.append(
                _Argument(
                    [field], description=info.description, required=info.is_required(), **several, **_click_type(info)
                )
            )
            continue
        parameters.append(_option(config_type, field, info))
    return parameters


def _option(config_type: type[Config], field: str, info: FieldInfo) -> _Option:
    word = field.replace("_", "-")
    default = info.default
    description = info.description
    more = _click_type(info)
    if info.is_required():
        more["required"] = config_type.must_be_said(field)
        if not more["required"]:
            description = f"{description}; empty: one in `runs`"
    elif default not in (None, "", [], {}):
        shown = json.dumps(default) if isinstance(default, dict) else default
        more["default"] = ",".join(map(str, shown)) if isinstance(shown, list) else shown
    kind = _ModelOption if field == "model" else _Option
    return kind(
        [f"--{word}/--no-{word}" if default is True else f"--{word}", *_SHORT.get(word, ())],
        help=description,
        rare=RARE in info.metadata,
        show_default=config_type.shown_defaults().get(field, default is not False),
        **more,
    )


def _to_config(config_type: type[Config], words: str, ctx: click.Context) -> Config:
    """Returns the config from the command line, environment variables and the file of `--config`."""
    values = {}
    for name, value in ctx.params.items():
        if value not in (None, ()) and ctx.get_parameter_source(name) is not ParameterSource.DEFAULT:
            values[name] = value
    has_no_place = bool(config_type.named_by) and not values.get("out")
    if has_no_place:
        values["out"] = "runs"  # until the input is known
    try:
        config = config_type(**values)
    except ValidationError as error:
        raise BadOption(_misuse(config_type, error)) from None
    if has_no_place:
        place = config.in_runs(words.replace(" ", "-"))
        config = config.model_copy(update={"out": place})
        if not getattr(config, "estimate", False):  # which writes nothing
            log.info("results go to %s", place)
    return config


def example_command(words: str) -> str:
    """The whole of a verb's example."""
    return f"posgap {words} {VERBS[words].example}".rstrip()


def _keep_result(verb: Verb, place: str) -> None:
    if not printing.is_json() or not verb.results or not is_main_process():
        return
    there = source(as_location(place))
    for file in filter(None, map(there.local_file, verb.results)):
        printing.set_result(json.loads(file.read_text(encoding="utf-8")))
        return


def _work_of(words: str) -> Callable[[Any], Any]:
    """Imports the function that does a verb's work, so late that `--help` stays quick; for a stage it returns its
    frame, which imports the stage once there is work to do."""
    kind = VERBS[words].kind
    if kind is Kind.STAGE:
        return stage_at(work_of(words))
    module, function = work_of(words).split(":")
    if kind is Kind.NEEDS_MODEL:
        return with_local_paths(lambda config: getattr(importlib.import_module(module), function)(config))
    return getattr(importlib.import_module(module), function)


def _misuse(config_type: type[Config], error: ValidationError) -> str:
    """Reports the wrong option, why, and the given value."""
    first = error.errors()[0]
    name, *inside = place_of_fault(first) or [""]
    is_secret = name in config_type.model_fields and SECRET in config_type.model_fields[name].metadata
    complaint = complaint_of(first)
    if not name:  # of several options together: their values might be anything
        return complaint
    complaint += "" if is_secret else f", got {shorten(repr(first['input']))}"
    words = name if is_argument(config_type.model_fields[name]) else f"--{name}"
    return f"{'.'.join([words.replace('_', '-'), *inside])}: {complaint}"


class _Group(click.Group):
    """A group of verbs that begin with the same words, `above`. A command is made, and its options imported, once it is
    asked for.

    The root lists the `FIRST` ones, and with `--help-all` all of them under headings.
    """

    def __init__(self, name: str, above: tuple[str, ...] = (), **more: Any):
        super().__init__(name, **more)
        self.above = above

    def list_commands(self, ctx: click.Context) -> list[str]:
        depth = len(self.above)
        names = dict[str, None]()
        for words in VERBS:
            parts = tuple(words.split())
            if parts[:depth] == self.above:
                names[parts[depth]] = None
        return list(names)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.commands and cmd_name in self.list_commands(ctx):
            words = " ".join([*self.above, cmd_name])
            if words in VERBS:
                self.add_command(_VerbCommand(words, VERBS[words]))
            else:
                self.add_command(_Group(cmd_name, (*self.above, cmd_name), help=GROUPS[words]))
        return self.commands.get(cmd_name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The names alone: click would make each command for its help, and so import the options of all."""
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        items = [CompletionItem(name, help=None if self.above else FIRST.get(name)) for name in names]
        return [*items, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if ctx.parent:
            return super().format_commands(ctx, formatter)
        names = self.list_commands(ctx)
        if not ctx.meta.get(_IN_FULL):
            with formatter.section("Commands"):
                formatter.write_dl(list(FIRST.items()))
            formatter.write_paragraph()
            formatter.write_text(f"{len(names) - len(FIRST)} more commands: {ctx.command_path} --help-all")
            return None
        width = max(map(len, names))
        for heading, verbs in SECTIONS.items():
            with formatter.section(heading):
                rows = list[tuple[str, str]]()
                for name in dict.fromkeys(words.partition(" ")[0] for words in verbs):
                    command = self.get_command(ctx, name)
                    assert command is not None
                    rows.append((name.ljust(width), command.get_short_help_str(limit=MAX_SENTENCE)))
                formatter.write_dl(rows)


def build() -> click.Group:
    """Builds the command line; it makes commands when they are first needed."""
    root = _Group("posgap", help=ROOT_HELP, params=[_help_all_option("commands")])
    # A variable POSGAP_VERSION does not request the version.
    click.version_option(__version__, allow_from_autoenv=False)(root)
    return root


ROOT_HELP = """Measure a language model's position gap, close it, and keep it closed.

\b
  posgap sweep MODEL   a first look at a model or an endpoint, in two minutes

A command that writes a folder keeps its settings there (manifest.json), and does nothing when it is run again
unchanged. It logs to MLflow where MLFLOW_TRACKING_URI names a server, or a file like sqlite:///mlflow.db."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point of `posgap`; ends with `SystemExit`, except if several processes were launched."""
    _reopen_closed_streams()
    _log_to_stderr()
    raise_on_termination()
    os.environ["MPLBACKEND"] = "Agg"  # a command opens no window, and needs no backend that is not installed
    code = 0
    with printing.command(sys.argv[1:] if arguments is None else arguments):
        try:
            build().main(arguments, prog_name="posgap", standalone_mode=False, auto_envvar_prefix=config_file.PREFIX)
            if is_main_process():
                printing.write_json()
        except SystemExit:  # click's, if the reader of the output has gone
            code = 128 + signal.SIGPIPE
        except (Exception, KeyboardInterrupt) as error:
            code = _report_error(error)
    exit_process(code)


def _log_to_stderr() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(printing.NoteFormatter())
    handler.addFilter(printing.is_wanted)
    logger = logging.getLogger("posgap")
    # Rank 0 logs at INFO, other ranks only warnings.
    logger.handlers = [handler]
    logger.setLevel(logging.INFO if is_main_process() else logging.WARNING)


def _reopen_closed_streams() -> None:
    """Has each of the three standard streams that a shell closed (`2>&-`) read or write nothing."""
    # In the order of their descriptors: each opening takes the lowest that is free, which no output's file gets then.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _report_error(error: BaseException) -> int:
    """Says what ended a command, here and to Kubernetes; returns its exit code."""
    if isinstance(error, click.Abort):  # click raises it from KeyboardInterrupt, which TerminationSignal is too
        error = error.__cause__ or error
    leave_message(PosgapError(error.format_message()) if isinstance(error, click.ClickException) else error)
    match error:
        case click.exceptions.NoArgsIsHelpError():
            click.echo(error.format_message())
            return 2
        case click.ClickException():
            where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "posgap"
            return _fail(f"{error.format_message()} (see `{where} --help`)", 2, BadOption.code)
        case OfAll():
            if is_main_process():
                _fail(_with_notes(str(error), error), error.exit_code, error.code, error.at)
            leave_together()
            return error.exit_code
        case GateRefusal() | NotEnoughEvidence():
            return _fail(str(error), error.exit_code, error.code, kind="")  # a decision, which is no error
        case PosgapError():
            return _fail(_with_notes(str(error), error), error.exit_code, error.code, error.at)
        case OSError():
            kind = NotFound.code if isinstance(error, FileNotFoundError) else SYSTEM_ERROR
            place = str(error.filename or _place_of(error))
            return _fail(f"{place}: {error.strerror or error}", 2, kind, place)
        case ModuleNotFoundError() if how_to_install(error.name or ""):
            return _fail(how_to_install(error.name or ""), 2, MissingPackage.code)
        case MemoryError():
            line = "out of memory: read or compute less at once, or take a machine with more"
            return _fail(line, 1, OUT_OF_MEMORY)
        case KeyboardInterrupt() | click.Abort():
            return _fail(_with_notes(str(error) or "stopped", error), getattr(error, "exit_code", 130), STOPPED)
    return _fail(describe_internal_error(error), 1, INTERNAL_ERROR, kind="")


def _place_of(error: OSError) -> str:
    """Returns the place of a system's error that names no file: a deleted current folder, else the path that our
    innermost function was working on."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the current folder (it was deleted or replaced: cd to one that is there)"
    place = "input/output"
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if str(frame.f_globals.get("__name__")).startswith("posgap."):
            for value in frame.f_locals.values():
                place = f"{value}, or a file beside it" if isinstance(value, Path) else place
    return place


def _with_notes(message: str, error: BaseException) -> str:
    return "; ".join([message, *getattr(error, "__notes__", ())])


def _fail(message: str, exit_code: int, code: str, at: str = "", kind: str = "error:") -> int:
    """Says what went wrong, in one line without secrets; returns the exit code."""
    line = printing.printable(" ".join(map(str.strip, redact(with_uris(message)).split("\n"))))
    with suppress(OSError):  # the reader has gone
        click.echo(" ".join(filter(None, ["posgap:", printing.colour_word(kind, sys.stderr), line])), err=True)
        if is_main_process():
            place = {"at": printing.printable(redact(with_uris(at)))} if at else {}
            printing.write_json({"error": line, "code": code, **place, "exit_code": exit_code})
    return exit_code
