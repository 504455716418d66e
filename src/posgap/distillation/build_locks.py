"""Locks of builds of torch extensions, as DeepSpeed builds some, whose owner was killed.

torch takes a lock by creating a file, and waits for as long as that exists, without a word: a process that is killed as
it builds hangs every later one. Here the file names its owner, and a lock whose owner is gone is taken over. One that
does not say whose it is, or is of another machine that shares the folder, counts as left when no process of this
machine has it open and nothing in the folder was written for ten minutes.
"""

import logging
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock
from torch.utils import cpp_extension
from torch.utils.file_baton import FileBaton

from posgap.foundation.files import runs

log = logging.getLogger(__name__)
QUIET = 600.0  # seconds without a file written, after which nobody elsewhere builds
_PROCESSES = Path("/proc")
_TURN = "posgap-takes-over"  # the name of the lock of those that look at a lock


class Baton(FileBaton):
    """torch's lock, which is taken over from a process that has died, and says for whom it waits."""

    def try_acquire(self) -> bool:
        """Whether this process has the lock now."""
        if not self._create() and not self._take_over():
            return False
        assert self.fd is not None
        os.write(self.fd, f"{os.getpid()} {socket.gethostname()}".encode())
        return True

    def wait(self) -> None:
        log.info("waiting for the build of a torch extension: %s", self.lock_file_path)
        super().wait()

    def _create(self) -> bool:
        with suppress(FileExistsError):
            lock: Any = os.open(self.lock_file_path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            self.fd = lock
            return True
        return False

    def _take_over(self) -> bool:
        """Replaces a lock that was left; one process at a time, so that none removes what another has just taken."""
        path = Path(self.lock_file_path)
        with FileLock(path.with_name(_TURN)), suppress(FileNotFoundError):
            if not (reason := _left_because(path)):
                return False
            path.unlink()
            log.warning("%s: a build of a torch extension broke off there (%s); building it again", path, reason)
        return self._create()


def use() -> None:
    """From now on torch's builds in this process lock so."""
    cpp_extension.FileBaton = Baton  # type: ignore[misc]


def _left_because(lock: Path) -> str:
    """Why nobody holds the lock any more; empty where somebody does, or may. `FileNotFoundError` if it is gone."""
    process, _, machine = lock.read_text(encoding="utf-8", errors="replace").partition(" ")
    if process.isdigit() and machine == socket.gethostname():
        held = _holds(int(process), lock)
        return "" if held or (held is None and runs(int(process))) else f"process {process} is gone"
    newest = max(each.stat().st_mtime for each in lock.parent.iterdir() if each.name != _TURN)
    if time.time() - newest < QUIET or any(_holds(int(each.name), lock) for each in _PROCESSES.glob("[0-9]*")):
        return ""
    return f"nothing was written for {(time.time() - newest) / 60:.0f} minutes"


def _holds(process: int, lock: Path) -> bool | None:
    """Whether a process has the lock open, which it has while it builds; None where that cannot be seen."""
    try:
        descriptors = [*(_PROCESSES / str(process) / "fd").iterdir()]
    except OSError:
        return None
    for each in descriptors:
        with suppress(OSError):  # closed meanwhile
            if each.samefile(lock):
                return True
    return False
