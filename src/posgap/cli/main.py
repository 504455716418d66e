"""The command line: the verbs of posgap.cli.verbs, their options read off their configs.

Exit codes: 0 done, 1 `pipeline lint`, `verify` or `doctor` found something, or a fault of posgap itself (its line names
the file that has the traceback), 2 bad input (one line says what, where and what to do), 3 the gate refused, 4 a
submitted run failed, 5 it was cancelled, 6 it was still under way when the time was up, 7 the gate had not enough
evidence, 130 stopped by Ctrl-C, 143 stopped by SIGTERM.
"""

import importlib
import json
import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args, get_origin

import click
from click.core import ParameterSource
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from posgap import __version__
from posgap.cli import config_file, variables
from posgap.cli.verbs import FIRST, GROUPS, SECTIONS, VERBS, Kind, Verb
from posgap.foundation import printing
from posgap.foundation.config import Config
from posgap.foundation.errors import (
    GateRefusal,
    NotEnoughEvidence,
    OfAll,
    PosgapError,
    Rejection,
    complaint_of,
    place_of_fault,
    shorten,
)
from posgap.foundation.extras import how_to_install
from posgap.foundation.fields import (
    ON_HUB,
    POSITIONAL,
    RARE,
    choices_of,
    is_endpoint,
    plain_type,
    role,
)
from posgap.foundation.internal_errors import describe_internal_error
from posgap.foundation.interruption import raise_on_termination
from posgap.foundation.launch import exit_process, is_main_process, leave_together
from posgap.foundation.locations import as_location, is_hub_name, with_uris
from posgap.foundation.redaction import redact
from posgap.foundation.registry import SECRET
from posgap.stages.frame import stage_at
from posgap.storage.inputs import source, with_local_paths

log = logging.getLogger(__name__)


def _kind(info: FieldInfo) -> dict[str, Any]:
    """How click takes a field: the type it checks; what pydantic parses itself stays text."""
    annotation, registered = info.annotation, choices_of(info)
    if registered:
        # MLproject has no way to leave a parameter out: an empty one leaves the choice open.
        names = registered.names() + ([""] if info.default == "" else [])
        shown = filter(None, [*registered.names(), registered.instead])
        return {"type": _Named(names, registered.takes), "metavar": f"[{'|'.join(shown)}]"}
    if annotation is bool:
        return {"is_flag": True}
    if choices := [a for a in get_args(annotation) if isinstance(a, str)]:
        return {"type": click.Choice(choices), "metavar": f"[{'|'.join(filter(None, choices))}]"}
    if numbers := [a for a in get_args(annotation) if a in (int, float)]:  # which may be left empty
        return {"type": config_file.Text(), "metavar": "INTEGER" if int in numbers else "FLOAT"}
    if annotation == dict[str, str]:
        return {"multiple": True, "metavar": "NAME=VALUE"}
    kind = plain_type(info)
    return {"type": kind if kind in (int, float) else config_file.Text(is_path=role(info) is not None)}


class _Named(click.Choice):
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


class _Missing(click.MissingParameter):
    """Options that are missing, in words of ours."""

    def format_message(self) -> str:
        return self.message


