"""Progress of long work: a bar on a terminal, a line every few seconds in a log."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")
log = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 5.0


def track(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Yields `items`, showing how many of `total` (0: nobody knows) are done."""
    with meter(total, what) as done:
        for item in items:
            yield item
            done(1)


@contextmanager
def meter(total: int, what: str, unit: int = 1) -> Iterator[Callable[[int], None]]:
    """Yields a function to be told, from any thread, how much more of `total` is done; `unit` is what is shown as 1."""
    if sys.stderr.isatty():
        with tqdm(total=(total / unit if unit > 1 else total) or None, desc=what, dynamic_ncols=True) as bar:
            yield lambda more: bar.update(more / unit if unit > 1 else more)
        return
    started = last = time.monotonic()
    of = f" of {total // unit}" if total else ""
    done, lock = 0, threading.Lock()

    def add(more: int) -> None:
        nonlocal done, last
        with lock:
            done, now = done + more, time.monotonic()
            if now - last < SECONDS_BETWEEN_LINES and done != total:
                return
            last = now
            log.info("%s: %d%s, %.0f s", what, done // unit, of, now - started)

    yield add
