"""Progress of long work: a bar on a terminal or in a notebook, a line now and then in a log."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tqdm import tqdm

from posgap.foundation.printing import printable, shows_bars

T = TypeVar("T")
log = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = (5.0, 60.0)  # at first, and at most: later a tenth of the time that has passed


def track(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Yields `items`, showing how many of `total` (0: unknown) are done."""
    with meter(total, what) as done:
        for item in items:
            yield item
            done(1)


@contextmanager
def meter(total: int, what: str, unit: int = 1) -> Iterator[Callable[[int], None]]:
    """Yields a function that reports, from any thread, how much more of `total` is done; `unit` is the number shown as
    1."""
    if shows_bars():
        with tqdm(total=(total / unit if unit > 1 else total) or None, desc=printable(what), dynamic_ncols=True) as bar:
            yield lambda more: _advance(bar, more / unit if unit > 1 else more)
        return
    started = last = time.monotonic()
    done = 0
    lock = threading.Lock()
    first = (0, 0.0)

    def report(more: int) -> None:
        nonlocal done, last, first
        with lock:
            done = done + more
            now = time.monotonic()
            first = first if first[0] else (done, now)
            least, most = SECONDS_BETWEEN_LINES
            if now - last < min(max(least, (now - started) / 10), most) and done != total:
                return
            last = now
            rate = (done - first[0]) / unit / (now - first[1]) if now > first[1] else 0.0
            log.info("%s: %s", what, _so_far(done / unit, total / unit, now - started, rate))

    yield report


def _advance(bar: tqdm, more: float) -> None:
    """Moves a bar on. The time until the first item does not count for the rate, as a model is loaded and warmed up in
    it."""
    if not bar.n:
        bar.reset()
    bar.update(more)


def _so_far(done: float, total: float, seconds: float, rate: float) -> str:
    """Like "120 of 400 in 00:30, 4 a second, about 01:10 left"; `total` and `rate` are 0 if unknown."""
    parts = [f"{int(done)}{f' of {int(total)}' if total else ''} in {tqdm.format_interval(seconds)}"]
    if rate:
        per_second = f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
        parts.append(f"{per_second} a second" if rate >= 1 else f"{1 / rate:.3g} s each")
        if total > done:
            parts.append(f"about {tqdm.format_interval((total - done) / rate)} left")
    return ", ".join(parts)
