"""The simulations of docs/statistics.md, each of which writes its table there.

    python benchmarks/simulations.py NAME [--runs 400] [--write]
    python benchmarks/simulations.py --quick

NAME is one of

- two: how often the gap's interval holds the true gap of two placements. What matters of n examples is how many are
  right at the first placement only and at the second only, so the chance of every outcome is known, and nothing is
  simulated.
- flatness: how often tests of flatness refute it where it is true, and where it is not, under correlations of several
  shapes. Rights and wrongs, or scores between 0 and 1, of n examples at P placements are thresholds, or quantiles of a
  beta distribution, of normal numbers that are equally alike at any two placements (exchangeable) or more alike the
  nearer the placements are (AR(1), as measured on the demo's base: 0.75, 0.66, 0.60 at lags 1 to 3).
- rates: how often the gate admits, refuses, or cannot tell, under the rules that it applies by default. An example's
  difficulty is normal with standard deviation 2 on the logit scale, four fifths of its variance common to candidate and
  base; given the difficulty, outcomes are independent. The base is right in `mean` of the examples at both ends and 30
  points less often in the middle.
- power: how often the gate admits a candidate as good as its champion, by its defaults and by those of before
  28 November 2026 (a mean that loses 2 points, 5 where the champion is best, and Tango's bound with effective counts).
  Chances are drawn as by `plan`, with a correlation of 0.5 and an agreement of 0.8. Then how often bounds of paired
  differences are wrong that few large losses oppose to many small gains.
- looks: what it costs to go on by looks (`most_examples`), on average, from 300 examples on. The number for the next
  look is the plan's, of a flat model.
- plan: how often models are admitted with the number of examples that `posgap plan gate` names, whose models are drawn
  from a beta distribution. The models here are others: difficulties are normal on the logit scale, with location,
  spread and correlation of two models for which mean, correlation of placements and agreement of models are those of
  the plan. In the rows of AR(1) neighbouring placements are more alike than distant ones, which no plan knows. Then
  models are looked at twice: the gate names the number for a second look from a first sweep that is too small.
- comparisons: how often comparisons of equal models, gaps of three placements, maps of lengths and references with
  missing answers are wrong for certain. Chances are drawn as by `power`; of a map by `flatness`'s, half alike.
- sample: what an order of lines, the dependence of two halves, and examples that hang together do to figures, as
  posgap took them until November 2026 (halves are every second row, every row counts) and as it takes them now.

The last line is JSON: of `--quick`, which tries a few cells of each, by name.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import product
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import scipy.stats
from report import write_table
from scipy import optimize, special

from posgap.foundation.tables import markdown
from posgap.gating.demands import Policy
from posgap.gating.passing import POLICY, PassRates
from posgap.gating.rules import GateInputs, Ruling
from posgap.gating.verdict import LATER, SMALLEST_STEP, asked_rules, examples_needed, outcome_of, share_of_error
from posgap.measurement.lengths import effective_length
from posgap.measurement.power import USUAL, Assumptions, assumptions_from_pair
from posgap.measurement.sample import Sample
from posgap.measurement.simulated_sweeps import SimulatedSweeps
from posgap.measurement.statistics import (
    EACH_END,
    LEVEL,
    difference_at_best_reaches,
    difference_reaches,
    extremes_elsewhere,
    flatness_p,
    gap_difference,
    gap_ends_by,
    gap_interval,
    mean_interval,
    pair_bounds,
    paired_difference,
    placement_differences,
    tango_refutes,
)
from posgap.options.gate import GateConfig
from posgap.tasks.registry import TASKS

Simulated = tuple[str, dict[str, Any]]  # the page's section, and figures

# The gap of two placements

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
    chances = scipy.stats.multinomial.pmf(counts, counts[0].sum(), [gap + fewer, fewer, 1 - gap - 2 * fewer])
    return Missed(*(float(chances[at].sum()) for at in (ends[:, 1] < 100 * gap - 1e-9, ends[:, 0] > 100 * gap + 1e-9)))


def coverage(n: int) -> dict[tuple[float, float], Missed]:
    """By gap and share right at the worse placement only (`GAPS`, `FEWER`)."""
    counts, ends = intervals(n)
    return {each: missed(counts, ends, *each) for each in product(GAPS, FEWER)}


def shown(of_gap: list[Missed]) -> str:
    lowest = min(each.coverage for each in of_gap)
    figures = (lowest, max(each.below for each in of_gap), max(each.above for each in of_gap))
    return " · ".join(f"{100 * each:.1f}" for each in figures)


def two(quick: bool, runs: int) -> Simulated:
    """The coverage of two placements: its table, and the lowest by the number of examples, in percent."""
    found = {n: coverage(n) for n in (NUMBERS[:2] if quick else NUMBERS)}
    rows = [[f"{100 * gap:g}", *(shown([found[n][gap, fewer] for fewer in FEWER]) for n in found)] for gap in GAPS]
    lowest = {str(n): round(100 * min(each.coverage for each in of.values()), 2) for n, of in found.items()}
    text = (
        "By `benchmarks/simulations.py two --write`: the lowest coverage in percent, and in how many percent at most "
        "the upper end is too low and the lower end too high, over eight shares (0 to 30 %) right at the worse only."
    )
    return f"{text}\n\n{markdown(['true gap', *(f'n = {n}' for n in found)], rows)}", {"lowest": lowest}


# Flatness

SHAPES = {"exchangeable 0.5": 0.5, "AR(1) 0.6": 0.6, "AR(1) 0.9": 0.9, "exchangeable 0.9": 0.9}
SCORES = {"0.5": (0.5, True), "0.9": (0.9, True), "0.97": (0.97, True), "0.9, graded": (0.9, False)}


def simulated(accuracy: np.ndarray, n: int, shape: str, binary: bool, rng: np.random.Generator) -> np.ndarray:
    """Scores `[n, P]` of a model with this `accuracy [P]` (shares)."""
    own, correlation = rng.standard_normal((n, len(accuracy))), SHAPES[shape]
    if shape.startswith("exchangeable"):
        latent = np.sqrt(correlation) * rng.standard_normal((n, 1)) + np.sqrt(1 - correlation) * own
    else:
        latent = own
        for j in range(1, len(accuracy)):
            latent[:, j] = correlation * latent[:, j - 1] + np.sqrt(1 - correlation**2) * own[:, j]
    quantiles = scipy.stats.norm.cdf(latent)
    return (
        (quantiles < accuracy).astype(float)
        if binary
        else scipy.stats.beta.ppf(quantiles, 3 * accuracy, 3 - 3 * accuracy)
    )


def cochran(correct: np.ndarray) -> float:
    within, df = ((correct - correct.mean(axis=1, keepdims=True)) ** 2).sum(), correct.shape[1] - 1
    totals = correct.sum(axis=0)
    return scipy.stats.chi2.sf(df * ((totals - totals.mean()) ** 2).sum() / within, df) if within else 1.0


TESTS = {"flips": flatness_p, "Q": cochran}


def unevenness(placements: int) -> Iterator[tuple[str, np.ndarray]]:
    """Names and deviations `[P]` from the mean of a flat model and of three others."""
    at = np.linspace(-1, 1, placements)
    yield "flat", np.zeros(placements)
    yield "U", 0.1 * (at**2 - (at**2).mean())
    yield "hole", np.where(np.arange(placements) == placements // 2, -0.15, 0.0)
    yield "falling", -0.07 * at


def flatness(quick: bool, runs: int) -> Simulated:
    """The largest share (in percent) of flat models that each test calls uneven at the 5 % level, and the mean power of
    each over the models that are not flat."""
    numbers, sizes = ((50,), (5, 20)) if quick else ((20, 50, 200), (2, 5, 20, 50))
    shares: dict[tuple[str, str, str], list[np.ndarray]] = {}
    for cell, ((shape, scores), n, placements) in enumerate(product(product(SHAPES, SCORES), numbers, sizes)):
        mean, binary = SCORES[scores]
        for name, deviations in unevenness(placements):
            if name != "flat" and (mean > 0.9 or not binary or placements < 3):
                continue
            rng, found = np.random.default_rng(cell), []
            for _ in range(runs):
                correct = simulated(mean + deviations, n, shape, binary, rng)
                found.append([test(correct) for test in TESTS.values()])
            known = (~np.isnan(found)).sum(axis=0)
            refuted = 100 * (np.array(found) < LEVEL).sum(axis=0) / np.where(known, known, np.nan)
            shares.setdefault((name, shape, scores), []).append(refuted)
    flat = {key: np.nanmax(each, axis=0) for key, each in shares.items() if key[0] == "flat"}
    power = {key: np.nanmean(each, axis=0) for key, each in shares.items() if key[0] != "flat"}
    rows = [[*key, *(f"{share:.1f}" for share in each)] for key, each in (flat | power).items()]
    largest, average = np.max(list(flat.values()), axis=0), np.mean(list(power.values()), axis=0)
    figures = {"runs": runs}
    for name, of_tests in (("size", largest), ("power", average)):
        figures[name] = dict(zip(TESTS, of_tests.round(1).tolist()))
    return markdown(["model", "correlation", "mean", *TESTS], rows, left=3), figures


# How often the gate errs

SPREAD, COMMON = 2.0, 0.8
KINDS = ("flat", "equal", "hole", "U", "random")


class Gated(NamedTuple):
    """Models of a kind: flat, as good as the base at its best; equal, beside a champion that is as good; hole, worse at
    one placement by exactly the gap that the rule allows; U, as the base; random, never right, and neither its base."""

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


def curve(cell: Gated) -> np.ndarray:
    """How often the candidate is right at each placement [P]."""
    if cell.kind == "random":
        return np.zeros(cell.placements)
    if cell.kind == "U":
        return u_shaped(cell)
    accuracy = np.full(cell.placements, cell.mean)
    if cell.kind == "hole":
        accuracy[cell.placements // 2] -= cell.gap / 100
    return accuracy


def u_shaped(cell: Gated) -> np.ndarray:
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
        gains_over=lambda reference: correct - reference.correct,
        baselines={},
        sweep=SimpleNamespace(
            task="qa", asked_task=TASKS["qa"], n_docs=len(placements), placements=placements, filled=None
        ),
    )


def rulings(cell: Gated, n: int, rng: np.random.Generator) -> list[Ruling]:
    """The rules' rulings on a simulated candidate, on n examples."""
    common = rng.standard_normal(n)
    candidate, base = (evidence(outcomes(of(cell), common, rng)) for of in (curve, u_shaped))
    champion = evidence(outcomes(curve(cell), common, rng)) if cell.kind == "equal" else None
    # Every simulated prompt has an answer, and none is a copy.
    config = GateConfig(candidate="-", base="-", out="-", max_gap=cell.gap, max_unanswered=100, max_unclean=100)
    case = GateInputs(candidate, base, champion)
    return [rule.judge(parameters, case) for rule, parameters in asked_rules(config)]


