"""Progress of long work: a bar on a terminal, a line every few seconds in a log."""

import logging
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

T = TypeVar("T")
log = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 5.0


def track(items: Iterable[T], total: int, what: str) -> Iterator[T]:
    """Yields `items`, showing how many of `total` are done."""
    if sys.stderr.isatty():
        yield from tqdm(items, total=total, desc=what, dynamic_ncols=True)
        return
    started = last = time.monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES or done == total:
            last = now
            log.info("%s: %d of %d, %.0f s", what, done, total, now - started)
