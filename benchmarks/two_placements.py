"""How often the gap's interval holds the true gap of two placements, by enumeration of all outcomes.

    python benchmarks/two_placements.py [--quick] [--write]

What matters of n examples is how many are right at the first placement only and at the second only. So the chance of
every outcome is known, and nothing is simulated: a share of `gap + fewer` is right at the better placement only, and
`fewer` at the other only.

The last line is JSON: the lowest coverage by the number of examples, in percent.
"""

import argparse
from itertools import product
from typing import NamedTuple

import numpy as np
from report import conclude
from scipy import stats

from posgap.foundation.tables import markdown
from posgap.measurement.statistics import gap_interval

NUMBERS = (20, 25, 40, 50, 100, 200)
GAPS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
FEWER = (0.0, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3)


class Missed(NamedTuple):
    """How often (0 to 1) the interval ends below the true gap, and begins above it."""

    below: float
    above: float

    @property
    def coverage(self) -> float:
        return 1 - self.below - self.above


def intervals(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Every outcome of n examples, as counts [K, 3] of those right at the first placement only, at the second only and
    alike at both, and the gap's interval [K, 2] of each, in points."""
    counts = np.array([(more, fewer, n - more - fewer) for more in range(n + 1) for fewer in range(n + 1 - more)])
    found: dict[tuple[int, int], tuple[float, float]] = {}
    for more, fewer, alike in counts.tolist():
        key = max(more, fewer), min(more, fewer)
        if key not in found:
            found[key] = gap_interval(np.repeat([[1.0, 0], [0, 1], [1, 1]], [*key, alike], axis=0))
    return counts, np.array([found[max(more, fewer), min(more, fewer)] for more, fewer, _ in counts.tolist()])


def missed(counts: np.ndarray, ends: np.ndarray, gap: float, fewer: float) -> Missed:
    chances = stats.multinomial.pmf(counts, counts[0].sum(), [gap + fewer, fewer, 1 - gap - 2 * fewer])
    return Missed(*(float(chances[at].sum()) for at in (ends[:, 1] < 100 * gap - 1e-9, ends[:, 0] > 100 * gap + 1e-9)))


def coverage(n: int) -> dict[tuple[float, float], Missed]:
    """By gap and share right at the worse placement only (`GAPS`, `FEWER`)."""
    counts, ends = intervals(n)
    return {each: missed(counts, ends, *each) for each in product(GAPS, FEWER)}


def shown(of_gap: list[Missed]) -> str:
    lowest = min(each.coverage for each in of_gap)
    figures = (lowest, max(each.below for each in of_gap), max(each.above for each in of_gap))
    return " · ".join(f"{100 * each:.1f}" for each in figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few examples")
    parser.add_argument("--write", action="store_true", help="put the table into docs/statistics.md")
    options = parser.parse_args()
    found = {n: coverage(n) for n in (NUMBERS[:2] if options.quick else NUMBERS)}
    rows = [[f"{100 * gap:g}", *(shown([found[n][gap, fewer] for fewer in FEWER]) for n in found)] for gap in GAPS]
    table = markdown(["true gap", *(f"n = {n}" for n in found)], rows)
    lowest = {str(n): round(100 * min(each.coverage for each in of.values()), 2) for n, of in found.items()}
    text = (
        "By `benchmarks/two_placements.py --write`: the lowest coverage in percent, and in how many percent at most "
        "the upper end is too low and the lower end too high, over eight shares (0 to 30 %) right at the worse only."
    )
    conclude("two", text, [table], {"lowest": lowest}, options.write, page="statistics")


if __name__ == "__main__":
    main()
