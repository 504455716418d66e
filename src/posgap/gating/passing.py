"""Simulates how often a flat model without losses passes the rules of a policy, one by one and all together."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache

import numpy as np
import scipy

from posgap.foundation.registry import Parameters
from posgap.gating.rules import GateRule
from posgap.measurement.power import Assumptions
from posgap.measurement.simulated_sweeps import BATCH, simulate_sweeps
from posgap.measurement.statistics import EACH_END

POLICY = "policy"  # the name of all rules together
MAX_PROMPTS = 500_000  # of a sweep; what would need more is not planned
_FEWEST = 128  # sweeps that are drawn for a number of examples
_CELLS = 30_000_000  # prompts of them all, beyond which fewer are drawn
_Z = -scipy.special.ndtri(EACH_END)
# Every number up to a hundred, and from there on every hundredth.
_NUMBERS = sorted({1} | {math.ceil(1.01**power) for power in range(1, 1400)})


class PassRates:
    """Estimates by simulation how often a flat model passes each rule that can be simulated, and all of these.

    The sweeps are as `assumed`, at most `most` of them for each number of examples."""

    def __init__(self, rules: Sequence[tuple[GateRule, Parameters]], assumed: Assumptions, most: int = 1024) -> None:
        self.rules = [(rule, parameters) for rule, parameters in rules if rule.is_simulated]
        self.assumed = assumed
        self.most = most
        self._counted = cache(self._counts)

    @property
    def rule_names(self) -> list[str]:
        """The rules, and last all of them."""
        return [*(rule.name for rule, _ in self.rules), POLICY]

    def sweep_count(self, n: int) -> int:
        """Returns the number of sweeps of n examples to draw."""
        fitting = _CELLS // (n * self.assumed.placements) // BATCH * BATCH
        return min(self.most, max(_FEWEST, fitting))

    def pass_rate(self, name: str, n: int) -> float:
        """The share (0 to 1) of sweeps with n examples that pass a rule, or all."""
        return self._counted(n, self.sweep_count(n))[name] / self.sweep_count(n)

    def least(self, name: str, share: float) -> int | None:
        """Returns the least number of examples, to a hundredth, with which a rule, or all rules, pass in this share (0
        to 1) of simulations.

        None if that takes more than `MAX_PROMPTS`.
        """
        numbers = [n for n in _NUMBERS if n * self.assumed.placements <= MAX_PROMPTS]
        last = len(numbers) - 1

        def rough_rate(at: int) -> float:
            return self._counted(numbers[at], BATCH)[name] / BATCH

        # Every 70th number is about twice the one before. Few sweeps tell roughly which of these is the first enough.
        high = next((at for at in range(35, last, 70) if rough_rate(at) >= share), last)
        if high == last and rough_rate(last) == 0:
            return None
        # That may be wrong: go from a quarter of it upwards, and beyond it as long as the full number of sweeps
        # requires it.
        low = max(0, high - 140)
        while self.pass_rate(name, numbers[high]) < share:
            if high == last:
                return None
            low = high
            high = min(high + 70, last)
        return numbers[bisect_left(range(high), share, low, key=lambda at: self.pass_rate(name, numbers[at]))]

    def margin(self, name: str, n: int) -> float:
        """Half-width of the share's 95 % Monte Carlo interval."""
        share = self.pass_rate(name, n)
        return _Z * math.sqrt(share * (1 - share) / self.sweep_count(n))

    def _counts(self, n: int, runs: int) -> dict[str, int]:
        counts = dict.fromkeys(self.rule_names, 0)
        for sweeps in simulate_sweeps(self.assumed, n, runs // BATCH):
            every = np.ones(BATCH, bool)
            for rule, parameters in self.rules:
                passed = rule.simulate(parameters, sweeps)
                counts[rule.name] += int(passed.sum())
                every &= passed
            counts[POLICY] += int(every.sum())
        return counts