class _Verb(click.Command):
    """A command whose flags may be given a value too, after an equals sign: `--force=false`. MLproject and other
    programs that write command lines have no way to leave an option out.

    Its help has at most `MAX_SHOWN` options: where it has more, the rare ones are left to `--help-all`, as is what each
    of many choices is.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), _HELP_ALL]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        parts = [(p, r) for p in self.get_params(ctx) if (r := p.get_help_record(ctx)) is not None]
        options = [(p, r) for p, r in parts if isinstance(p, click.Option)]
        in_full = ctx.meta.get(_IN_FULL) or len(options) <= MAX_SHOWN
        few = [(p, r) for p, r in options if in_full or not getattr(p, "rare", False)]
        shown = [r if ctx.meta.get(_IN_FULL) else _named_only(p, r) for p, r in few]
        if arguments := [r for p, r in parts if isinstance(p, click.Argument)]:
            with formatter.section("Arguments"):
                formatter.write_dl(arguments)
        with formatter.section("Options"):
            formatter.write_dl(shown)
        if left := len(options) - len(shown):
            formatter.write_paragraph()
            formatter.write_text(f"{left} more options: {ctx.command_path} --help-all")

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        flags = {
            name: option
            for option in self.params
            if isinstance(option, click.Option) and option.is_flag
            for name in option.opts
        }

        def words(arg: str) -> list[str]:
            name, equals, value = arg.partition("=")
            if not equals or name not in flags:
                return [arg]
            is_set = click.BOOL.convert(value, flags[name], ctx)
            return flags[name].opts[:1] if is_set else flags[name].secondary_opts[:1]

        given = [word for arg in self._with_model_named(args) for word in words(arg)]
        try:
            return super().parse_args(ctx, list(given))
        except click.MissingParameter as error:
            if error.param and _MODEL_OPTION in error.param.opts and (address := self._base_url(ctx, given)):
                ctx.params.clear()  # the endpoint is asked which model it serves
                return self.parse_args(ctx, [_MODEL_OPTION, address, *args, f"{_ADDRESS_OPTION}="])
            raise self._all_missing(ctx, given) or error from None

    def _all_missing(self, ctx: click.Context, args: list[str]) -> click.MissingParameter | None:
        """The error that names all missing options, where click names the first alone; None of a missing argument."""
        with ctx.scope(cleanup=False):
            opts, *_ = self.make_parser(ctx).parse_args(args)
            missing = [
                f"'{param.opts[0]}'"
                for param in self.params
                if isinstance(param, click.Option)
                and param.required
                and param.value_is_missing(param.consume_value(ctx, opts)[0])
            ]
        said = f"Missing option{'s' * (len(missing) > 1)} {', '.join(missing)}."
        return _Missing(said, ctx) if missing else None

    def _base_url(self, ctx: click.Context, args: list[str]) -> str:
        """The endpoint's address that is given apart from the model; empty where there is none."""
        with ctx.scope(cleanup=False):
            opts, *_ = self.make_parser(ctx).parse_args(list(args))
            options = (param for param in self.params if _ADDRESS_OPTION in param.opts)
            return next((value for each in options if is_endpoint(value := each.consume_value(ctx, opts)[0])), "")

    def _with_model_named(self, args: list[str]) -> list[str]:
        """The words, of which the first may be the model without its option: `posgap sweep MODEL`."""
        is_model = self._takes_model and args and not args[0].startswith("-")
        return [_MODEL_OPTION, *args] if is_model else args

    @property
    def _takes_model(self) -> bool:
        is_option = any(isinstance(each, click.Option) and _MODEL_OPTION in each.opts for each in self.params)
        return is_option and not any(isinstance(each, click.Argument) for each in self.params)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return [*(["[MODEL]"] if self._takes_model else []), *super().collect_usage_pieces(ctx)]


def _named_only(option: click.Option, record: tuple[str, str]) -> tuple[str, str]:
    """An option's line in a help, with the names of its choices alone where they are many."""
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


_MODEL_OPTION, _ADDRESS_OPTION = "--model", "--base-url"
_SHORT = {"model": ("-m",), "out": ("-o",)}
MAX_SHOWN = 30  # options of a verb in its help
MAX_DESCRIBED = 4  # choices of an option in it
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


def command(words: str, verb: Verb) -> click.Command:
    """The command of a verb: its options are the config's fields, and its work is `module:function`.

    The module is imported when the command runs, so that `--help` stays quick.
    """
    config_type, options = verb.config, list[click.Parameter]()
    for field, info in config_type.model_fields.items():
        if is_argument(info):
            several: dict[str, Any] = {"nargs": -1} if get_origin(info.annotation) is list else {}
            options.append(
                _Argument([field], description=info.description, required=info.is_required(), **several, **_kind(info))
            )
            continue
        shown = json.dumps(info.default) if isinstance(info.default, dict) else info.default
        shown = ",".join(map(str, shown)) if isinstance(shown, list) else shown
        in_runs = info.is_required() and not config_type.must_be_said(field)
        default = {} if info.default in (None, "", [], {}) else {"default": shown}
        word = field.replace("_", "-")
        options.append(
            _Option(
                [f"--{word}/--no-{word}" if info.default is True else f"--{word}", *_SHORT.get(word, ())],
                help=f"{info.description}; empty: one in `runs`" if in_runs else info.description,
                rare=RARE in info.metadata,
                show_default=config_type.shown_defaults().get(field, info.default is not False),
                **_kind(info),
                **({"required": config_type.must_be_said(field)} if info.is_required() else default),
            )
        )
        if ON_HUB in info.metadata:
            options.append(_Option(["--revision"], rare=True, help=f"commit, tag or branch of a {word} on the hub"))

    def run(**given: Any) -> None:
        revision = given.pop("revision", None)  # which is part of a model's name
        source_of = click.get_current_context().get_parameter_source
        values = {k: v for k, v in given.items() if v not in (None, ()) and source_of(k) is not ParameterSource.DEFAULT}
        if has_no_place := bool(config_type.named_by) and not values.get("out"):
            values["out"] = "runs"  # until it is known what is read
        try:
            parsed = config_type(**values)
            if revision:
                parsed = config_type(**values | {"model": _at_revision(parsed, revision)})
        except ValidationError as error:
            raise PosgapError(_misuse(config_type, error)) from None
        if has_no_place:
            place = parsed.in_runs(words.replace(" ", "-"))
            parsed = parsed.model_copy(update={"out": place})
            if not getattr(parsed, "estimate", False):  # which writes nothing
                log.info("results go to %s", place)
        _work(verb, parsed)

    return _Verb(
        words.rpartition(" ")[2],
        params=[*options, config_file.option(), *printing.output_options()],
        callback=run,
        help=config_type.__doc__,
        epilog=f"\b\nExample:\n  {example(words)}",
    )


