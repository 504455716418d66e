"""Locks of builds of torch extensions that a killed process left behind are taken over; others are not."""

import logging
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from torch.utils import cpp_extension

from posgap.distillation import build_locks
from posgap.distillation.build_locks import QUIET, Baton

HOLD = """
import os, sys, time
lock = os.open(sys.argv[1], os.O_CREAT | os.O_EXCL | os.O_WRONLY)
os.write(lock, f"{os.getpid()} {sys.argv[2]}".encode() if sys.argv[2] else b"")
print(flush=True)
time.sleep(60)
"""


@pytest.fixture
def held(tmp_path):
    """The path of a lock, and the process that holds it; `machine` is the one that the lock names, empty for none."""
    begun = []

    def hold(machine: str) -> tuple:
        lock = tmp_path / "lock"
        process = subprocess.Popen([sys.executable, "-IS", "-c", HOLD, lock, machine], stdout=subprocess.PIPE)
        begun.append(process)
        assert process.stdout and process.stdout.readline() == b"\n"
        return lock, process

    yield hold
    for process in begun:
        process.kill()
        process.wait()


def killed(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def grow_old(lock) -> None:
    """As if nothing had been written beside the lock for long."""
    for each in [lock, *lock.parent.iterdir()]:
        os.utime(each, (time.time() - QUIET - 1,) * 2)


def test_a_lock_is_taken_over_as_soon_as_its_owner_is_gone(held, caplog):
    lock, process = held(socket.gethostname())
    assert not Baton(str(lock)).try_acquire()
    grow_old(lock)  # a long build
    assert not Baton(str(lock)).try_acquire()
    killed(process)
    first, second = Baton(str(lock)), Baton(str(lock))
    assert first.try_acquire() and not second.try_acquire()
    (line,) = caplog.messages
    assert line == f"{lock}: a build of a torch extension broke off there (process {process.pid} is gone); " \
                   "building it again"  # fmt: skip
    first.release()
    assert not lock.exists() and second.try_acquire()
    second.release()


@pytest.mark.parametrize("machine", ["", "another-machine"])
def test_a_lock_that_does_not_say_whose_it_is_is_taken_over_when_nobody_can_hold_it(held, machine):
    lock, process = held(machine)
    grow_old(lock)
    assert not Baton(str(lock)).try_acquire(), "a process of this machine has it open"
    killed(process)
    (lock.parent / "written.o").touch()
    assert not Baton(str(lock)).try_acquire(), "somebody elsewhere is building"
    grow_old(lock)
    assert Baton(str(lock)).try_acquire()


def test_torch_builds_under_this_lock(monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(cpp_extension, "FileBaton", cpp_extension.FileBaton)
    build_locks.use()
    (tmp_path / "lock").write_text(f"{2**22 + 1} {socket.gethostname()}")  # no process has such a number
    built = []
    monkeypatch.setattr(cpp_extension, "_write_ninja_file_and_build_library", lambda **_: built.append(_["name"]))
    monkeypatch.setattr(cpp_extension, "_import_module_from_library", lambda name, *_: name)
    (tmp_path / "a.cpp").write_text("")
    with caplog.at_level(logging.WARNING):
        loaded = cpp_extension.load("tiny", str(tmp_path / "a.cpp"), build_directory=str(tmp_path))
    assert built == [loaded] and "is gone" in caplog.text and not (tmp_path / "lock").exists()
