"""Whether `posgap plan gate` keeps its word: how often models are admitted with the number of examples it names.

    python benchmarks/gate_plan.py [--quick] [--write] [--runs 400]

The plan draws chances to be right from a beta distribution. The models here are others: difficulties are normal on the
logit scale, with location, spread and correlation of two models for which mean, correlation of placements and agreement
of models are those of the plan. The gate's own rules judge every model, beside a champion that is as good. In the rows
of AR(1) neighbouring placements are more alike than distant ones, which no plan knows: rights and wrongs are thresholds
of normal numbers, and the plan is told the mean correlation.

Then models are looked at twice: the first sweep is too small, the gate names the number for a second look, from what
that sweep shows, and the second sweep is judged with a quarter of the error.

The last line is JSON: the lowest and the highest share admitted, where 0.8 is planned, without and with AR(1), and at a
second look.
"""

import argparse
from collections.abc import Iterator
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
from gate_rates import evidence
from report import conclude
from scipy import optimize, special, stats

from posgap.foundation.tables import markdown
from posgap.gating.demands import Policy
from posgap.gating.passing import POLICY, Passing
from posgap.gating.rules import Case
from posgap.gating.verdict import LATER, asked_rules, examples_needed, outcome_of
from posgap.measurement.power import USUAL, Assumed, assumed_of_pair

AGREEMENT = 0.8
POLICY_OF_ALL = Policy(max_unanswered=100, max_unclean=100)  # every simulated prompt has an answer
NORMAL = special.ndtri((np.arange(2000) + 0.5) / 2000)


class Cell(NamedTuple):
    mean: float
    correlation: float
    placements: int
    neighbours: bool = False


LOOKS = ((Cell(0.9, 0.5, 5), 150), (Cell(0.9, 0.5, 20), 150), (Cell(0.7, 0.5, 10), 300), (Cell(0.97, 0.5, 10), 100))


@cache
def logit_normal(mean: float, correlation: float) -> tuple[float, float, float]:
    """Location and spread of difficulties with this mean and correlation, and how two models' difficulties correlate
    where their chances do by `AGREEMENT`."""

    def location(spread: float) -> float:
        return optimize.brentq(lambda at: special.expit(at + spread * NORMAL).mean() - mean, -300, 300)

    def excess(spread: float) -> float:
        return special.expit(location(spread) + spread * NORMAL).var() - correlation * mean * (1 - mean)

    spread = optimize.brentq(excess, 0.01, 80)
    at, normal = location(spread), NORMAL[::4]
    chances = special.expit(at + spread * normal)

    def apart(together: float) -> float:
        others = special.expit(at + spread * (together * normal[:, None] + np.sqrt(1 - together**2) * normal))
        return (chances[:, None] * others).mean() - chances.mean() ** 2 - AGREEMENT * chances.var()

    return at, spread, optimize.brentq(apart, 0.5, 0.9999)