def example(words: str) -> str:
    """The whole of a verb's example."""
    return f"posgap {words} {VERBS[words].example}".rstrip()


def _work(verb: Verb, parsed: Config) -> None:
    """Does a verb's work. The file in its folder that is its result is kept to be printed as JSON, also that of a
    refusal, which is then raised."""
    place = str(getattr(parsed, "out", None) or "")
    with printing.result_alone():
        try:
            _function(verb)(parsed)
        except (GateRefusal, NotEnoughEvidence):
            _keep_result(verb, place)
            raise
        except Rejection:
            with suppress(PosgapError):  # nothing was written
                _keep_result(verb, f"{place}.rejected")
            raise
        if place and not getattr(parsed, "estimate", False):
            _keep_result(verb, place)


def _keep_result(verb: Verb, place: str) -> None:
    if not printing.is_json() or not verb.results or not is_main_process():
        return
    there = source(as_location(place))
    for file in filter(None, map(there.read, verb.results)):
        printing.set_result(json.loads(file.read_text(encoding="utf-8")))
        return


def _function(verb: Verb) -> Callable[[Any], Any]:
    """What a verb calls. Of a stage alone the frame is enough, until it finds that there is work to do."""
    if verb.kind is Kind.STAGE:
        return stage_at(verb.work)
    module, function = verb.work.split(":")
    if verb.kind is Kind.NEEDS_MODEL:
        return with_local_paths(lambda config: getattr(importlib.import_module(module), function)(config))
    return getattr(importlib.import_module(module), function)


def _at_revision(parsed: Config, revision: str) -> str:
    """The name of a config's model at a revision."""
    model = str(parsed.model or "")  # type: ignore[attr-defined]  # where there is this option there is a model
    if parsed.is_served("model") or os.path.exists(model) or "@" in model or not is_hub_name(model):
        raise PosgapError(f"--revision: {shorten(model)} takes none; give the name of a model on the hub without one")
    return f"{model}@{revision}"


def _misuse(config_type: type[Config], error: ValidationError) -> str:
    """The option that is wrong, why, and what was given."""
    first = error.errors()[0]
    name, *inside = place_of_fault(first) or [""]
    is_secret = name in config_type.model_fields and SECRET in config_type.model_fields[name].metadata
    complaint = complaint_of(first)
    if not name:  # of several options together, whose values might be anything
        return complaint
    complaint += "" if is_secret else f", got {shorten(repr(first['input']))}"
    words = name if is_argument(config_type.model_fields[name]) else f"--{name}"
    return f"{'.'.join([words.replace('_', '-'), *inside])}: {complaint}"


class _Group(click.Group):
    """A group that lists its commands in the order in which they were added. The root lists the `FIRST` ones, and with
    `--help-all` all of them under headings."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if ctx.parent:
            return super().format_commands(ctx, formatter)
        if not ctx.meta.get(_IN_FULL):
            with formatter.section("Commands"):
                formatter.write_dl(list(FIRST.items()))
            formatter.write_paragraph()
            formatter.write_text(f"{len(self.commands) - len(FIRST)} more commands: {ctx.command_path} --help-all")
            return None
        width = max(map(len, self.commands))
        for heading, verbs in SECTIONS.items():
            names = dict.fromkeys(words.partition(" ")[0] for words in verbs)
            with formatter.section(heading):
                room = formatter.width - width - 6
                formatter.write_dl([(n.ljust(width), self.commands[n].get_short_help_str(room)) for n in names])


def build() -> click.Group:
    """The whole command line."""
    root = _Group("posgap", help=ROOT_HELP, params=[_help_all_option("commands")])
    # A variable POSGAP_VERSION is nobody's wish to be told the version.
    click.version_option(__version__, allow_from_autoenv=False)(root)
    for words, verb in VERBS.items():
        place: Any = root
        above = words.split()[:-1]
        for depth, name in enumerate(above, start=1):
            if name not in place.commands:
                place.add_command(_Group(name, help=GROUPS[" ".join(above[:depth])]))
            place = place.commands[name]
        place.add_command(command(words, verb))
    return root


ROOT_HELP = """Measure a language model's position gap, close it, and keep it closed.

