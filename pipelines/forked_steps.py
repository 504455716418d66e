"""Begins the steps of a pipeline run on this machine in processes that have imported the large libraries already.

Importing torch, transformers and MLflow takes longer than most steps of a small pipeline. Python's fork server imports
them once, and forks itself for every step. That takes ten seconds, or over half a minute if Python may write no
bytecode or shares its processors. So the server begins as soon as it is known that there will be steps. It imports next
to nothing of posgap, and each step has the environment of the run, so it sees what a freshly started Python would. The
server only imports: it forks with no GPU in use.
"""

import atexit
import contextlib
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from posgap.foundation.errors import ProcessFailure

SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["posgap.pipelines.preloaded"])
_FORKED = sys.platform == "linux"
_RUNNING: set[BaseProcess] = set()
_STOPPED = threading.Event()  # once SIGTERM has come


def begin_server() -> None:
    """Makes the server begin to import, and does not wait for it."""
    if _FORKED:
        forkserver.ensure_running()


def await_server() -> None:
    """Returns when the server has imported the libraries."""
    if _FORKED:
        begin_server()
        process = SERVER.Process(target=_nothing)
        process.start()
        process.join()


def _nothing() -> None:
    """Does nothing: its process only tests whether others can be started."""


@contextlib.contextmanager
def forked_steps() -> Iterator[None]:
    """Within the block KFP's local runner begins its steps this way. On systems other than Linux, where forking is not
    safe after these imports, each step gets its own Python, as KFP does it."""
    if not _FORKED:
        yield
        return
    from kfp.local import subprocess_task_handler as kfp_runner

    begin_server()
    before = kfp_runner.run_local_subprocess
    kfp_runner.run_local_subprocess = run
    try:
        with _stopped_by_sigterm():
            yield
    finally:
        kfp_runner.run_local_subprocess = before


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Within the block SIGTERM goes to all steps first, and no new one begins: KFP waits for the threads of a loop
    before it lets the run end, and each has steps to run."""
    _STOPPED.clear()
    before = signal.getsignal(signal.SIGTERM)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum: int, frame: FrameType | None) -> None:
        _STOPPED.set()
        for process in list(_RUNNING):
            process.terminate()
        before(signum, frame)

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run(full_command: list[str], env_vars: dict[str, str] | None = None) -> int:
    """Does the same as KFP's function with these parameters: prints what the step prints; returns 0 if it ended well,
    else 1."""
    if _STOPPED.is_set():
        return 1
    reading, writing = SERVER.Pipe(duplex=False)
    process = SERVER.Process(target=_step, args=(full_command, os.environ | (env_vars or {}), writing))
    process.start()
    _RUNNING.add(process)
    writing.close()
    try:
        with reading, open(reading.fileno(), encoding="utf-8", errors="replace", closefd=False) as output:
            for line in output:
                print(line, end="")
        process.join()
    except BaseException:
        process.terminate()  # no parent is left to wait for it
        raise
    finally:
        _RUNNING.discard(process)
    if process.exitcode is not None and process.exitcode < 0:
        hint = ", as the system does when memory runs out" if process.exitcode == -signal.SIGKILL else ""
        name = signal.Signals(-process.exitcode).name
        # In the form of an error that ends a step by itself.
        print(f"{ProcessFailure.__module__}.ProcessFailure: step {full_command[-1]}: killed by {name}{hint}")
    return int(process.exitcode != 0)


def _step(command: list[str], environment: dict[str, str], output: Connection) -> None:
    """Does what the shell does with KFP's command: a file of the component's code, and KFP's executor on it."""
    threading.Thread(target=_die_with_the_run, daemon=True).start()
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    output.close()
    os.environ.clear()
    os.environ.update(environment, _KFP_RUNTIME="true")
    # Python reads this when it starts, and the server may have been started before it was set.
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [entry for entry in dict.fromkeys(more) if entry and entry not in sys.path]
    shell, option, script, component, *arguments = command
    if (shell, option) != ("sh", "-ec") or "-m kfp.dsl.executor_main" not in script:
        raise NotImplementedError(f"a command of another form than KFP's: {script}")
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "ephemeral_component.py"
            file.write_text(component, encoding="utf-8")
            sys.argv = ["executor_main.py", "--component_module_path", str(file), *arguments]
            runpy.run_module("kfp.dsl.executor_main", run_name="__main__", alter_sys=True)
    finally:
        # As at the end of every Python; a fork's does neither.
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()


def _die_with_the_run() -> None:
    """Kills this process as soon as the pipeline's process has died: a step that outlived it would hold its output's
    lock, and the next run could not resume there. Its processes for several GPUs are told to end."""
    run = multiprocessing.parent_process()
    if run is not None:
        run.join()
        for children in Path("/proc/self/task").glob("*/children"):
            for child in children.read_text().split():
                os.kill(int(child), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGKILL)
