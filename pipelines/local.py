"""Runs a pipeline on this machine with KFP's local runner."""

import builtins
import contextlib
import copy
import logging
import os
import re
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from posgap.foundation.errors import PosgapError
from posgap.foundation.printing import is_quiet
from posgap.pipelines.forked_steps import await_server, forked_steps
from posgap.pipelines.resumed_steps import resumed_steps
from posgap.tracking.pipeline_runs import close_killed
from posgap.tracking.runs import PIPELINE_VARIABLE

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_EXECUTOR = re.compile(r"\[KFP Executor [^\]]*\]: (.*)")
_EXECUTOR_NOISE = ("Looking for component", "Loading KFP component", "Got executor_input", "Wrote executor output")
_UNDER_WAY = ".under-way"  # ends the name of a run's mark
_TASK = re.compile(r"Executing task '([^']+)'")
_ENDED = re.compile(r"Task '([^']+)' finished with status (\w+)")


class _LogStream:
    """An output stream that writes everything to a log, and shows only the lines that interest people.

    Threads write in turn. If several write to one of Python's text files at once, it loses lines and writes process
    memory, which may hold secrets, in their place (https://github.com/python/cpython/issues/119506).
    """

    def __init__(self, log: TextIO, show: Callable[[str], object]):
        self.log = log
        self.show = show
        self.errors: list[str] = []
        self.rest: dict[int, str] = {}  # an unfinished line per thread: KFP runs loop iterations in parallel
        self.turn = threading.RLock()

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        *lines, self.rest[thread] = (self.rest.get(thread, "") + text).split("\n")
        with self.turn:
            for line in lines:
                plain = _ANSI.sub("", line)
                self.log.write(plain + "\n")
                self._show_line(plain.strip())
        return len(text)

    def flush(self) -> None:
        with self.turn:
            self.log.flush()

    def isatty(self) -> bool:
        return False

    def _show_line(self, line: str) -> None:
        task = _TASK.search(line)
        said = _EXECUTOR.search(line)
        ended = _ENDED.search(line)
        if task and not task[1].startswith("importer"):
            self.show(f"{time.strftime('%H:%M:%S')} {task[1]}")
        elif said:
            if not said[1].startswith(_EXECUTOR_NOISE):
                self.show(f"         {said[1]}")
        elif line.startswith(("posgap.foundation.errors.", "WARNING posgap")):
            self.errors.append(line.split(": ", 1)[-1])
        elif ended and ended[2] != "SUCCESS":
            self.show(f"         {ended[1]}: {ended[2]}")


def run_locally(pipeline: Any, arguments: dict[str, Any], root: Path, cache: Path, log: Path) -> Path:
    """Runs a pipeline in local processes, with these arguments filled into its form; returns the run's folder below
    `root`, with one folder per step.

    Steps whose component and arguments are in `cache` are reused, and incomplete ones of an earlier run resume; their
    folders are in the run that made or began them. A killed run is closed in MLflow. One run at a time uses a cache.
    KFP's whole output goes to `log`, and the stages' own lines also to stderr. Raises `PosgapError` with the error of
    the first failed stage.
    """
    from kfp import local

    from posgap.pipelines.forms import fill_form

    local.init(
        local.SubprocessRunner(use_venv=False), pipeline_root=str(root), enable_caching=True, cache_root=str(cache)
    )
    fields = pipeline.pipeline_spec.root.input_definitions.parameters
    arguments = fill_form(arguments, {n: [each.string_value for each in fields[n].literals] for n in fields})
    terminal = sys.stderr
    before = set(root.glob("*"))
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        open(log, "a", encoding="utf-8") as kept,
        warnings.catch_warnings(),
        _as_pipeline_run(cache),
        _as_before(),
    ):
        warnings.simplefilter("ignore")
        digest = _LogStream(kept, lambda line: is_quiet() or terminal.write(f"{line}\n"))
        digest.show(f"{time.strftime('%H:%M:%S')} imports of all steps")
        await_server()
        try:
            with (
                forked_steps(),
                resumed_steps(cache),
                contextlib.redirect_stdout(digest),
                contextlib.redirect_stderr(digest),
            ):
                _once(pipeline)(**arguments)
        except RuntimeError as error:
            reason = digest.errors[0] if digest.errors else _ANSI.sub("", str(error))
            raise PosgapError(f"{reason} (the whole log is in {log}; complete steps are kept in {root})") from None
    (folder,) = set(root.glob("*")) - before
    return folder


def _once(pipeline: Any) -> Any:
    """The pipeline without retries: a step that fails on this machine would fail again after minutes of waiting."""
    pipeline = copy.deepcopy(pipeline)
    spec = pipeline.pipeline_spec
    for component in (spec.root, *spec.components.values()):
        for task in component.dag.tasks.values():
            task.ClearField("retry_policy")
    return pipeline


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    """Restores logging and `print`; KFP's local runner fails to after parallel loop iterations."""
    root = logging.getLogger()
    print_before = builtins.print
    handlers = root.handlers[:]
    level = root.level
    try:
        yield
    finally:
        root.handlers[:], builtins.print = handlers, print_before
        root.setLevel(level)


@contextlib.contextmanager
def _as_pipeline_run(cache: Path) -> Iterator[None]:
    """Sets the variable that tells stages that they are steps of one run, unless it is set already.

    A mark in `cache` says that the run has not ended well. If the run or its steps are killed, the next run closes what
    they left open in MLflow.
    """
    if PIPELINE_VARIABLE in os.environ:
        yield
        return
    for mark in cache.glob(f"*{_UNDER_WAY}"):
        if close_killed(mark.stem):
            mark.unlink()
    identity = f"local-{uuid.uuid4()}"
    cache.mkdir(parents=True, exist_ok=True)
    mark = cache / f"{identity}{_UNDER_WAY}"
    mark.touch()
    os.environ[PIPELINE_VARIABLE] = identity
    try:
        yield
        mark.unlink(missing_ok=True)
    finally:
        del os.environ[PIPELINE_VARIABLE]
