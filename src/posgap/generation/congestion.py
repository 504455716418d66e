"""How many requests an endpoint is sent at once, which it says itself by turning some of them away."""

import asyncio
import math
import time
from collections import deque

NEAR = 0.9  # of the size at which a request was turned away: up to there the window grows fast, and then slowly


class Window:
    """Lets at most `size` requests be under way, which begins with `largest` and follows the endpoint.

    As in TCP's congestion control (RFC 5681): a request that is turned away halves the size. An answer adds one up to
    nine tenths of the size at which that was, which doubles it within the time of an answer, and from there on as much
    as makes one within that time. Requests that were sent before the last halving say nothing new, and change nothing.
    So the endpoint's rate is used while few requests are turned away, whether it limits requests at once or a second.
    """

    def __init__(self, largest: int, size: float = math.inf):
        self.largest, self.size = largest, min(float(largest), size)
        self.near = NEAR * self.size
        self.under_way = 0
        self.halved_at = -math.inf
        self.halvings = 0  # since the last answer
        self.waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> float:
        """Waits until a request may be sent, in turn, and returns when that is; `leave` must follow."""
        while self.under_way >= int(self.size):
            turn = asyncio.get_running_loop().create_future()
            self.waiting.append(turn)
            await turn
        self.under_way += 1
        self._wake()
        return time.monotonic()

    def release(self) -> None:
        self.under_way -= 1
        self._wake()

    def note_answer(self, sent: float) -> None:
        """Notes that the request which was sent at `sent` has been answered."""
        if sent > self.halved_at:
            self.halvings = 0
            self.size = min(self.size + (1.0 if self.size < self.near else 1.0 / self.size), float(self.largest))

    def note_refusal(self, sent: float) -> None:
        """Notes that the endpoint had no time for the request which was sent at `sent`."""
        if sent > self.halved_at:
            self.halvings += 1
            self.near, self.size = NEAR * self.size, max(1.0, self.size / 2)
            self.halved_at = time.monotonic()

    def _wake(self) -> None:
        while self.waiting and self.under_way < int(self.size):
            turn = self.waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
