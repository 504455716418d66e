"""Waits for servers: a deadline for every whole call, and tries again after waits that grow, are drawn at
random, and are capped, counted and shown. S3's client, which tries again by itself, is given the same waits."""

import logging
import math
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

import tenacity

T = TypeVar("T")
log = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 10.0


class TransientError(Exception):
    """A fault that may pass on a retry, after `wait` seconds if the server asked for that. Waits grow with the failures
    of this call in a row, but count `most_failures` at most: others may have been answered meanwhile."""

    most_failures: float = math.inf

    def __init__(self, complaint: str, wait: float = 0.0):
        super().__init__(complaint)
        self.wait = wait


@dataclass(frozen=True)
class RetryPolicy:
    """How long faults are retried: for `tries` tries, or until `seconds` have passed since the first of them began.

    The waits between tries double from `first_wait` to `longest_wait` seconds. Each is shortened at random, by half at
    most, so that callers that failed together do not retry together. A server's own wait takes precedence, up to
    `longest_wait`.
    """

    seconds: float = math.inf
    tries: float = math.inf
    first_wait: float = 0.5
    longest_wait: float = 30.0

    @property
    def patience(self) -> float:
        """The least seconds that the waits of all tries take, if no server asks for another time."""
        return sum(min(self.first_wait * 2.0**number, self.longest_wait) for number in range(int(self.tries) - 1)) / 2

    def seconds_to_wait(self, failures: float, requested: float = 0.0) -> float:
        """Returns the seconds to wait after consecutive failures; `requested` are those that the server asked for."""
        if requested > 0:
            return min(self.longest_wait, requested)
        grown = self.first_wait * 2.0 ** min(failures - 1, 60)
        return min(grown, self.longest_wait) * random.uniform(0.5, 1.0)


@dataclass
class Waits:
    """Counts the waits for a server, and shows them: the first at once, later ones every few seconds.

    Several calls may wait at once: `seconds` counts the time in which at least one did.
    """

    server: str
    number: int = 0
    seconds: float = 0.0
    until: float = -math.inf  # when the last of the waits ends
    shown_at: float = -math.inf
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def count(self, reason: str, seconds: float, requested: float = 0.0) -> None:
        """Notes that the next try comes in `seconds`, and why; the server requested `requested` seconds."""
        with self.lock:
            now = time.monotonic()
            ends = max(self.until, now + seconds)
            self.number += 1
            self.seconds += ends - max(self.until, now)
            self.until = ends
            if now - self.shown_at < SECONDS_BETWEEN_LINES:
                return
            self.shown_at = now
        capped = f", not in the {requested:g} s that it asks for" if requested > seconds else ""
        log.info(
            "%s: %s; trying again in %.1f s%s (wait %d, %.0f s in all)",
            self.server, reason.removeprefix(f"{self.server}: "), seconds, capped, self.number, self.seconds,
        )  # fmt: skip


def retrying(retry_policy: RetryPolicy, waits: Waits) -> tenacity.Retrying:
    """Calls a function until it raises no `TransientError`. When the policy allows no more tries, the last
    `TransientError` is raised."""

    def requested_wait(state: tenacity.RetryCallState) -> float:
        return getattr(_fault(state), "wait", 0.0)

    def most_failures(state: tenacity.RetryCallState) -> float:
        return getattr(_fault(state), "most_failures", math.inf)

    def wait(state: tenacity.RetryCallState) -> float:
        failures = min(state.attempt_number, most_failures(state))
        return retry_policy.seconds_to_wait(failures, requested_wait(state))

    def stop(state: tenacity.RetryCallState) -> bool:
        passed = (state.seconds_since_start or 0.0) + state.upcoming_sleep
        return state.attempt_number >= retry_policy.tries or passed >= retry_policy.seconds

    return tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(TransientError),
        wait=wait,
        stop=stop,
        before_sleep=lambda state: waits.count(str(_fault(state)), state.upcoming_sleep, requested_wait(state)),
        reraise=True,
    )


def _fault(state: tenacity.RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None


def within(seconds: float, call: Callable[[], T]) -> T:
    """Returns or raises what `call` does; `TimeoutError` if it has not ended in time.

    Timeouts of sockets start again with every byte. So the call has a thread of its own, which is left behind when its
    time is up, and which keeps no process alive. The abandoned call must do no harm if it goes on.
    """
    result: Future[T] = Future()

    def call_and_store() -> None:
        try:
            result.set_result(call())
        except BaseException as error:  # whatever it is, it belongs to the waiting caller
            result.set_exception(error)

    threading.Thread(target=call_and_store, name="within", daemon=True).start()
    try:
        return result.result(timeout=seconds)
    except TimeoutError:
        if result.done():  # at the last moment, or the call itself says so
            return result.result()
        raise TimeoutError(f"no answer within {seconds:.3g} s") from None
