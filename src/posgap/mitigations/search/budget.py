"""Divides a comparison's time: half of it is for choosing settings, the rest for measuring."""

import time
from collections.abc import Callable

CHOOSING = 0.5  # share of the budget for trying settings
TRIALS = 3  # settings of each mitigation that the time must allow, if each takes as long as the unmodified model
SEARCHING = 0.7  # share of a mitigation's time for its own search; the rest is to try what that finds
TIMING = 0.05  # share of the budget for the times of answers
FILLED = 0.85  # share of the remaining time for sweeps: measuring costs and writing pages take the rest
_MORE = 1.25  # times as many examples, or all, must fit before more are asked


class Clock:
    """The seconds spent of a budget; those before an interruption are added."""

    def __init__(self, budget: float, now: Callable[[], float] = time.monotonic):
        self.budget = budget
        self.now = now
        self.began = now()

    def add_earlier(self, seconds: float) -> None:
        """Adds seconds that were spent before."""
        self.began -= seconds

    @property
    def seconds_spent(self) -> float:
        return self.now() - self.began

    @property
    def seconds_left(self) -> float:
        return max(0.0, self.budget - self.seconds_spent)

    @property
    def choosing_ends(self) -> float:
        """The time after which no more settings are tried."""
        return CHOOSING * self.budget

    def end_of_share(self, parts: float) -> float:
        """Splits the time left for choosing into this number of equal parts, and returns the end of the first."""
        return self.seconds_spent + max(0.0, self.choosing_ends - self.seconds_spent) / parts


def fit_examples(asked: int, total: int, seconds_each: float, left: float) -> int:
    """Returns how many of all examples to ask, so that those not yet asked fit into the seconds left; only those asked
    if the rest would be few."""
    fit = min(total, asked + int(max(0.0, left) / seconds_each)) if seconds_each else total
    return fit if fit == total or fit >= _MORE * asked else asked