def pair(cell: Cell, n: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """Rights and wrongs [n, P] of a model and of its champion."""
    if cell.neighbours:
        yield from neighbours(cell, n, rng)
        return
    at, spread, together = logit_normal(cell.mean, cell.correlation)
    common, *own = rng.standard_normal((3, n, 1))
    for each in own:
        difficulty = np.sqrt(together) * common + np.sqrt(1 - together) * each
        yield (rng.random((n, cell.placements)) < special.expit(at + spread * difficulty)).astype(float)


def neighbours(cell: Cell, n: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """The same where the normal numbers behind outcomes correlate by the power of the placements' distance."""
    common, *own = rng.standard_normal((3, n, cell.placements))
    for each in own:
        latent = np.sqrt(0.9) * common + np.sqrt(0.1) * each
        for j in range(1, cell.placements):
            latent[:, j] = cell.correlation * latent[:, j - 1] + np.sqrt(1 - cell.correlation**2) * latent[:, j]
        yield (latent < stats.norm.ppf(cell.mean)).astype(float)


def assumed(cell: Cell) -> Assumed:
    """What the plan is told."""
    if not cell.neighbours:
        return Assumed(cell.placements, cell.mean, cell.correlation, AGREEMENT)
    return assumed_of_pair(*pair(cell, 40_000, np.random.default_rng(0)))


def admitted(cell: Cell, n: int, runs: int) -> float:
    """The share (0 to 1) of so many models that the gate admits."""
    rng, asked = np.random.default_rng([n, *map(ord, str(cell))]), asked_rules(POLICY_OF_ALL)
    cases = (Case(*map(evidence, pair(cell, n, rng))) for _ in range(runs))
    outcomes = [outcome_of([rule.judge(parameters, case) for rule, parameters in asked]) for case in cases]
    return outcomes.count("admitted") / runs


def second_look(cell: Cell, n: int, runs: int) -> tuple[list[int], float]:
    """The numbers of examples that a gate names after a first look at n of them, and the share (0 to 1) of models that
    it admits on so many more. Models that the first look admits or refuses are not asked again."""
    rng, asked = np.random.default_rng([n, *map(ord, str(cell))]), asked_rules(POLICY_OF_ALL)
    named, outcomes = [], []
    while len(named) < runs:
        first = Case(*map(evidence, pair(cell, n, rng)))
        if outcome_of([rule.judge(parameters, first) for rule, parameters in asked]) != "not enough evidence":
            continue
        if number := examples_needed(asked, first, LATER)(POLICY):
            second = Case(*map(evidence, pair(cell, number, rng)), share=LATER)
            named.append(number)
            outcomes.append(outcome_of([rule.judge(parameters, second) for rule, parameters in asked]))
    return named, outcomes.count("admitted") / runs


def cells(quick: bool) -> Iterator[Cell]:
    if quick:
        yield from (Cell(0.97, 0.6, 2), Cell(0.9, 0.3, 5))
        return
    yield from (Cell(*each) for each in product((0.7, 0.9, 0.97), (0.3, 0.6, 0.9), (2, 5, 10, 20)))
    yield from (Cell(mean, 0.9, placements, True) for mean, placements in product((0.7, 0.9, 0.97), (5, 20)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two cells of few models")
    parser.add_argument("--write", action="store_true", help="put the table into docs/statistics.md")
    parser.add_argument("--runs", type=int, default=400, help="simulated models a cell")
    options = parser.parse_args()
    runs, found = 100 if options.quick else options.runs, {}
    for cell in cells(options.quick):
        passing = Passing(asked_rules(POLICY_OF_ALL), assumed(cell))
        n = passing.least(POLICY, USUAL)
        found[cell] = n, admitted(cell, n, runs)
        print(*cell, *found[cell], flush=True)
    again = LOOKS[:1] if options.quick else LOOKS
    looked = {(cell, n): second_look(cell, n, 20 if options.quick else runs // 4) for cell, n in again}
    rows = [
        [
            f"{cell.mean:g}",
            f"{cell.correlation:g}{' (AR(1))' if cell.neighbours else ''}",
            str(cell.placements),
            str(n),
            f"{100 * share:.0f} %",
        ]
        for cell, (n, share) in found.items()
    ]
    shares = {
        shape: [share for cell, (_, share) in found.items() if cell.neighbours == (shape == "AR(1)")]
        for shape in ("exchangeable", "AR(1)")
    }
    shares["second look"] = [share for _, share in looked.values()]
    figures = {"runs": runs} | {shape: [min(each), max(each)] for shape, each in shares.items() if each}
    table = markdown(["mean", "correlation", "placements", "examples planned", "admitted"], rows)
    columns = ["mean", "correlation", "placements", "examples at first", "named for a second look", "admitted then"]
    seconds = [
        [
            f"{cell.mean:g}",
            f"{cell.correlation:g}",
            str(cell.placements),
            str(n),
            f"{np.median(named):.0f} ({min(named)} to {max(named)})",
            f"{100 * share:.0f} %",
        ]
        for (cell, n), (named, share) in looked.items()
    ]
    text = f"By `benchmarks/gate_plan.py --write` on {{date}}, {runs} models a row and {runs // 4} of a second look."
    conclude("plan", text, [table, "", markdown(columns, seconds)], figures, options.write, page="statistics")


if __name__ == "__main__":
    main()
