"""Begins the steps of a pipeline run on this machine in processes that have imported the large libraries already.

Importing torch, transformers and MLflow takes longer than most steps of a small pipeline. A server process imports them
once, and forks itself for every step. Of posgap it imports next to nothing, and each step has the environment of the
run, so that it sees what a Python that is started for it would. The server only imports: it forks with no GPU in use.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posgap.foundation.errors import PosgapError

LIBRARIES = (
    "kfp.dsl.executor_main",
    "mlflow.pyfunc",
    "mlflow.store.tracking.rest_store",
    "mlflow.store.tracking.sqlalchemy_store",
    "great_expectations.expectations",
    "transformers.models.llama.modeling_llama",
    "matplotlib.pyplot",
    "scipy.stats",
)
_DONE = b"0"


@contextlib.contextmanager
def forked_steps() -> Iterator[None]:
    """Within the block KFP's local runner begins its steps so; on systems other than Linux, where forking is not safe
    after these imports, each in a Python of its own, as KFP does."""
    if sys.platform != "linux":
        yield
        return
    from kfp.local import subprocess_task_handler as kfp_runner

    before = kfp_runner.run_local_subprocess
    with StepServer() as server:
        kfp_runner.run_local_subprocess = server.run
        try:
            yield
        finally:
            kfp_runner.run_local_subprocess = before


class StepServer:
    """The server process, which ends when the socket to it is closed, if only because this process was killed."""

    def __enter__(self) -> "StepServer":
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                env=os.environ | {"_KFP_RUNTIME": "true"},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        return self

    def __exit__(self, *_: Any) -> None:
        self.socket.close()
        self.process.wait()

    def run(self, full_command: list[str], env_vars: dict[str, str] | None = None) -> int:
        """What KFP's function of these parameters does: prints what the step prints; 0 if it ended well, else 1."""
        request = {"command": full_command, "environment": os.environ | (env_vars or {}), "folder": os.getcwd()}
        reading, writing = os.pipe()
        ours, theirs = socket.socketpair()
        with ours:
            with open(reading, encoding="utf-8", errors="replace") as output:
                try:
                    socket.send_fds(self.socket, [b"step"], [theirs.fileno(), writing])
                except OSError as error:
                    raise PosgapError("the process that begins the steps has ended: run the command again") from error
                finally:
                    theirs.close()
                    os.close(writing)
                with contextlib.suppress(OSError):  # what became of the step is asked below
                    ours.sendall(json.dumps(request).encode())
                    ours.shutdown(socket.SHUT_WR)
                for line in output:
                    print(line, end="")
            try:
                return 0 if ours.recv(1) == _DONE else 1
            except ConnectionError:
                return 1


def serve(control: socket.socket) -> None:
    """Imports the libraries, and then forks for each step, until the other end of the socket is closed."""
    # Ctrl-C in a terminal is meant for the steps; nobody asks how they ended, so none is left as a zombie.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGCHLD)}
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):  # the step that needs it will say so
            importlib.import_module(name)
    # What was imported never becomes garbage. A step that looked for garbage there, as Python does now and then, would
    # copy every page of the server's memory on which one of these 800,000 objects lies.
    gc.collect()
    gc.freeze()
    while True:
        message, descriptors, *_ = socket.recv_fds(control, 16, 2)
        if not message:
            return
        connection, output = descriptors
        if os.fork() == 0:
            control.close()
            for number, handler in before.items():
                signal.signal(number, handler)
            with socket.socket(fileno=connection) as told:
                _step(told, output)
            _end()
        os.close(connection)
        os.close(output)


def _step(connection: socket.socket, output: int) -> None:
    """Does what the shell does with KFP's command: a file of the component's code, and KFP's executor on it."""
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    with connection.makefile(encoding="utf-8") as text:
        request = json.load(text)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"], _KFP_RUNTIME="true")
    # Python reads this when it starts, and the server may have been started before it was set.
    more = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[1:1] = [entry for entry in dict.fromkeys(more) if entry and entry not in sys.path]
    shell, option, script, component, *arguments = request["command"]
    if (shell, option) != ("sh", "-ec") or "-m kfp.dsl.executor_main" not in script:
        raise NotImplementedError(f"a command of another form than KFP's: {script}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "ephemeral_component.py"
        file.write_text(component, encoding="utf-8")
        sys.argv = ["executor_main.py", "--component_module_path", str(file), *arguments]
        runpy.run_module("kfp.dsl.executor_main", run_name="__main__", alter_sys=True)
    connection.sendall(_DONE)


def _end() -> None:
    """Ends the process as Python does, after its threads and what is registered with `atexit`, but without taking apart
    one by one the modules that the server imported, which takes longer than most steps."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