def gated(quick: bool) -> Iterator[Gated]:
    if quick:
        yield from (Gated(kind, 0.0 if kind == "random" else 0.9, 20, 10.0) for kind in KINDS)
        return
    for kind, placements, gap in product(("flat", "hole"), (10, 20), (10.0, 5.0)):
        yield from (Gated(kind, mean, placements, gap) for mean in (0.97, 0.9, 0.7))
    yield from (Gated(kind, mean, 20, 10.0) for kind in ("equal", "U") for mean in (0.97, 0.9, 0.7))
    yield Gated("random", 0.0, 20, 10.0)


def judged(cell: Gated, n: int, runs: int) -> Counter:
    """How many of the runs ended in each outcome, and in how many the gap rule passed."""
    rng = np.random.default_rng([n, cell.placements, int(1000 * cell.mean), int(cell.gap), KINDS.index(cell.kind)])
    counted = Counter[str]()
    for _ in range(runs):
        found = rulings(cell, n, rng)
        counted[outcome_of(found)] += 1
        counted.update(rule.name for rule in found if rule.passed)
    return counted


def rates(quick: bool, runs: int) -> Simulated:
    """The lowest and highest share of flat models admitted, and the highest of each other kind."""
    numbers = (100, 300) if quick else (100, 200, 300, 500, 1000)
    counted = {(cell, n): judged(cell, n, runs) for cell, n in product(gated(quick), numbers)}

    def shares_of(cell: Gated, n: int) -> str:
        return " · ".join(f"{counted[cell, n][name] / runs:.2f}" for name in ("admitted", "gap", "refused"))

    rows = [
        [cell.kind, f"{cell.mean:g}", str(cell.placements), f"{cell.gap:g}", *(shares_of(cell, n) for n in numbers)]
        for cell in dict.fromkeys(cell for cell, _ in counted)
        if cell.kind != "hole" and cell.placements == 20
    ]
    admitted: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for (cell, _), outcomes_of in counted.items():
        admitted[cell.kind].append(outcomes_of["admitted"] / runs)
    figures = {"runs": runs, "flat": [min(admitted["flat"]), max(admitted["flat"])]}
    figures |= {kind: max(admitted[kind]) for kind in KINDS[1:]}
    text = (
        f"By `benchmarks/simulations.py rates --write`, {runs} models a cell: shares admitted · within the allowed "
        "gap · refused; for the rest there is not enough evidence."
    )
    columns = ["candidate", "mean", "placements", "gap allowed", *(f"n = {n}" for n in numbers)]
    return f"{text}\n\n{markdown(columns, rows)}", figures


