"""SIGTERM, as a node sends it before it goes away: finish what must be whole, then exit 143."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from posgap.errors import Stopped


def stop_on_termination() -> None:
    """From now on SIGTERM raises `Stopped`, so that temporary files are removed and runs are closed."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Stopped("stopped by SIGTERM; run the same command again to go on")

    signal.signal(signal.SIGTERM, stop)


class Termination:
    """Whether SIGTERM has come."""

    requested = False


@contextmanager
def deferred_termination() -> Iterator[Termination]:
    """Within the block SIGTERM is only noted, for the body to act on when it can. Main thread only;
    elsewhere nothing is ever noted."""
    termination = Termination()
    if threading.current_thread() is not threading.main_thread():
        yield termination
        return

    def note(signum: int, frame: FrameType | None) -> None:
        termination.requested = True

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield termination
    finally:
        signal.signal(signal.SIGTERM, before)
