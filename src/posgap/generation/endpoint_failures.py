"""Counts an endpoint's unanswered prompts; many in a row mean that it is out of order."""

import math

MAX_FAILURES_AT_START = 8  # before any prompt was answered
MAX_CONSECUTIVE_FAILURES = 25


class FailureCount:
    """Counts answered prompts, and the failed ones since the last of them."""

    def __init__(self) -> None:
        self.answered = self.consecutive = 0
        self.answered_at = -math.inf

    def note_answer(self, now: float) -> None:
        """Notes a prompt that was answered at `now`."""
        self.answered = self.answered + 1
        self.answered_at = now
        self.consecutive = 0

    def note_failure(self) -> bool:
        """Notes a prompt that failed; returns whether too many have in a row."""
        self.consecutive += 1
        return self.consecutive >= (MAX_CONSECUTIVE_FAILURES if self.answered else MAX_FAILURES_AT_START)
