"""What the forks of warm.py do. They import this, so that it imports nothing that looks at the environment,
which is another test's until it is replaced: not posgap, which reads there which packages extend it."""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path


def command(words: list[str], log: Path, environment: dict[str, str]) -> None:
    """What a process of its own does: a command of posgap, with what it shows in a file.

    The server may have begun in the middle of another test, so that nothing of its environment is taken over.
    """
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    _main(words, environment, {1: stream, 2: stream})


def calling(work: Callable[[], None], log: Path, environment: dict[str, str]) -> None:
    """What a process does that calls a function, with what it shows in a file. Forks that it asks for in turn are of
    the same server: by themselves they would begin another one."""
    forkserver._forkserver.ensure_running = lambda: None
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.environ.clear()
    os.environ.update(environment)
    for standard in (1, 2):
        os.dup2(stream, standard)
    work()


def asked(words: list[str], environment: dict[str, str], folder: str, streams: list) -> None:
    """The same with these streams, in a folder."""
    os.chdir(folder)
    _main(words, environment, dict(enumerate(stream.detach() for stream in streams)))


def _main(words: list[str], environment: dict[str, str], streams: dict[int, int]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    for standard, stream in streams.items():
        os.dup2(stream, standard)
    if "PYTHONPATH" in environment:
        sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
        with contextlib.suppress(ImportError):
            importlib.import_module("sitecustomize")
    sys.argv = ["posgap", *words]
    from posgap.cli.main import main

    main(words)
