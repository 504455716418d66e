"""Processes that begin where the libraries are imported already, which takes longer than most of what they do in tests.

They are forks of a server that has imported these libraries, and nothing of posgap.
"""

import multiprocessing
import os
import runpy
import sys
import tempfile
from pathlib import Path

import pytest
from kfp.local import subprocess_task_handler

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(
    ["kfp.dsl.executor_main", "mlflow.pyfunc", "mlflow.store.tracking.rest_store", "great_expectations.expectations",
     "transformers.models.llama.modeling_llama", "matplotlib.pyplot", "scipy.stats"]
)  # fmt: skip


def command(words: list[str], log: Path, environment: dict[str, str]) -> None:
    """What a process of its own does: a command of posgap, with what it shows in a file.

    The server may have begun in the middle of another test, so that nothing of its environment is taken over.
    """
    os.environ.clear()
    os.environ.update(environment)
    stream = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    from posgap.cli import main

    main(words)


@pytest.fixture(autouse=True, scope="module")
def warm_steps():
    """Has KFP's local runner begin its steps in such processes; imported by a module, it does so for all its tests.

    `posgap demo` in tests/test_demo.py is run as users do, each step in a Python that is started for it.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(subprocess_task_handler, "run_local_subprocess", run_step)
        yield


def run_step(full_command: list[str], env_vars: dict[str, str] | None = None) -> int:
    """What KFP's function of this name does: prints what a step prints, and returns its exit status."""
    with tempfile.TemporaryDirectory() as folder:
        pipe = Path(folder) / "output"
        os.mkfifo(pipe)
        started = SERVER.Process(target=_step, args=(full_command, os.environ | (env_vars or {}), Path.cwd(), pipe))
        started.start()
        with open(pipe) as output:
            for line in output:
                print(line, end="")
        started.join()
        assert started.exitcode is not None
        return started.exitcode


def _step(command: list[str], environment: dict[str, str], folder: Path, pipe: Path) -> None:
    stream = os.open(pipe, os.O_WRONLY)
    os.dup2(stream, 1)
    os.dup2(stream, 2)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment, _KFP_RUNTIME="true")
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    shell, option, script, component, *arguments = command
    assert (shell, option) == ("sh", "-ec") and "-m kfp.dsl.executor_main" in script
    file = Path(tempfile.mkdtemp(dir=pipe.parent)) / "ephemeral_component.py"
    file.write_text(component)
    sys.argv = ["executor_main.py", "--component_module_path", str(file), *arguments]
    runpy.run_module("kfp.dsl.executor_main", run_name="__main__", alter_sys=True)
