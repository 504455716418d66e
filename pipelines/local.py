"""Running a pipeline on this machine with KFP's local runner."""

import contextlib
import re
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from posgap.config import PipelineRunConfig
from posgap.errors import PosgapError

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_EXECUTOR = re.compile(r"\[KFP Executor [^\]]*\]: (.*)")
_EXECUTOR_NOISE = ("Looking for component", "Loading KFP component", "Got executor_input", "Wrote executor output")
_TASK = re.compile(r"Executing task '([^']+)'")
_ENDED = re.compile(r"Task '([^']+)' finished with status (\w+)")


class _Digest:
    """A stdout that keeps everything in a log and shows what a person wants to see."""

    def __init__(self, log: TextIO, show: Callable[[str], None]):
        self.log, self.show, self.rest, self.errors = log, show, "", []

    def write(self, text: str) -> int:
        *lines, self.rest = (self.rest + text).split("\n")
        for line in lines:
            plain = _ANSI.sub("", line)
            self.log.write(plain + "\n")
            self._digest(plain.strip())
        return len(text)

    def flush(self) -> None:
        self.log.flush()

    def isatty(self) -> bool:
        return False

    def _digest(self, line: str) -> None:
        if (found := _TASK.search(line)) and not found[1].startswith("importer"):
            self.show(f"{time.strftime('%H:%M:%S')} {found[1]}")
        elif found := _EXECUTOR.search(line):
            if not found[1].startswith(_EXECUTOR_NOISE):
                self.show(f"         {found[1]}")
        elif line.startswith(("posgap.errors.", "WARNING posgap")):
            self.errors.append(line.split(": ", 1)[-1])
        elif (found := _ENDED.search(line)) and found[2] != "SUCCESS":
            self.show(f"         {found[1]}: {found[2]}")


def run(config: PipelineRunConfig) -> None:
    """Runs the mitigation pipeline in `config.out` and prints where its outputs are."""
    from posgap.pipelines.arguments import arguments
    from posgap.pipelines.compilation import compiled_text, parse
    from posgap.pipelines.smoke import pipeline

    given = arguments(config, parse(compiled_text(pipeline), pipeline.name).parameters)
    out = config.out.absolute()
    outputs = run_locally(pipeline, given, root=out / "steps", cache=out / "cache", log=out / "pipeline.log")
    width = max(map(len, outputs), default=0)
    for name, path in sorted(outputs.items()):
        print(f"{name:<{width}}  {path}")


def run_locally(pipeline, arguments: dict[str, Any], root: Path, cache: Path, log: Path) -> dict[str, Path]:
    """Runs a pipeline in subprocesses of this Python; returns its output artifacts' local paths.

    Steps whose component and arguments are in `cache` are reused. Everything KFP prints goes to
    `log`, the stages' own lines to stderr too. Raises `PosgapError` with the failed stage's line.
    """
    from kfp import local

    local.init(
        local.SubprocessRunner(use_venv=False), pipeline_root=str(root), enable_caching=True, cache_root=str(cache)
    )
    terminal = sys.stderr
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a", encoding="utf-8") as kept, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        digest = _Digest(kept, lambda line: print(line, file=terminal, flush=True))
        try:
            with contextlib.redirect_stdout(digest), contextlib.redirect_stderr(digest):
                task = pipeline(**arguments)
        except RuntimeError as error:
            reason = digest.errors[-1] if digest.errors else _ANSI.sub("", str(error))
            raise PosgapError(f"{reason} (the whole log is in {log}; what is complete is kept in {root})") from None
    return {name: Path(artifact.path) for name, artifact in task.outputs.items()}
