"""The output of a command: its result, as text or as one JSON document, what `--quiet` leaves, and colours.

The result goes to standard output. Progress, notes and errors go to standard error.
"""

import copy
import ctypes
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any, TextIO

import click

from posgap.foundation.launch import is_main_process
from posgap.foundation.locations import with_uris
from posgap.foundation.redaction import redact

RESULT = logging.INFO + 5  # the level of a line with a stage's result, which `--quiet` keeps
logging.addLevelName(RESULT, "RESULT")
_COLOURS = {"error:": "red", "admitted": "green", "pass": "green", "✓": "green"}
_COLOURS |= {"refused": "red", "fail": "red", "✗": "red"}

# Characters that move a terminal's cursor, turn letters round, or end a line.
_CONTROLS = r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
_UNPRINTABLE = re.compile(_CONTROLS)
_UNCOLOURED = re.compile(rf"(?!\x1b\[(?:0|31|32)m){_CONTROLS}")  # except what `colour_word` adds
# The beginning of a line that a CI takes for a command: `::set-output`, `##[group]`, `##vso[task.setvariable]`.
_COMMAND = re.compile(r"^\s*:(?=:)|#(?=#(?:vso)?\[)", re.MULTILINE)


class Lines(str):
    """A text of several lines for the log. Others' text is already escaped in it."""

    __slots__ = ()


def printable(text: object) -> str:
    """Returns others' text in one line, with escapes such as `\\x1b` for unprintable characters."""
    return _COMMAND.sub(_escape_last, _UNPRINTABLE.sub(_escape, str(text)))


def join_lines(lines: Iterable[str]) -> str:
    """Returns lines, which may hold what others wrote and colours of ours, as a text to print."""
    return _COMMAND.sub(_escape_last, "\n".join(_UNCOLOURED.sub(_escape, line) for line in lines))


def _escape(sign: re.Match[str]) -> str:
    return sign[0].encode("unicode_escape").decode("ascii")


def _escape_last(signs: re.Match[str]) -> str:
    return f"{signs[0][:-1]}\\x{ord(signs[0][-1]):x}"


def format_count(count: int, noun: str) -> str:
    """Returns like "1 prompt" or "2,000 prompts"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass
class _Command:
    """The print settings of the present command, and its result."""

    as_json: bool = False
    quiet: bool = False
    bars: bool = True
    result: Any = None


_OUTSIDE = _command = _Command()  # of any command: a verb's function was called from Python


@contextmanager
def command(words: Sequence[str]) -> Iterator[None]:
    """Surrounds a command of these words.

    The words themselves say whether the result is JSON, as parsing fails on a word that no verb knows.
    """
    global _command
    _command = _Command(as_json="--json" in words)
    try:
        yield
    finally:
        _command = _OUTSIDE


def output_options() -> list[click.Parameter]:
    """`--json` and `--quiet`, which every verb has."""

    def note(ctx: click.Context, option: click.Parameter, value: bool) -> None:
        if value and _command is not _OUTSIDE:
            setattr(_command, "as_json" if option.name == "json" else "quiet", True)

    # Noted before the other options are read, so that their errors are printed in the requested form.
    shared: dict[str, Any] = {"is_flag": True, "is_eager": True, "expose_value": False, "callback": note}
    return [
        click.Option(["--json"], help="print the result as JSON to standard output, and nothing else there", **shared),
        click.Option(["-q", "--quiet"], help="print only the result and errors: no progress and no notes", **shared),
    ]


@contextmanager
def from_python(quiet: bool) -> Iterator[None]:
    """Surrounds a call from Python, which shows its notes and its progress on standard error, as a command does.

    It shows only warnings if it is `quiet`, if there is no standard error, and in every process of a launch but the
    first. If a program's own logging shows notes, or it gave the logger "posgap" a handler or a level, it gets the
    lines there, without a bar.
    """
    global _command
    logger = logging.getLogger("posgap")
    outside = _command
    is_configured = bool(logger.handlers) or logger.level != logging.NOTSET
    is_configured |= logger.hasHandlers() and logger.isEnabledFor(logging.INFO)
    silent = quiet or sys.stderr is None or not is_main_process()
    _command = replace(outside, quiet=outside.quiet or silent, bars=outside.bars and not is_configured)
    try:
        if silent or is_configured:
            yield
        else:
            with _show_notes(logger):
                yield
    finally:
        _command = outside


@contextmanager
def _show_notes(logger: logging.Logger) -> Iterator[None]:
    """Within the block the logger's lines go to standard error, and nowhere else."""
    handler = logging.StreamHandler(sys.stderr)
    propagates = logger.propagate
    handler.setFormatter(NoteFormatter())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(logging.NOTSET)
        logger.propagate = propagates


class NoteFormatter(logging.Formatter):
    """Formats a log line for people: without secrets, and with the addresses of fetched files."""

    def __init__(self) -> None:
        super().__init__("posgap | %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        shown = copy.copy(record)
        if isinstance(record.args, tuple):
            shown.args = tuple(each if isinstance(each, Number | Lines) else _Shown(each) for each in record.args)
        return join_lines(redact(with_uris(super().format(shown))).split("\n"))


class _Shown:
    """A value in a line of the log, which stays one line."""

    def __init__(self, value: object):
        self.value = value

    def __str__(self) -> str:
        return printable(self.value)

    def __repr__(self) -> str:
        return printable(repr(self.value))


def is_quiet() -> bool:
    """Whether no progress is to be shown."""
    return _command.quiet


def shows_bars() -> bool:
    """Returns whether to show progress as a bar, if it would be visible: on a terminal, or in a notebook."""
    is_notebook = type(sys.stderr).__module__.startswith("ipykernel")
    return _command.bars and not is_quiet() and (is_notebook or sys.stderr.isatty())


def is_wanted(record: logging.LogRecord) -> bool:
    """Whether a line of the log is shown: with `--quiet` only results and errors are."""
    return not _command.quiet or record.levelno == RESULT or record.levelno >= logging.ERROR


def show(text: str, result: Any) -> None:
    """Prints a verb's result: a text for people or, at the verb's end, `result` as JSON if JSON is requested.

    The text may contain others' words; if these may have line ends, `join_lines` makes the text.
    """
    set_result(result)
    if not _command.as_json:
        click.echo(join_lines(text.split("\n")))


def set_result(result: Any) -> None:
    """Has `result` be what `--json` prints; the last one counts."""
    # Kept for the command, since verbs return what Python callers want: an object, or the output's place.
    if _command.as_json:
        _command.result = result


def is_json() -> bool:
    """Whether the result is to be JSON."""
    return _command.as_json


@contextmanager
def result_alone() -> Iterator[None]:
    """Within the block, if standard output must hold the JSON result, everything else that is printed goes to standard
    error. This includes processes started here and libraries not written in Python."""
    if not _command.as_json:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(None)  # what C libraries have not written yet
        os.dup2(kept, 1)
        os.close(kept)


def write_json(otherwise: Any = None) -> None:
    """Prints the result as JSON if that is requested; `otherwise` if there is none."""
    result = otherwise if _command.result is None else _command.result
    if _command.as_json and result is not None:
        click.echo(json.dumps(result))


def colour_word(text: str, stream: TextIO) -> str:
    """Returns a word of a verdict, or of an error, in its colour, if the stream is a terminal and NO_COLOR is not
    set."""
    colour = _COLOURS.get(text.strip())
    if not colour or os.environ.get("NO_COLOR") or not stream.isatty():
        return text
    return click.style(text, fg=colour)
