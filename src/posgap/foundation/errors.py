"""Errors that a user can do something about, and the exit codes of the command line."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self

from pydantic import ValidationError

# Codes of errors that end a command and are no `PosgapError`.
INTERNAL_ERROR = "internal-error"
OUT_OF_MEMORY = "out-of-memory"
STOPPED = "stopped"
SYSTEM_ERROR = "system-error"
MAX_SHOWN = 200  # characters of a user's value that a message shows


class PosgapError(Exception):
    """Bad input. The message is one line that says what is wrong, where, and what to do. Exit code 2.

    `at` is the place that is wrong, such as `examples.jsonl:3`, with which the message then begins. `code` tells
    programs what kind of error it is. Each kind is a class of its own, with a code that never changes; the class's
    docstring is its line in docs/conventions.md.
    """

    exit_code = 2
    code = "bad-input"
    may_pass = False  # whether the same command may succeed later, with nothing changed

    def __init__(self, message: str = "", *, at: str = ""):
        super().__init__(f"{at}: {message}" if at else message)
        self.at = at

    def within(self, context: str) -> Self:
        """Puts before the message what it happened in, and returns the error."""
        self.args = (f"{context}: {self}",)
        return self


class OfAll(PosgapError):
    """An error of all processes of a launch, whose line the first of them shows. Exit code 2."""

    def __init__(self, message: str, code: str = PosgapError.code):
        super().__init__(message)
        self.code = code


class NotFound(PosgapError):
    """A file, folder, model, version or object is not there, or these credentials may not see it."""

    code = "not-found"


class Unreadable(PosgapError):
    """Something is there and cannot be read: damaged, incomplete, a device, or without permission."""

    code = "unreadable"


class Malformed(PosgapError):
    """A file or text is not in the format that it should have, or a field in it is missing or wrong."""

    code = "malformed"


class TooLarge(PosgapError):
    """A file, a line, a row or a number of something exceeds the bound that protects memory and time."""

    code = "too-large"


class Contradiction(PosgapError):
    """A file contradicts itself, or another that it must agree with, such as a sweep its responses or its model."""

    code = "contradiction"


class NotAlike(PosgapError):
    """What is compared or merged was made in different ways, or of different things."""

    code = "not-alike"


class Ambiguous(PosgapError):
    """A file has two readings that differ; the line says both, and which option decides."""

    code = "ambiguous"


class BadOption(PosgapError):
    """An option is unknown, missing or wrong, or two options contradict each other."""

    code = "bad-option"


class BadOutput(PosgapError):
    """The output's place holds what posgap must not replace, is in use, or cannot be written."""

    code = "bad-output"


class BadModel(PosgapError):
    """A model or tokenizer cannot be used for this: damaged, incomplete, or of a kind that posgap does not load."""

    code = "bad-model"


class MissingPackage(PosgapError):
    """A package is needed that is not installed here."""

    code = "missing-package"


class NoRoom(PosgapError):
    """This machine has less memory or disk than is needed."""

    code = "no-room"


class NoServer(PosgapError):
    """A server (S3, MLflow, an endpoint, the hub, Kubernetes) did not answer in time, or answered with a fault."""

    code = "no-server"
    may_pass = True


class ProcessFailure(PosgapError):
    """Another process or machine that took part failed, as its own error says; a later try may succeed."""

    code = "process-failed"
    may_pass = True


class Refused(PosgapError):
    """A server refused the request, or these credentials may not do it."""

    code = "refused"


class Rejection(PosgapError):
    """The input was checked and refused; the report that says why is kept. Exit code 2."""

    code = "rejected"


class GateRefusal(PosgapError):
    """The gate refused the model. Exit code 3."""

    exit_code = 3
    code = "gate-refused"


class LeftPolicy(Rejection):
    """The registered champion breaks its policy on fresh data; the report that says so is kept. Exit code 3."""

    exit_code = 3
    code = "left-policy"


class NotEnoughEvidence(PosgapError):
    """The gate could not tell whether the model fulfils its rules. Exit code 7."""

    exit_code = 7
    code = "not-enough-evidence"


class Findings(PosgapError):
    """`doctor` or `verify` found faults. Exit code 1."""

    exit_code = 1
    code = "findings"


class RunFailure(PosgapError):
    """A run on the cluster failed. Exit code 4."""

    exit_code = 4
    code = "run-failed"


class RunCancellation(PosgapError):
    """A run on the cluster was cancelled or skipped. Exit code 5."""

    exit_code = 5
    code = "run-cancelled"


class RunTimeout(PosgapError):
    """A run on the cluster was not finished when the wait for it timed out. Exit code 6."""

    exit_code = 6
    code = "run-timeout"


class TerminationSignal(KeyboardInterrupt):
    """Stopped by SIGTERM; finished work is kept. Exit code 143 (128 + SIGTERM).

    It is raised wherever the process happens to be, so like Ctrl-C it is no `Exception`: asyncio and everybody else who
    catches those would take it for a fault of what was under way, and go on.
    """

    exit_code = 143


def first_fault(error: ValidationError) -> str:
    """The field and message of pydantic's first error, in one line."""
    first = error.errors()[0]
    where = ".".join(place_of_fault(first))
    complaint = complaint_of(first)
    if first["type"] == "missing":
        return f"field `{where}` is missing"
    return f"field `{where}`: {complaint}" if where else complaint


def place_of_fault(fault: Mapping[str, Any]) -> list[str]:
    """The names and numbers that lead to one of pydantic's errors, without its validators and the types of a union."""
    return [str(part) for part in fault["loc"] if "[" not in str(part) and part not in ("float", "int", "str")]


def complaint_of(fault: Mapping[str, Any]) -> str:
    """Returns the message of one of pydantic's errors, without class names."""
    plain = {"model_type": "expected a JSON object", "path_type": "expected a path"}
    return plain.get(fault["type"]) or str(fault["msg"]).removeprefix("Value error, ")


def faults(make: Callable[[], object]) -> list[str]:
    """All of pydantic's errors when `make` is called, one line for each; empty if there is none."""
    try:
        make()
    except ValidationError as error:
        return [_fault(fault) for fault in error.errors()]
    return []


def _fault(fault: Mapping[str, Any]) -> str:
    complaint = complaint_of(fault)
    if not fault["loc"]:  # of several fields together
        return complaint
    complaint = f"{'.'.join(place_of_fault(fault))}: {complaint}"
    return complaint if fault["type"] == "missing" else f"{complaint}, got {shorten(repr(fault['input']))}"


def first_line(error: BaseException) -> str:
    """Returns the first line of another package's error, and the next one if the first ends in a colon; its kind if it
    has no message."""
    first, *others = str(error).splitlines() or [type(error).__name__]
    return f"{first} {others[0].strip()}" if first.endswith(":") and others else first


def suggestion(name: str, known: Iterable[str], otherwise: str, at_most: int = 3, cutoff: float = 0.6) -> str:
    """Suggests the known names nearest to an unknown one; `otherwise` if none is near: if less than the share `cutoff`
    of its letters are the same."""
    near = difflib.get_close_matches(name, list(known), n=at_most, cutoff=cutoff)
    return f"did you mean {' or '.join(near)}?" if near else otherwise


def shorten(text: str) -> str:
    """Returns the text, or its beginning if it is too long for a line."""
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."