# How soon the gate says yes

BEFORE = {"mean": 2.0, "advantageous": 5.0, "gap": 10.0}
SHAPES_OF_GAP = {"slope": lambda at: at / 2, "hole": lambda at: np.where(np.arange(len(at)) == len(at) // 2, -1.0, 0.0)}
TOGETHER = 50  # simulated models in memory


class Powered(NamedTuple):
    """A candidate and a champion, both with this mean and this gap (in points), which has this shape."""

    placements: int
    mean: float
    gap: float
    shape: str = "slope"

    @property
    def accuracy(self) -> np.ndarray:
        deviations = self.gap / 100 * SHAPES_OF_GAP[self.shape](np.linspace(1, -1, self.placements))
        return self.mean + deviations - deviations.mean()


def pairs(cell: Powered, n: int, runs: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Rights and wrongs [n, R, P] of candidates and of their champions."""
    _, spread, together = logit_normal(cell.mean, 0.5)
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    at = np.linspace(-15, 15, 6001)
    places = np.interp(cell.accuracy, special.expit(at[:, None] + spread * nodes) @ weights / weights.sum(), at)
    common, found = rng.standard_normal((n, runs, 1)), []
    for _ in range(2):
        difficulty = np.sqrt(together) * common + np.sqrt(1 - together) * rng.standard_normal((n, runs, 1))
        chances = special.expit(places + spread * difficulty)
        found.append((rng.random(chances.shape) < chances).astype(np.float32))
    return found


def reached_before(differences: np.ndarray, least: float, error: float) -> np.ndarray:
    """What `difference_reaches` said until 28 November 2026: by Tango's bound on effective counts."""
    above, below = differences.clip(min=0).sum(axis=0), (-differences).clip(min=0).sum(axis=0)
    ratio = ((differences**2).sum(axis=0) + 0.5) / (above + below + 0.5)
    return tango_refutes(-least, below / ratio, above / ratio, len(differences) / ratio, error)


def passed_before(sweeps: SimulatedSweeps) -> dict[str, np.ndarray]:
    differences = sweeps.candidate - sweeps.reference
    means = differences.mean(axis=-1, dtype=float)
    least = -BEFORE["advantageous"] / 100
    return {
        "gap": gap_ends_by(sweeps.candidate, BEFORE["gap"] / 100, LEVEL),
        "mean": reached_before(means, -BEFORE["mean"] / 100, LEVEL),
        "advantageous": difference_at_best_reaches(differences, sweeps.reference, least, LEVEL),
    }


def passed_now(sweeps: SimulatedSweeps) -> dict[str, np.ndarray]:
    return {
        rule.name: rule.simulate(limits, sweeps) for rule, limits in asked_rules(POLICY_OF_ALL) if rule.is_simulated
    }


def shares_passed(cell: Powered, n: int, runs: int) -> dict[str, dict[str, float]]:
    """The shares of models that pass each rule and all, before and now, in percent."""
    rng = np.random.default_rng([n, cell.placements, int(100 * cell.mean), int(cell.gap), len(cell.shape)])
    counted: dict[str, Counter[str]] = {"before": Counter(), "now": Counter()}
    for _ in range(runs // TOGETHER):
        sweeps = SimulatedSweeps(*pairs(cell, n, TOGETHER, rng), LEVEL)
        for when, passed in (("before", passed_before(sweeps)), ("now", passed_now(sweeps))):
            counted[when].update({name: int(each.sum()) for name, each in passed.items()})
            counted[when]["all"] += int(np.all([*passed.values()], axis=0).sum())
    made = runs // TOGETHER * TOGETHER
    return {when: {name: 100 * number / made for name, number in each.items()} for when, each in counted.items()}


def small_gains(gain: float, loss: float = 0.0) -> Callable[[np.random.Generator, tuple[int, int]], np.ndarray]:
    """Draws differences of this mean loss (a share): this gain on most examples, and all lost on few."""
    return lambda rng, shape: np.where(rng.random(shape) < (gain + loss) / (1 + gain), -1.0, gain)


def half_gained(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    gains = np.where(rng.random(shape) < 0.5, 0.05, 0.0)
    return np.where(rng.random(shape) < (0.025 + 0.02) / 1.025, -1.0, gains)


SKEWED = (
    ("+0.02 on most, -1 on few, no loss on average: called better", small_gains(0.02), 60, 0.0, EACH_END),
    ("the same", small_gains(0.02), 100, 0.0, EACH_END),
    ("+0.05 on most, -1 on few, no loss on average: called better", small_gains(0.05), 40, 0.0, EACH_END),
    ("one of twenty positions gained, few questions lost, 2 points lost: loss of at most 2",
     small_gains(0.05, 0.02), 100, -0.02, LEVEL),
    ("the same", small_gains(0.05, 0.02), 500, -0.02, LEVEL),
    ("gained in half of the questions, 2 points lost: loss of at most 2", half_gained, 100, -0.02, LEVEL),
    ("the same", half_gained, 300, -0.02, LEVEL),
)  # fmt: skip


def power(quick: bool, runs: int) -> Simulated:
    """How many candidates as good as their champion are admitted, before and now, and the errors of skewed
    differences."""
    cells = [Powered(5, 0.9, gap) for gap in (0.0, 3.0, 5.0)] + [Powered(5, 0.9, 3.0, "hole")]
    cells += [Powered(20, 0.7, gap) for gap in (0.0, 5.0)]
    numbers = (100, 300) if quick else (100, 200, 300, 500, 1000)
    rows, figures = [], {"runs": runs}
    for cell in cells[:2] if quick else cells:
        kind = "flat" if not cell.gap else f"{cell.shape} of {cell.gap:g}"
        found = {n: shares_passed(cell, n, runs) for n in numbers}
        for when in ("before", "now"):
            shown = [" · ".join(f"{found[n][when][name]:.0f}" for name in ("all", *BEFORE)) for n in numbers]
            rows.append([kind, f"{cell.mean:g}", str(cell.placements), when, *shown])
        if cell.placements == 5:
            figures[f"{kind}, n = 300"] = [found[300][when]["all"] for when in ("before", "now")]
    columns = ["candidate and champion", "mean", "placements", "", *(f"n = {n}" for n in numbers)]
    errors = []
    for words, draw, n, least, error in SKEWED:
        differences = draw(np.random.default_rng([n, len(words)]), (n, 10 * runs))
        wrong = [100 * reach(differences, least, error).mean() for reach in (reached_before, difference_reaches)]
        errors.append([words, str(n), f"{100 * error:g}", *(f"{share:.1f}" for share in wrong)])
        figures["worst error"] = np.maximum(figures.get("worst error", [0, 0]), wrong).round(1).tolist()
    text = (
        f"By `benchmarks/simulations.py power --write`, {runs} candidates a cell: percent that pass all rules · "
        f"{' · '.join(BEFORE)}. *Before* is until 28 November 2026, with tolerances of 2 and 5 points."
    )
    skewed = markdown(["differences", "n", "asked, %", "wrong before, %", "now, %"], errors)
    return f"{text}\n\n{markdown(columns, rows, left=4)}\n\n{skewed}", figures


# What going on by looks costs

FIRST, MOST = 300, 2000  # examples


def broken(correct: np.ndarray, differences: np.ndarray, error: float) -> bool:
    """Whether one of the rules on gap and mean is broken for certain, of scores [n, P] and of differences [n]."""
    limits = Policy()
    if gap_interval(correct, error)[0] > limits.max_gap:
        return True
    return bool(difference_reaches(-differences, (limits.mean_tolerance + 1e-9) / 100, error))


def looked(cell: Powered, numbers: Sequence[int], runs: int) -> tuple[Counter[str], float]:
    """How often candidates are admitted, refused and left at the last number, and the examples that they took on
    average. Each look takes what the ones before took, and some more."""
    rng, counted, spent = np.random.default_rng([len(numbers), int(cell.gap), cell.placements]), Counter[str](), 0
    for _ in range(runs):
        candidate, reference = pairs(cell, numbers[-1], 1, rng)
        outcome = "undecided"
        for look, n in enumerate(numbers):
            error = LEVEL * share_of_error(look + 1, 1)
            sweeps = SimulatedSweeps(candidate[:n], reference[:n], error)
            if np.all([*passed_now(sweeps).values()]):
                outcome = "admitted"
            elif broken(candidate[:n, 0], (candidate - reference)[:n, 0].mean(axis=-1, dtype=float), error):
                outcome = "refused"
            if outcome != "undecided":
                break
        counted[outcome] += 1
        spent += n
    return counted, spent / runs


def looks(quick: bool, runs: int) -> Simulated:
    """Shares decided, and the average number of examples."""
    rows, figures = [], {"runs": runs}
    for placements, mean in ((5, 0.9),) if quick else ((5, 0.9), (20, 0.9)):
        numbers, asked = [FIRST], asked_rules(POLICY_OF_ALL)
        while numbers[-1] < MOST:
            assumed = Assumptions(placements, mean, 0.5, AGREEMENT, share_of_error(len(numbers) + 1, 1))
            wanted = PassRates(asked, assumed, 320).least(POLICY, USUAL) or MOST
            numbers.append(min(MOST, max(wanted, math.ceil(SMALLEST_STEP * numbers[-1]))))
        for gap in (0.0, 5.0, 20.0):
            cell = Powered(placements, mean, gap)
            for taken in (numbers[:1], numbers):
                counted, spent = looked(cell, taken, runs)
                shares = [f"{100 * counted[name] / runs:.0f}" for name in ("admitted", "refused", "undecided")]
                rows.append([f"{gap:g}" if gap else "flat", str(placements), " → ".join(map(str, taken)), *shares])
                rows[-1].append(f"{spent:.0f}")
        figures[f"looks at {placements} placements"] = numbers
    columns = ["gap", "placements", "looks", "admitted, %", "refused, %", "undecided, %", "examples on average"]
    text = f"By `benchmarks/simulations.py looks --write`, {runs} candidates a row, right in 90 % like their champions."
    return f"{text}\n\n{markdown(columns, rows, left=3)}", figures


# Several comparisons at once, lengths, and answers that are missing

SHAPE_OF_LENGTHS = "exchangeable 0.5"


def equal_models(cell: Powered, n: int, runs: int) -> dict[str, float]:
    """The shares (in percent) of equal models that `compare` calls different: anywhere, in the mean and in the gap."""
    rng = np.random.default_rng([n, cell.placements, int(cell.gap)])
    candidates, references = pairs(cell, n, runs, rng)
    wrong = Counter[str]()
    for run in range(runs):
        new, old = candidates[:, run], references[:, run]
        apart = placement_differences(new, old, cell.placements)
        intervals = {"mean": paired_difference(new, old)[1], "gap": gap_difference(new, old)[1]}
        wrong["a placement"] += bool(((apart[:, 0] > 0) | (apart[:, 1] < 0)).any())
        wrong.update({name: int(low > 0 or high < 0) for name, (low, high) in intervals.items()})
    return {name: 100 * wrong[name] / runs for name in ("a placement", "mean", "gap")}


def three_placements(gap: float, n: int, runs: int) -> Missed:
    """The gap's interval, of three placements of which the middle one is worse by `gap` points."""
    rng = np.random.default_rng([n, int(gap)])
    cell = Powered(3, 0.8, gap, "hole")
    drawn = pairs(cell, n, runs, rng)[0]
    ends = np.array([gap_interval(drawn[:, run]) for run in range(runs)])
    return Missed(float((ends[:, 1] < gap - 1e-9).mean()), float((ends[:, 0] > gap + 1e-9).mean()))


def lengths_missed(gaps: Sequence[float], n: int, runs: int) -> Missed:
    """The effective length's interval for gaps of at most 10 points, of a model with these gaps at lengths 1, 2, ..."""
    rng = np.random.default_rng([n, *map(int, gaps)])
    tokens = range(1, len(gaps) + 1)
    true = next((at for at, gap in enumerate(gaps) if gap > 10), len(gaps))
    found = []
    for _ in range(runs):
        scores = [simulated(Powered(5, 0.85, gap, "hole").accuracy, n, SHAPE_OF_LENGTHS, True, rng) for gap in gaps]
        found.append(effective_length(tokens, scores, 10))
    return Missed(
        sum(each.high < true for each in found) / runs,
        sum(each.low > true for each in found) / runs,
    )


def passed_with_missing(missing: float, n: int, runs: int) -> float:
    """How often (in percent) the rule `mean` passes a candidate that has lost its tolerance for certain, beside a
    champion of whose answers this share is missing, at random."""
    rng = np.random.default_rng([n, int(1000 * missing)])
    least = -Policy().mean_tolerance / 100
    better, worse = Powered(5, 0.9, 0.0), Powered(5, 0.9 + least, 0.0)
    wrong = 0
    for _ in range(runs // TOGETHER):
        state = rng.bit_generator.state
        references = pairs(better, n, TOGETHER, rng)[1]
        rng.bit_generator.state = state  # the same difficulties
        candidates = pairs(worse, n, TOGETHER, rng)[0]
        # As `Evidence.gains_over` says: what the reference left unanswered is no difference.
        differences = ((candidates - references) * (rng.random(references.shape) >= missing)).mean(axis=-1, dtype=float)
        wrong += int(difference_reaches(differences, least, LEVEL).sum())
    return 100 * wrong / (runs // TOGETHER * TOGETHER)


def comparisons(quick: bool, runs: int) -> Simulated:
    """How often each is wrong, by the number of examples."""
    numbers = (100,) if quick else (50, 100, 300)
    rows = []

    def both_ends(missed: Missed) -> str:
        return f"{100 * missed.below:.1f} · {100 * missed.above:.1f}"

    for cell in (Powered(5, 0.9, 5.0), Powered(20, 0.7, 10.0)):
        found = [equal_models(cell, n, runs) for n in numbers]
        for name in found[0]:
            shares = [f"{of_number[name]:.1f}" for of_number in found]
            rows.append([f"equal models, {cell.placements} placements: {name} differs", "5", *shares])
    for gap in (0.0, 10.0, 30.0):
        ends = [both_ends(three_placements(gap, n, runs)) for n in numbers]
        rows.append([f"three placements, gap of {gap:g}: upper end too low · lower end too high", "5 · 5", *ends])
    for gaps in ((0.0, 5.0, 10.1), (0.0, 10.1, 10.1), (10.0, 10.0, 10.0)):
        ends = [both_ends(lengths_missed(gaps, n, runs)) for n in numbers]
        words = ", ".join(f"{gap:g}" for gap in gaps)
        rows.append([f"lengths with gaps {words}: effective length's end too low · too high", "5 · 5", *ends])
    figures = {"runs": runs}
    for missing in (0.0, 0.01, 0.02):
        shares = [passed_with_missing(missing, n, runs) for n in numbers]
        lost = f"a loss of {Policy().mean_tolerance:g}"
        words = f"{lost} passes; the champion left {100 * missing:g} % unanswered"
        rows.append([words, "5", *(f"{share:.1f}" for share in shares)])
        figures[f"{missing:g} unanswered"] = shares
    text = f"By `benchmarks/simulations.py comparisons --write`, {runs} models or pairs a cell."
    columns = ["what is wrong, in %", "asked", *(f"n = {n}" for n in numbers)]
    return f"{text}\n\n{markdown(columns, rows)}", figures


# Whether a plan keeps its word

AGREEMENT = 0.8
POLICY_OF_ALL = Policy(max_unanswered=100, max_unclean=100)  # every simulated prompt has an answer
NORMAL = special.ndtri((np.arange(2000) + 0.5) / 2000)


class Cell(NamedTuple):
    mean: float
    correlation: float
    placements: int
    neighbours: bool = False


LOOKS = (
    (Cell(0.9, 0.5, 5), 150),
    (Cell(0.9, 0.5, 20), 150),
    (Cell(0.7, 0.5, 10), 300),
    (Cell(0.97, 0.5, 10), 100),
)


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
        yield (latent < scipy.stats.norm.ppf(cell.mean)).astype(float)


def assumed(cell: Cell) -> Assumptions:
    """What the plan is told."""
    if not cell.neighbours:
        return Assumptions(cell.placements, cell.mean, cell.correlation, AGREEMENT)
    return assumptions_from_pair(*pair(cell, 40_000, np.random.default_rng(0)))


def admitted(cell: Cell, n: int, runs: int) -> float:
    """The share (0 to 1) of so many models that the gate admits."""
    rng, asked = np.random.default_rng([n, *map(ord, str(cell))]), asked_rules(POLICY_OF_ALL)
    cases = (GateInputs(*map(evidence, pair(cell, n, rng))) for _ in range(runs))
    outcomes = [outcome_of([rule.judge(parameters, case) for rule, parameters in asked]) for case in cases]
    return outcomes.count("admitted") / runs


def second_look(cell: Cell, n: int, runs: int) -> tuple[list[int], float]:
    """The numbers of examples that a gate names after a first look at n of them, and the share (0 to 1) of models that
    it admits on so many more. Models that the first look admits or refuses are not asked again."""
    rng, asked = np.random.default_rng([n, *map(ord, str(cell))]), asked_rules(POLICY_OF_ALL)
    named, outcomes = [], []
    while len(named) < runs:
        first = GateInputs(*map(evidence, pair(cell, n, rng)))
        if outcome_of([rule.judge(parameters, first) for rule, parameters in asked]) != "not enough evidence":
            continue
        if number := examples_needed(asked, first, LATER)(POLICY):
            second = GateInputs(*map(evidence, pair(cell, number, rng)), share=LATER)
            named.append(number)
            outcomes.append(outcome_of([rule.judge(parameters, second) for rule, parameters in asked]))
    return named, outcomes.count("admitted") / runs


def planned(quick: bool) -> Iterator[Cell]:
    if quick:
        yield from (Cell(0.97, 0.6, 2), Cell(0.9, 0.3, 5))
        return
    yield from (Cell(*each) for each in product((0.7, 0.9, 0.97), (0.3, 0.6, 0.9), (2, 5, 10, 20)))
    yield from (Cell(mean, 0.9, placements, True) for mean, placements in product((0.7, 0.9, 0.97), (5, 20)))


def plan(quick: bool, runs: int) -> Simulated:
    """The lowest and the highest share admitted, where 0.8 is planned, without and with AR(1), and at a second look."""
    rows, shares = [], dict[str, list[float]]()
    for cell in planned(quick):
        n = PassRates(asked_rules(POLICY_OF_ALL), assumed(cell)).least(POLICY, USUAL)
        share = admitted(cell, n, runs)
        shares.setdefault("AR(1)" if cell.neighbours else "exchangeable", []).append(share)
        correlation = f"{cell.correlation:g}{' (AR(1))' if cell.neighbours else ''}"
        rows.append([f"{cell.mean:g}", correlation, str(cell.placements), str(n), f"{100 * share:.0f} %"])
    table = markdown(["mean", "correlation", "placements", "examples planned", "admitted"], rows)
    again = []
    for cell, n in LOOKS[:1] if quick else LOOKS:
        named, share = second_look(cell, n, max(1, runs // 4))
        shares.setdefault("second look", []).append(share)
        counts = f"{np.median(named):.0f} ({min(named)} to {max(named)})"
        again.append([f"{cell.mean:g}", f"{cell.correlation:g}", str(cell.placements), str(n), counts])
        again[-1].append(f"{100 * share:.0f} %")
    columns = ["mean", "correlation", "placements", "examples at first", "named for a second look", "admitted then"]
    text = f"By `benchmarks/simulations.py plan --write`, {runs} models a row and {runs // 4} of a second look."
    figures = {"runs": runs} | {shape: [min(each), max(each)] for shape, each in shares.items()}
    return f"{text}\n\n{table}\n\n{markdown(columns, again)}", figures


# What counts as a draw, and what does not

Change = tuple[float, tuple[float, float]]
CONCENTRATION = 3.0  # of the beta distribution of a document's chances


def difference_by_rows(candidate: np.ndarray, reference: np.ndarray) -> Change:
    """The change of gap with its interval, where every second row makes a half and halves count as independent."""
    half, rows, held_out = np.arange(len(candidate)) % 2, np.arange(len(candidate)), []
    for scores in (candidate, reference):
        best, worst = extremes_elsewhere(scores, half)
        held_out.append(scores[rows, best] - scores[rows, worst])
    new, old = held_out
    ends = -np.nanmax(pair_bounds(reference, EACH_END, new)), np.nanmax(pair_bounds(candidate, EACH_END, old))
    return 100 * (max(0.0, new.mean()) - max(0.0, old.mean())), ends


def difference_by_content(candidate: np.ndarray, reference: np.ndarray) -> Change:
    """The change of gap of rows that stand in any order: their scores stand for their contents."""
    sample = Sample([str(row.tolist()) + f"{at:04}" for at, row in enumerate(np.hstack([candidate, reference]))])
    return gap_difference(sample.average(candidate), sample.average(reference))


def of_documents(accuracy: np.ndarray, documents: int, questions: int, rng: np.random.Generator) -> np.ndarray:
    """Rights and wrongs [documents * questions, P]: a document's chances at the placements are its questions'."""
    chances = rng.beta(CONCENTRATION * accuracy, CONCENTRATION * (1 - accuracy), (documents, len(accuracy)))
    return (
        (rng.random((documents, questions, len(accuracy))) < chances[:, None]).astype(float).reshape(-1, len(accuracy))
    )


def moved(change: Callable[[np.ndarray, np.ndarray], Change], runs: int) -> tuple[float, float]:
    """By how many points eight orders of 100 examples move the change of gap at most, and in what share of data sets
    they move whether it is told from 0."""
    rng, spans, flips = np.random.default_rng(0), [], 0
    for _ in range(runs):
        old, new = (
            of_documents(accuracy, 100, 1, rng) for accuracy in (np.array([0.8, 0.6, 0.6, 0.6, 0.75]), np.full(5, 0.8))
        )
        found = [change(new[order], old[order]) for order in map(rng.permutation, [100] * 8)]
        spans.append(np.ptp([estimate for estimate, _ in found]))
        flips += len({high < 0 for _, (_, high) in found}) > 1
    return max(spans), flips / runs


def too_low(change: Callable[[np.ndarray, np.ndarray], Change], placements: int, runs: int) -> float:
    """How often the upper end of the change of gap is too low, where the candidate's gap is 30 and the base is flat."""
    rng, missed, accuracy = np.random.default_rng(1), 0, np.full(placements, 0.9)
    accuracy[0] = 0.6
    for _ in range(runs):
        new, old = (of_documents(each, 100, 1, rng) for each in (accuracy, np.full(placements, 0.6)))
        missed += change(new, old)[1][1] < 30 - 1e-9
    return missed / runs


def grouped(documents: int, questions: int, runs: int) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """How often a flat model is called uneven, a mean's interval misses, and a gap of 10 passes for at most 10, where
    every example counts, and where every document does."""
    contents = [f"{at:04}" for at in range(documents * questions)]
    sample = Sample(contents, [contents[at : at + questions] for at in range(0, len(contents), questions)])
    wrong, rng = np.zeros((2, 3)), np.random.default_rng(2)
    for _ in range(runs):
        flat, uneven = (
            of_documents(accuracy, documents, questions, rng) for accuracy in (np.full(5, 0.8), np.array([0.8, 0.7]))
        )
        for at, (of_flat, of_uneven) in enumerate(((flat, uneven), (sample.average(flat), sample.average(uneven)))):
            low, high = mean_interval(of_flat.mean(axis=1))
            wrong[at] += flatness_p(of_flat) < LEVEL, not low <= 80 <= high, gap_interval(of_uneven)[1] <= 10
    names = ("called uneven", "mean missed", "gap of 10 passed")
    return tuple(dict(zip(names, of_way)) for of_way in (wrong / runs).round(3).tolist())


def sample(quick: bool, runs: int) -> Simulated:
    """What moved or erred before, and now."""
    ways, rows, figures = (difference_by_rows, difference_by_content), [], dict[str, Any]()
    spans = [moved(way, max(4, runs // 20)) for way in ways]
    figures["points that an order moves"] = [round(span, 1) for span, _ in spans]
    figures["share of data sets whose verdict an order moves"] = [round(share, 2) for _, share in spans]
    for placements in (2,) if quick else (2, 3, 5):
        found = [round(too_low(way, placements, runs), 3) for way in (difference_by_rows, gap_difference)]
        figures[f"upper end too low at {placements} placements, 0.025 asked"] = found
    for documents, questions in ((20, 10),) if quick else ((20, 10), (40, 5), (200, 1)):
        before, now = grouped(documents, questions, runs)
        for name in before:
            figures[f"{documents} documents with {questions} questions: {name}"] = [before[name], now[name]]
    for name, (before, now) in figures.items():
        rows.append([name, f"{before:g}", f"{now:g}"])
    text = f"By `benchmarks/simulations.py sample --write`, {runs} data sets a row."
    return f"{text}\n\n{markdown(['what', 'before', 'now'], rows)}", {"runs": runs, **figures}


SIMULATIONS: dict[str, tuple[Callable[[bool, int], Simulated], int]] = {  # and how many runs a cell `--quick` has
    "two": (two, 1),
    "flatness": (flatness, 20),
    "rates": (rates, 30),
    "power": (power, 100),
    "looks": (looks, 10),
    "plan": (plan, 40),
    "comparisons": (comparisons, 50),
    "sample": (sample, 60),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*SIMULATIONS, []], metavar="NAME", help=", ".join(SIMULATIONS))
    parser.add_argument("--quick", action="store_true", help="a few cells of each: under a minute on two cores")
    parser.add_argument("--write", action="store_true", help="keep the tables, for `make tables`")
    parser.add_argument("--runs", type=int, default=400, help="simulated models a cell")
    options = parser.parse_args()
    all_figures = {}
    for name in options.names or SIMULATIONS:
        work, few = SIMULATIONS[name]
        section, figures = work(options.quick, few if options.quick else options.runs)
        if options.write:
            json_line = "" if name == "flatness" else f"\n\n`{json.dumps(figures)}`"
            write_table(name, section + json_line)
        else:
            print(section)
        all_figures[name] = figures
    print(json.dumps(all_figures))


if __name__ == "__main__":
    main()