\b
  posgap sweep MODEL   a first look at a model or an endpoint, in two minutes

A command that writes a folder keeps its settings there (manifest.json), and does nothing when it is run again
unchanged. It logs to MLflow where MLFLOW_TRACKING_URI names a server, or a file like sqlite:///mlflow.db."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point of `posgap`; ends with `SystemExit`, but where several processes were launched."""
    _open_what_a_shell_closed()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(printing.NoteFormatter())
    handler.addFilter(printing.is_wanted)
    logger = logging.getLogger("posgap")
    # Rank 0 logs at INFO, other ranks only warnings.
    logger.handlers = [handler]
    logger.setLevel(logging.INFO if is_main_process() else logging.WARNING)
    raise_on_termination()
    os.environ.setdefault("MPLBACKEND", "Agg")  # a command opens no window
    with printing.command(sys.argv[1:] if arguments is None else arguments):
        code = _run(arguments)
    exit_process(code)


def _open_what_a_shell_closed() -> None:
    """Has each of the three standard streams that is closed (`2>&-`) read or write nothing."""
    # In the order of their descriptors: each opening takes the lowest that is free, which no output's file gets then.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode))


def _run(arguments: list[str] | None) -> int:
    """Runs a command; returns its exit code when what came of it is printed."""
    try:
        root = build()
        for line in variables.complaints(root, os.environ) if is_main_process() else ():
            logging.getLogger("posgap").warning("%s", line)
        root.main(arguments, prog_name="posgap", standalone_mode=False, auto_envvar_prefix=config_file.PREFIX)
        if is_main_process():
            printing.write_json()
        return 0
    except click.exceptions.NoArgsIsHelpError as shown:
        click.echo(shown.format_message())
        return 2
    except click.ClickException as error:
        where = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "posgap"
        return _fail(f"{error.format_message()} (see `{where} --help`)", 2)
    except OfAll as error:
        if is_main_process():
            _fail(_with_notes(str(error), error), error.exit_code)
        leave_together()
        return error.exit_code
    except PosgapError as error:
        return _fail(_with_notes(str(error), error), error.exit_code)
    except OSError as error:
        return _fail(f"{error.filename or _place_of(error)}: {error.strerror or error}", 2)
    except ModuleNotFoundError as error:
        missing = how_to_install(error.name or "")
        return _fail(missing, 2) if missing else _fail(describe_internal_error(error), 1, "")
    except MemoryError:
        return _fail("out of memory: lower what is read or computed at once, or take a machine with more", 1)
    except (KeyboardInterrupt, click.Abort) as stop:
        cause = stop.__cause__ or stop  # click raises Abort from KeyboardInterrupt, which Stopped is too
        return _fail(_with_notes(str(cause) or "stopped", cause), getattr(cause, "exit_code", 130))
    except Exception as error:
        return _fail(describe_internal_error(error), 1, "")


def _place_of(error: OSError) -> str:
    """What an error of the system that names no file is about: a current folder that was deleted, else the path that
    the innermost function of ours was at work on."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return "the current folder (it was deleted or replaced: cd to one that is there)"
    place, at = "", error.__traceback__
    while at:
        if at.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "posgap":
            paths = [str(value) for value in at.tb_frame.f_locals.values() if isinstance(value, Path)]
            place = paths[-1] if paths else place
        at = at.tb_next
    return f"{place}, or a file beside it" if place else "input/output"


def _with_notes(message: str, error: BaseException) -> str:
    return "; ".join([message, *getattr(error, "__notes__", ())])


def _fail(message: str, code: int, kind: str = "error:") -> int:
    """Says what went wrong, in one line without secrets; returns the exit code."""
    line = " ".join(map(str.strip, redact(with_uris(message)).split("\n")))
    with suppress(OSError):  # nobody listens
        click.echo(" ".join(filter(None, ["posgap:", printing.colour_word(kind, sys.stderr), line])), err=True)
        if is_main_process():
            printing.write_json({"error": line, "exit_code": code})
    return code
