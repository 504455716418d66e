"""Intervals cover the truth as often as they say, and tests and plans keep their word: by simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from posgap.config import PlanConfig
from posgap.errors import PosgapError
from posgap.measurement import power as power_module
from posgap.measurement import statistics
from posgap.measurement.power import Assumed, correlation_of_placements, examples_for_gap, plan

RUNS = 400


def outcomes(accuracy, n_examples, correlation, rng, models=1, agreement=1.0):
    """Rights and wrongs `[models, E, P]`: beta-binomial, so that any two of an example correlate as asked.

    Accuracies other than the mean are reached by flipping outcomes, which leaves the rest as it is.
    """
    mean = np.mean(accuracy)
    a = mean * (1 - correlation) / correlation
    b = (1 - mean) * (1 - correlation) / correlation
    common, own = rng.beta(a, b, (1, n_examples, 1)), rng.beta(a, b, (models, n_examples, 1))
    hard = np.where(rng.random((models, n_examples, 1)) < np.sqrt(agreement), common, own)
    right = rng.random((models, n_examples, len(accuracy))) < hard
    shift = np.asarray(accuracy) - mean
    made = right & ~(rng.random(right.shape) < np.clip(-shift, 0, None) / mean)
    return made | (~right & (rng.random(right.shape) < np.clip(shift, 0, None) / (1 - mean)))


@pytest.mark.parametrize("accuracy", [0.5, 0.9, 0.98, 1.0])
@pytest.mark.parametrize("n", [20, 200])
def test_the_interval_of_a_position_covers_near_100_percent_too(accuracy, n):
    right = np.arange(n + 1)
    every = (np.arange(n)[:, None] < right).astype(float)  # one column for each number of right answers
    low, high = np.array(statistics.wilson_interval(every)).T
    covered = (low <= 100 * accuracy) & (100 * accuracy <= high)
    assert stats.binom.pmf(right, n, accuracy) @ covered >= 0.92  # exact, no simulation
    assert low[-1] < 100 == high[-1] and low[0] == 0 < high[0]
    by_scipy = stats.binomtest(n - 3, n).proportion_ci(method="wilson")
    assert [low[n - 3], high[n - 3]] == pytest.approx([100 * by_scipy.low, 100 * by_scipy.high])


@pytest.mark.parametrize(
    "accuracy", [np.full(8, 0.7), np.linspace(0.65, 0.75, 8), 0.6 + 0.3 * np.linspace(-1, 1, 8) ** 2], ids=str
)
def test_the_interval_of_the_gap_covers_small_gaps_too(accuracy):
    rng, truth, low_holds, high_holds = np.random.default_rng(0), 100 * np.ptp(accuracy), 0, 0
    for _ in range(RUNS):
        correct = outcomes(accuracy, 80, 0.4, rng)[0]
        resampled = statistics.bootstrap_accuracy(correct, 300, rng)
        low, high = statistics.gap_interval(statistics.accuracy(correct), resampled)
        low_holds, high_holds = low_holds + (low <= truth + 1e-9), high_holds + (truth <= high + 1e-9)
    assert low_holds / RUNS >= 0.95 and high_holds / RUNS >= 0.95


@pytest.mark.parametrize("truth", [0.0, 0.08])
def test_intervals_of_differences_cover(truth):
    rng, covered = np.random.default_rng(1), np.zeros(3)
    for _ in range(RUNS):
        flat = np.full(6, 0.85)
        old, new = outcomes(flat, 60, 0.4, rng, models=2, agreement=0.7)
        new = new | (rng.random(new.shape) < truth / 0.15)
        points = 100 * truth
        low, high = statistics.placement_differences(new, old).T
        covered[0] += np.mean((low <= points) & (points <= high))
        low, high = statistics.placement_differences(new, old, comparisons=6).T
        covered[1] += np.all((low <= points) & (points <= high))
        low, high = statistics.gap_difference(new, old, 200, rng)[1]
        covered[2] += low <= 0 <= high
    assert (covered / RUNS >= 0.93).all(), covered / RUNS


def test_equal_models_differ_by_an_interval_around_zero():
    same = np.ones((50, 3))
    low, high = statistics.placement_differences(same, same).T
    assert (low == -high).all() and (high > 0).all() and (high < 6).all()


def test_the_reduction_of_a_gap_is_covered():
    rng, covered = np.random.default_rng(2), 0
    biased, flat = 0.5 + 0.4 * np.linspace(-1, 1, 6) ** 2, np.full(6, 0.85)
    for _ in range(RUNS):
        old, new = outcomes(biased, 80, 0.4, rng)[0], outcomes(flat, 80, 0.4, rng)[0]
        low, high = statistics.gap_difference(new, old, 200, rng)[1]
        covered += low <= -100 * np.ptp(biased) <= high
    assert covered / RUNS >= 0.93


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 9), st.integers(2, 6), st.integers(0, 99))
def test_cochran_s_q_is_the_textbook_s(examples, placements, seed):
    correct = np.random.default_rng(seed).random((examples, placements)) < 0.6
    rows, columns, k = correct.sum(axis=1), correct.sum(axis=0), placements
    denominator = k * rows.sum() - (rows**2).sum()
    q, df, p = statistics.cochran_q(correct.astype(float))
    assert df == k - 1
    if denominator:
        assert q == pytest.approx((k - 1) * (k * (columns**2).sum() - columns.sum() ** 2) / denominator)
    assert p == pytest.approx(stats.chi2.sf(q, df))


def test_cochran_s_q_by_hand():
    # Column totals 5, 2, 2; of the rows three vary, each by 2/3 about its mean: Q = 2 * 6 / 2.
    correct = np.array([[1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 0, 0], [1, 1, 1], [0, 0, 0]], dtype=float)
    q, df, p = statistics.cochran_q(correct)
    assert (q, df) == (pytest.approx(4.5), 2) and p == pytest.approx(np.exp(-2.25))


@pytest.mark.parametrize("binary", [True, False])
def test_the_flatness_test_is_the_permutation_test_of_every_kind_of_score(binary):
    rng = np.random.default_rng(3)
    scores = rng.random((60, 5)) * rng.random((60, 1)) + np.array([0.05, 0, 0, 0, 0])
    scores = (scores > 0.3).astype(float) if binary else scores
    q, _, p = statistics.cochran_q(scores)
    permuted = [statistics.cochran_q(rng.permuted(scores, axis=1))[0] for _ in range(2000)]
    assert 0.001 < p < 0.5
    assert np.mean(np.array(permuted) >= q - 1e-9) == pytest.approx(p, abs=0.03)


def test_a_flat_model_is_called_uneven_as_often_as_the_level_says():
    rng = np.random.default_rng(4)
    found = [statistics.cochran_q(outcomes(np.full(8, 0.7), 60, 0.5, rng)[0])[2] < 0.05 for _ in range(1000)]
    assert np.mean(found) == pytest.approx(0.05, abs=0.02)


def test_where_nothing_varies_nothing_is_uneven():
    assert statistics.cochran_q(np.repeat([[1.0], [0.0]], 4, axis=1)) == (0.0, 3, 1.0)
    assert statistics.cochran_q(np.ones((5, 1))) == (0.0, 0, 1.0)


def test_the_planned_number_of_examples_finds_the_gap_as_often_as_promised():
    rng, gap, power = np.random.default_rng(5), 0.15, 0.8
    n = examples_for_gap(gap, Assumed(6, 0.7, 0.4, 1.0), power)
    accuracy = 0.7 + np.array([gap / 2, -gap / 2, 0, 0, 0, 0])
    found = [statistics.cochran_q(outcomes(accuracy, n, 0.4, rng)[0])[2] < 0.05 for _ in range(600)]
    assert np.mean(found) == pytest.approx(power, abs=0.05)


@pytest.mark.parametrize("what", ["mean_difference", "placement_difference"])
def test_the_planned_number_of_examples_finds_the_difference_as_often_as_promised(what):
    rng, truth = np.random.default_rng(6), 0.1
    n = plan(PlanConfig(detect=10, n_docs=4, mean=60, correlation=0.4, agreement=0.7, power=0.8))[what]
    found = []
    for _ in range(RUNS):
        old, new = outcomes(np.full(4, 0.6), n, 0.4, rng, models=2, agreement=0.7).astype(float)
        new += (new == 0) & (rng.random(new.shape) < truth / 0.4)
        low, _ = (
            statistics.paired_difference(new, old, 200, rng)[1]
            if what == "mean_difference"
            else statistics.placement_differences(new, old)[0]
        )
        found.append(low > 0)
    assert np.mean(found) == pytest.approx(0.8, abs=0.08)


def test_more_is_needed_to_see_less_and_correlation_helps():
    def needed(**options):
        return plan(PlanConfig(**options))

    assert needed(detect=3)["gap"] > 3 * needed(detect=6)["gap"] > 0
    assert needed(correlation=0.9)["gap"] < needed(correlation=0.1)["gap"]
    assert needed(agreement=1.0)["mean_difference"] < needed(agreement=0.0)["mean_difference"]
    assert needed(power=0.95)["gap"] > needed(power=0.8)["gap"]


def test_the_correlation_is_read_off_the_outcomes():
    rng = np.random.default_rng(7)
    assert correlation_of_placements(outcomes(np.full(5, 0.7), 4000, 0.4, rng)[0]) == pytest.approx(0.4, abs=0.03)
    assert correlation_of_placements(np.ones((5, 3))) == 0


def test_a_sweep_that_is_always_right_has_nothing_to_plan(monkeypatch):
    monkeypatch.setattr(power_module, "_assumed", lambda config: Assumed(5, 1.0, 0.0, 0.8))
    with pytest.raises(PosgapError, match="leaves nothing to chance"):
        plan(PlanConfig())
