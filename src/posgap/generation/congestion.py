"""Finds the best number of parallel requests for an endpoint, from the waits for its answers and from its refusals."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import NamedTuple

START = 16  # requests after the first answer, unless that took long
START_AFTER_FAULT = 8
MIN_GAIN = 1.15  # of the rate, for twice as many requests: less is not worth longer waits
MIN_ANSWERS = 4  # answers needed to judge a number of requests
SLOWER = 1.5  # times the wait of when the size was found: then others use the endpoint too, and it may be too large
ROUNDS_UNTIL_REVIEW = 10
NEAR = 0.9  # of the size that was refused: the window grows fast below it, then slowly

# Headers with the number of requests that are left until more are allowed: of OpenAI and many others, OpenRouter,
# Anthropic, and the draft of a standard.
REMAINING = (
    "x-ratelimit-remaining-requests",
    "x-ratelimit-remaining",
    "anthropic-ratelimit-requests-remaining",
    "ratelimit-remaining",
)


class _Level(NamedTuple):
    """A number of requests under way, and the seconds that an answer then takes."""

    size: int
    wait: float

    @property
    def rate(self) -> float:
        """Answers a second (Little's law)."""
        return self.size / self.wait


class Window:
    """Lets at most `size` requests be under way, and adapts `size` to the endpoint, up to `largest`.

    The first request goes out alone. After its answer the search begins with as many requests as even a server that
    answers one after the other would answer within `longest_wait` seconds, `START` at most. It doubles the number as
    long as that raises the rate of answers by `MIN_GAIN`. If the first doubling does not, it halves the number as long
    as that costs nothing. The rate is the number of requests under way, divided by the wait for an answer (Little's
    law). The size found is reviewed after `ROUNDS_UNTIL_REVIEW` rounds.

    The first refusal (429, 503, 529 or a timeout) ends the search. From then on the size follows TCP's congestion
    control (RFC 5681): a refusal halves it. Each answer adds one up to nine tenths of the refused size, and beyond that
    enough to add one in a round. Requests that were sent before the last change say nothing about the present size, and
    change nothing. `limit` is what the endpoint's headers allow.
    """

    def __init__(self, largest: int, longest_wait: float = math.inf, clock: Callable[[], float] = time.monotonic):
        self.largest = largest
        self.longest_wait = longest_wait
        self.clock = clock
        self.size = 1.0
        self.limit = math.inf
        self.under_way = self.admitted = 0
        self.changed_at = -math.inf
        self.refusals = 0
        self.halvings = 0  # since the last answer
        self.settled = False
        self._near = math.inf
        self._waits: list[float] = []  # for answers to requests that were sent at this size
        self._step = _FIRST  # what the size was changed for
        self._before = _Level(1, math.inf)
        self._settled_wait = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._next: asyncio.Future[None] | None = None

    @property
    def room(self) -> int:
        """The number of requests that may be under way now."""
        return max(1, int(min(self.size, self.limit)))

    @property
    def wait(self) -> float:
        """Mean seconds of waiting for an answer, of the last answers at this size; 0 before any."""
        return fmean(self._waits) if self._waits else self._settled_wait

    async def admit(self) -> None:
        """Waits until another prompt may be taken up, which ends with `leave`."""
        while self.admitted >= self.room:
            self._next = asyncio.get_running_loop().create_future()
            await self._next
        self.admitted += 1

    def leave(self) -> None:
        """Ends a prompt."""
        self.admitted -= 1
        self._wake()

    async def acquire(self) -> None:
        """Waits for the turn of a request; `release` must follow."""
        while self.under_way >= self.room:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        self.under_way += 1
        self._wake()

    def release(self) -> None:
        """Ends a request."""
        self.under_way -= 1
        self._wake()

    def reopen(self) -> None:
        """Forgets the waiting requests when an event loop ended; keeps what it learnt."""
        self.under_way = self.admitted = 0
        self._waiting.clear()
        self._next = None

    def note_answer(self, sent: float) -> None:
        """Notes that the request which was sent at `sent` has been answered now."""
        if sent < self.changed_at:
            return
        self.halvings = 0
        wait = self.clock() - sent
        if self.refusals:
            if wait <= self.longest_wait:
                self.size = min(self.size + (1.0 if self.size < self._near else 1.0 / self.size), float(self.largest))
            return
        self._waits.append(wait)
        enough = 1 if self._step is _FIRST else max(self.room, MIN_ANSWERS)
        if len(self._waits) >= enough * (ROUNDS_UNTIL_REVIEW if self.settled else 1):
            self._judge()

    def note_refusal(self, sent: float) -> None:
        """Notes that the endpoint had no time for the request which was sent at `sent`."""
        self.refusals += 1
        if sent >= self.changed_at:
            self.halvings += 1
            self._near = NEAR * self.size
            self._resize(max(1.0, self.size / 2))

    def note_fault(self) -> None:
        """Notes that a request failed for another reason: if it was the first, others need not wait for an answer."""
        if self._step is _FIRST and not self.refusals:
            self._move(_START, min(START_AFTER_FAULT, self.largest))

    def note_limits(self, headers: Mapping[str, str]) -> None:
        """Notes how many more requests an answer's headers allow for now."""
        told = [headers[name] for name in REMAINING if name in headers]
        if told:
            remaining = [int(number) for number in told if number.isdecimal()]
            self.limit = max(1.0, min(remaining, default=math.inf))
            self._wake()

    def _judge(self) -> None:
        """Chooses the next size by the rate at this one."""
        late = self._waits[len(self._waits) // 2 :]  # the early waits belong to the previous size
        now = _Level(self.room, max(fmean(late), 1e-9))
        before = self._before
        self._before = now
        if self._step is _FIRST:
            self._move(_START, min(START, max(1.0, self.longest_wait / now.wait), self.largest))
        elif self.settled:  # long waits come late in a round, so that only levels with a round each compare
            self._move(_REVIEW, now.size)
        elif self._step is _START or (self._step is _REVIEW and now.wait > SLOWER * self._settled_wait):
            self._move_up(_FIRST_UP, now)
        elif self._step is _REVIEW:
            self._move_up(_UP, now)
        elif self._step is _DOWN:
            if now.rate * MIN_GAIN < before.rate:
                self._settle(before)
            elif now.size == 1:
                self._settle(now)
            else:
                self._move(_DOWN, now.size / 2)
        elif now.rate >= before.rate * (1 + (MIN_GAIN - 1) * (now.size / before.size - 1)):
            self._move_up(_UP, now)
        elif self._step is _FIRST_UP and before.size > 1:
            self._before = _Level(before.size, before.size / now.rate)  # its own was seen as the server filled
            self._move(_DOWN, before.size / 2)
        else:
            self._settle(before)

    def _move_up(self, step: str, level: "_Level") -> None:
        doubled = min(2 * level.size, self.largest)
        if doubled <= level.size or 2 * level.wait > self.longest_wait or self.limit < doubled:
            self._settle(level)
        else:
            self._move(step, doubled)

    def _move(self, step: str, size: float) -> None:
        self._step = step
        self.settled = False
        self._resize(max(1.0, float(int(size))))

    def _settle(self, level: "_Level") -> None:
        self.settled = True
        self._settled_wait = level.wait
        self._resize(float(level.size))

    def _resize(self, size: float) -> None:
        self.changed_at = self.clock()
        self.size = size
        self._waits = []
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self.under_way < self.room:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        if self._next and not self._next.done() and self.admitted < self.room:
            self._next.set_result(None)


# Why the size has its value: the first request alone, the start of the search, the first doubling, later doublings, a
# review of the size found, a halving.
_FIRST, _START, _FIRST_UP, _UP, _REVIEW, _DOWN = "first", "start", "first up", "up", "review", "down"
