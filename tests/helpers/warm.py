"""Processes that begin where the libraries are imported already, which takes longer than most of what they do in tests.

They are forks of a server that has imported the libraries, and next to nothing of posgap: the one that steps of
pipelines are forks of.
"""

import contextlib
import json
import os
import socket
import sys
import threading
from multiprocessing.connection import wait
from multiprocessing.reduction import DupFd

import pytest
from places import ROOT
from warm_forks import asked

from posgap.pipelines.forked_steps import SERVER, begin_server


@pytest.fixture(autouse=True, scope="module")
def posgap_on_path(tmp_path_factory):
    """Has `posgap`, for the processes that a module's tests start, be a small program that has a fork run the command;
    by being imported there. It ends as the fork does, and hands on the signals that it gets; the fork dies with it, but
    a moment later, so that what is to be killed should be begun as `sys.executable -m posgap`.
    """
    begin_server()  # now, when no test has changed the environment
    folder = tmp_path_factory.mktemp("warm")
    program, address = folder / "posgap", folder / "socket"
    program.write_text(f"#!{sys.executable} -IS\n{(ROOT / 'tests' / 'helpers' / 'warm_client.py').read_text()}")
    program.chmod(0o755)
    with (
        socket.create_server(str(address), family=socket.AF_UNIX) as listening,
        pytest.MonkeyPatch.context() as patched,
    ):
        threading.Thread(target=_accept, args=(listening,), daemon=True).start()
        patched.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        patched.setenv("POSGAP_WARM", str(address))
        yield


def _accept(listening: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it was closed
        while True:
            threading.Thread(target=_follow, args=(listening.accept()[0],), daemon=True).start()


def _follow(client: socket.socket) -> None:
    """Begins the command of tests/helpers/warm_client.py, hands on its signals, and tells it how the command ended."""
    with client:
        _, streams, *_ = socket.recv_fds(client, 1, 3)
        with client.makefile("rb", buffering=0) as request:
            words, environment, folder = json.loads(request.readline())
        process = SERVER.Process(target=asked, args=(words, environment, folder, [DupFd(each) for each in streams]))
        process.start()
        for stream in streams:
            os.close(stream)
        while client in wait([client, process.sentinel]):
            signals = client.recv(1)
            if not signals:
                process.kill()
                break
            os.kill(process.pid, signals[0])
        process.join()
        with contextlib.suppress(OSError):
            client.sendall(str(process.exitcode).encode())
