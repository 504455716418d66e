"""How often a flat model passes each rule, from the variances that its outcomes' covariance matrix gives."""

from types import SimpleNamespace

import numpy as np
import pytest

from posgap.gating.demands import Policy
from posgap.gating.rules import Case
from posgap.gating.verdict import asked_rules
from posgap.measurement import power
from posgap.measurement.power import Assumed, assumed_of_pair
from posgap.tasks.registry import TASKS

ASSUMED = Assumed(placements=7, mean=0.8, correlation=0.3, agreement=0.6)
PAIR = Assumed(placements=2, mean=0.6, correlation=0.2, agreement=0.5)


def covariance(assumed: Assumed) -> np.ndarray:
    """Covariance `[2 P, 2 P]` of the outcomes of an example at P placements, of one model and of another."""
    p, total = assumed.placements, assumed.mean * (1 - assumed.mean)
    of_one_model = np.full((p, p), assumed.correlation * total)
    of_two = assumed.agreement * of_one_model
    np.fill_diagonal(of_one_model, total)
    return np.block([[of_one_model, of_two], [of_two, of_one_model]])


def variance(assumed: Assumed, *weights: float) -> float:
    """Variance of the sum of these multiples of an example's outcomes."""
    weighted = np.pad(weights, (0, 2 * assumed.placements - len(weights)))
    return float(weighted @ covariance(assumed) @ weighted)


def between(assumed: Assumed, size: int) -> float:
    """Half the variance of the difference of the means over one and over another `size` placements of a model."""
    if 2 * size > assumed.placements:
        return variance(assumed, 1, -1) / 2
    return variance(assumed, *[1 / size] * size, *[-1 / size] * size) / 2


def pass_rate(assumed: Assumed, n: int, rule: str, **options) -> float:
    ((of_rule, parameters),) = [asked for asked in asked_rules(Policy(**options)) if asked[0].name == rule]
    rate = of_rule.pass_rate(parameters, assumed, n)
    assert 0.05 < rate < 0.95  # where it depends on everything
    return rate


@pytest.mark.parametrize(("assumed", "n"), [(ASSUMED, 180), (PAIR, 240)], ids=["seven", "two"])
def test_the_rate_of_passing_follows_from_the_covariance_of_outcomes(assumed, n):
    p = assumed.placements
    mean, each = [1 / p] * p, [0.0] * p
    expected = {
        ("gap", "max_gap", 12.0): power.flat_rate(n, 0.12, p, between(assumed, 1)),
        ("regions", "max_region_gap", 9.0): power.flat_rate(
            n, 0.09, 3, between(assumed, max(1, p // 3)), max(1, p // 3)
        ),
        ("mean", "mean_tolerance", 4.0): power.equal_rate(n, 0.04, variance(assumed, *mean, *np.negative(mean)), p),
        ("advantageous", "advantageous_tolerance", 7.0): power.equal_rate(n, 0.07, variance(assumed, 1, *each[1:], -1)),
        ("useful", "min_mean", 100 * assumed.mean - 6): power.above_rate(
            n, assumed.mean - 0.06, assumed.mean, variance(assumed, *mean)
        ),
        ("worst", "min_worst", 100 * assumed.mean - 9): power.above_rate(
            n, assumed.mean - 0.09, assumed.mean, variance(assumed, 1)
        )
        ** p,
    }
    for (rule, option, threshold), rate in expected.items():
        assert pass_rate(assumed, n, rule, **{option: threshold}) == pytest.approx(rate), rule


def correlated(n: int, placements: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Rights and wrongs [n, P] of two models: a common and an own difficulty of each example decide how often."""
    common, *own = rng.standard_normal((3, n, 1))
    return tuple(
        (rng.random((n, placements)) < 1 / (1 + np.exp(-3 - 1.8 * common - 0.9 * each))).astype(float) for each in own
    )


def evidence(correct: np.ndarray) -> SimpleNamespace:
    placements = [[at + 1] for at in range(correct.shape[1])]
    asked = {"task": "qa", "n_docs": len(placements), "placements": placements, "filled": None, "categories": []}
    return SimpleNamespace(correct=correct, sweep=SimpleNamespace(**asked, asked_task=TASKS["qa"]), baselines={})


@pytest.mark.parametrize("placements", [5, 16])
def test_rules_are_passed_as_often_as_is_planned(placements):
    """Of two models that are equally good, and find not quite the same examples hard."""
    rng, n, runs = np.random.default_rng(4), 250, 150
    assumed = assumed_of_pair(*correlated(60_000, placements, rng))
    # Of five placements the middle has three: the plan, which takes regions for equally large, is on the safe side.
    policy = Policy(max_gap=9, max_region_gap=5 if placements == 16 else 100, max_unanswered=100, max_unclean=100)
    rules = asked_rules(policy)
    cases = [Case(*map(evidence, correlated(n, placements, rng))) for _ in range(runs)]
    for rule, parameters in rules:
        share = np.mean([rule.judge(parameters, case).passed for case in cases])
        assert rule.pass_rate(parameters, assumed, n) == pytest.approx(share, abs=0.13), rule.name


def test_what_an_agreement_of_models_is_does_not_hang_on_the_number_of_placements():
    rng = np.random.default_rng(5)
    few, many = (assumed_of_pair(*correlated(60_000, placements, rng)).agreement for placements in (2, 24))
    assert few == pytest.approx(many, abs=0.03) and 0.7 < many < 0.9
