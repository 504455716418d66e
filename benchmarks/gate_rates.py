"""How often the gate admits, refuses, or cannot tell: simulated models under the rules a gate applies by default.

    python benchmarks/gate_rates.py [--quick] [--write] [--runs 300]

An example's difficulty is normal with standard deviation 2 on the logit scale, four fifths of its variance common to
candidate and base; given the difficulty, outcomes are independent. The base is right in `mean` of the examples at
both ends and 30 points less often in the middle. The candidates:

- flat: as good as the base at its best, everywhere; it ought to be admitted;
- equal: the same beside a champion that is as good everywhere;
- hole: the same but for one placement, which is worse by exactly the gap that the rule allows;
- U: the base's curve;
- random: never right, and its base never either.

The last line is JSON: the lowest and highest share of flat models admitted, and the highest of each other kind.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
from report import conclude
from scipy import special

from posgap.foundation.tables import markdown
from posgap.gating.config import GateConfig
from posgap.gating.rules import Case, Ruling
from posgap.gating.verdict import asked_rules, outcome_of
from posgap.tasks.registry import TASKS

SPREAD, COMMON = 2.0, 0.8
KINDS = ("flat", "equal", "hole", "U", "random")


class Cell(NamedTuple):
    kind: str
    mean: float
    placements: int
    gap: float


@cache
def location(mean: float) -> float:
    """The mean on the logit scale of a difficulty with which a model is right so often."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    at = np.linspace(-15, 15, 6001)
    return float(np.interp(mean, special.expit(at[:, None] + SPREAD * nodes) @ weights / weights.sum(), at))


def curve(cell: Cell) -> np.ndarray:
    """How often the candidate is right at each placement [P]."""
    if cell.kind == "random":
        return np.zeros(cell.placements)
    if cell.kind == "U":
        return u_shaped(cell)
    accuracy = np.full(cell.placements, cell.mean)
    if cell.kind == "hole":
        accuracy[cell.placements // 2] -= cell.gap / 100
    return accuracy


def u_shaped(cell: Cell) -> np.ndarray:
    ends = np.linspace(-1, 1, cell.placements) ** 2
    return np.zeros(cell.placements) if cell.kind == "random" else cell.mean - 0.3 * (1 - ends)


def outcomes(accuracy: np.ndarray, common: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rights and wrongs [E, P] of a model, of examples whose common difficulty is `common [E]`."""
    if not accuracy.any():
        return np.zeros((len(common), len(accuracy)))
    own = rng.standard_normal(len(common))
    difficulty = SPREAD * (np.sqrt(COMMON) * common + np.sqrt(1 - COMMON) * own)
    at = np.array([location(round(float(share), 4)) for share in accuracy])
    return (rng.random((len(common), len(accuracy))) < special.expit(at + difficulty[:, None])).astype(float)


def evidence(correct: np.ndarray) -> SimpleNamespace:
    """What the rules look at of a sweep: the scores, and what was asked."""
    placements = [[position + 1] for position in range(correct.shape[1])]
    return SimpleNamespace(
        correct=correct,
        baselines={},
        sweep=SimpleNamespace(
            task="qa", asked_task=TASKS["qa"], n_docs=len(placements), placements=placements, filled=None
        ),
    )


def rulings(cell: Cell, n: int, rng: np.random.Generator) -> list[Ruling]:
    """The rules' rulings on a simulated candidate, on n examples."""
    common = rng.standard_normal(n)
    candidate, base = (evidence(outcomes(of(cell), common, rng)) for of in (curve, u_shaped))
    champion = evidence(outcomes(curve(cell), common, rng)) if cell.kind == "equal" else None
    # Every simulated prompt has an answer, and none is a copy.
    config = GateConfig(candidate="-", base="-", out="-", max_gap=cell.gap, max_unanswered=100, max_unclean=100)
    case = Case(candidate, base, champion)
    return [rule.judge(parameters, case) for rule, parameters in asked_rules(config)]


def cells(quick: bool) -> Iterator[Cell]:
    if quick:
        yield from (Cell(kind, 0.0 if kind == "random" else 0.9, 20, 10.0) for kind in KINDS)
        return
    for kind, placements, gap in product(("flat", "hole"), (10, 20), (10.0, 5.0)):
        yield from (Cell(kind, mean, placements, gap) for mean in (0.97, 0.9, 0.7))
    yield from (Cell(kind, mean, 20, 10.0) for kind in ("equal", "U") for mean in (0.97, 0.9, 0.7))
    yield Cell("random", 0.0, 20, 10.0)


def rates(cell: Cell, n: int, runs: int) -> Counter:
    """How many of the runs ended in each outcome, and in how many the gap rule passed."""
    rng = np.random.default_rng([n, cell.placements, int(1000 * cell.mean), int(cell.gap), KINDS.index(cell.kind)])
    judged = [rulings(cell, n, rng) for _ in range(runs)]
    return Counter(map(outcome_of, judged)) + Counter(rule.name for rules in judged for rule in rules if rule.passed)


def table(counted: dict[tuple[Cell, int], Counter], numbers: tuple[int, ...], shown: Callable[[Counter], str]) -> str:
    """A row a cell of 20 placements, a column a number of examples; the last line sums up holes and 10 placements."""
    rows = [
        [
            cell.kind,
            f"{cell.mean:g}",
            str(cell.placements),
            f"{cell.gap:g}",
            *(shown(counted[cell, n]) for n in numbers),
        ]
        for cell in dict.fromkeys(cell for cell, _ in counted)
        if cell.kind != "hole" and cell.placements == 20
    ]
    return markdown(["candidate", "mean", "placements", "gap allowed", *(f"n = {n}" for n in numbers)], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few models: under a minute on two cores")
    parser.add_argument("--write", action="store_true", help="put the table into docs/statistics.md")
    parser.add_argument("--runs", type=int, default=300)
    arguments = parser.parse_args()
    runs = 40 if arguments.quick else arguments.runs
    numbers = (100, 300) if arguments.quick else (100, 200, 300, 500, 1000)
    counted = {(cell, n): rates(cell, n, runs) for cell, n in product(cells(arguments.quick), numbers)}

    def shown(outcomes: Counter) -> str:
        return " · ".join(f"{outcomes[name] / runs:.2f}" for name in ("admitted", "gap", "refused"))

    admitted = {
        kind: [outcomes["admitted"] / runs for (cell, _), outcomes in counted.items() if cell.kind == kind]
        for kind in KINDS
    }
    figures = {"runs": runs, "flat": [min(admitted["flat"]), max(admitted["flat"])]}
    figures |= {kind: max(admitted[kind]) for kind in KINDS[1:]}
    text = f"""
## How often the gate errs

Written by `benchmarks/gate_rates.py --write` on {{date}}: {runs} simulated models a cell, under the default rules but
for the gap that is allowed. A cell has the shares of models that were admitted, that passed the gap rule alone, and
that were refused; of the rest there was not enough evidence. A flat model is everywhere as good as its U-shaped base at
its best, and an equal one has a champion beside it that is as good. A hole is a single placement that is worse by
exactly the gap allowed: of all models that must not pass the hardest to see. A random model and its base are never
right. The last line has the lowest and highest share of flat models admitted, and the highest of each other kind, over
10 and 20 placements.
"""
    conclude("rates", text, [table(counted, numbers, shown)], figures, arguments.write, page="statistics")


if __name__ == "__main__":
    main()
