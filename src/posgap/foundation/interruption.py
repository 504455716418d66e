"""Ctrl-C, and SIGTERM, as a node sends it before it goes away: finish what must be whole, then exit 130 or 143."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from posgap.foundation.errors import TerminationSignal

RESUMES = "run the same command again to resume"


def raise_on_termination() -> None:
    """From now on SIGTERM raises `TerminationSignal`, so that temporary files are removed and runs are closed."""
    signal.signal(signal.SIGTERM, _raise_stop)


@contextmanager
def raising_on_termination() -> Iterator[None]:
    """Within the block SIGTERM raises `TerminationSignal`. Main thread only; elsewhere nothing is changed."""
    with _handling_termination(_raise_stop):
        yield


@contextmanager
def _handling_termination(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _raise_stop(signum: int, frame: FrameType | None) -> None:
    raise TerminationSignal("stopped by SIGTERM")


@contextmanager
def resumable(after_ctrl_c: bool = True) -> Iterator[None]:
    """Keeps finished work within the block; if the user stops it, says that the same command resumes from there.

    A block that keeps it at SIGTERM alone says so by `after_ctrl_c`. Around a whole function: `@resumable()`.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        if (after_ctrl_c or isinstance(stop, TerminationSignal)) and RESUMES not in getattr(stop, "__notes__", ()):
            stop.add_note(RESUMES)
        raise


class Termination:
    """Whether SIGTERM has come."""

    requested = False


@contextmanager
def deferred_termination() -> Iterator[Termination]:
    """Within the block SIGTERM is only noted, for the body to act on when it can. Main thread only;
    elsewhere nothing is ever noted."""
    termination = Termination()

    def note(signum: int, frame: FrameType | None) -> None:
        termination.requested = True

    with _handling_termination(note):
        yield termination
