"""Measures how fast an endpoint answered, for the sweep's record."""

import time
from typing import Protocol, Self, runtime_checkable

from pydantic import Field

from posgap.foundation.files import Record

MIN_SHOWN = 32  # answers: fewer say nothing of the pace


class EndpointPace(Record):
    """How fast an endpoint answered a sweep's prompts, not counting those before an interruption."""

    answers: int = Field(0, ge=0, description="number of answers that these figures describe")
    at_once: int = Field(1, ge=1, description="number of parallel requests at the end")
    per_second: float = Field(0.0, ge=0, description="answers per second")
    median_wait: float = Field(0.0, ge=0, description="median seconds from sending a request to its whole answer")
    p95_wait: float = Field(0.0, ge=0, description="95th percentile of those seconds")
    refusals: int = Field(0, ge=0, description="requests that were rejected (429, 503, 529) or timed out")
    repeated: int = Field(0, ge=0, description="prompts that were sent twice at temperature 0")
    differing: int = Field(0, ge=0, description="of the repeated prompts, those with two different answers")

    def text(self) -> str:
        """The pace in words."""
        return (
            f"{self.per_second:,.1f} answers a second with {self.at_once} requests at a time; "
            f"half of the answers took {self.median_wait:.2f} s or more, 5 % {self.p95_wait:.2f} s or more"
        )


class Stopwatch:
    """Takes the times of answers while prompts are asked."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.seconds = 0.0
        self._since = 0.0

    def __enter__(self) -> Self:
        self._since = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.monotonic() - self._since

    def pace(self) -> EndpointPace:
        """The pace so far."""
        if not self.waits:
            return EndpointPace()
        ordered = sorted(self.waits)
        median, late = (ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.95))
        return EndpointPace(
            answers=len(self.waits),
            per_second=round(len(self.waits) / max(self.seconds, 1e-3), 3),
            median_wait=round(median, 4),
            p95_wait=round(late, 4),
        )


@runtime_checkable
class PacedGenerator(Protocol):
    """A generator that takes the time of an endpoint's answers."""

    @property
    def pace(self) -> EndpointPace:
        """The pace so far."""
        ...
