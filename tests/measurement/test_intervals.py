"""Intervals cover the truth as often as they say, and tests and plans keep their word: by simulation."""

import numpy as np
import pytest
from by_definition import bound_by_brute_force, paired
from scipy import special, stats

from posgap.foundation.errors import PosgapError
from posgap.measurement import statistics
from posgap.measurement.power import Assumptions, correlation_of_placements
from posgap.measurement.simulated_sweeps import examples_for_gap
from posgap.options.plan_sweep import PlanConfig
from posgap.verbs.plan_sweep import plan_sweep

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


@pytest.mark.parametrize(
    ("more", "fewer", "n", "confidence", "low", "high", "digits"),
    [
        # R's contingencytables (Fagerland, Lydersen and Laake), Cavo et al. 2012 and Bentur et al. 2009.
        (6, 16, 161, 0.95, -0.1240, -0.0054, 4),
        (1, 7, 21, 0.95, -0.517, -0.026, 3),
        # R's PropCIs::scoreci.mp, which takes the counts the other way round.
        (28, 25, 618, 0.90, -0.0148, 0.0247, 4),
        (20, 60, 1000, 0.95, -0.0584, -0.0231, 4),
        (48, 41, 549, 0.90, -0.0157, 0.0414, 4),
    ],
)
def test_tango_s_interval_is_that_of_published_examples(more, fewer, n, confidence, low, high, digits):
    differences = paired(more, fewer, n)
    interval = statistics.difference_interval(differences, (1 - confidence) / 2) / 100
    assert interval.round(digits).tolist() == [low, high]
    for least in (-0.6, -0.05, 0.0, 0.04, 0.3):  # what the interval says without being searched for
        reaches = statistics.difference_reaches(differences, least, (1 - confidence) / 2)
        assert abs(interval[0] - least) < 1e-9 or reaches == (interval[0] >= least)
    mirrored = statistics.difference_interval(-differences, (1 - confidence) / 2) / 100
    assert mirrored.round(digits).tolist() == [-high, -low]


@pytest.mark.parametrize("counts", [(5, 3, 40), (0, 4, 25), (4, 0, 25), (0, 0, 30), (12, 30, 60), (1, 0, 2)], ids=str)
@pytest.mark.parametrize("error", [0.05, 0.025, 0.0001])
def test_tango_s_bound_is_that_of_a_brute_force_search(counts, error):
    expected = bound_by_brute_force(*counts, error)
    assert float(statistics.tango_bound(*map(np.array, counts), error)) == pytest.approx(expected, abs=1e-5)


def test_where_no_example_differs_a_small_sample_is_not_certain():
    z = stats.norm.isf(0.05)
    for n, points in ((1, 73.0), (20, 11.9), (200, 1.3)):
        low, high = statistics.gap_interval(np.ones((n, 4)))
        assert (low, round(high, 1)) == (0, points) and high == pytest.approx(100 * z**2 / (n + z**2))
    assert statistics.difference_interval(paired(7, 0, 7))[1] == 100
    assert statistics.gap_interval(np.ones((20, 1))) == (0, 100)  # one placement shows no gap, whatever it is


def exact_errors(n: int, gap: float, fewer: float) -> tuple[float, float]:
    """How often the upper end for two placements misses `gap` where each pair's bound errs in 5 % and in 2.5 %, by
    enumeration of all outcomes. The first is what each pair is asked for where there are more placements."""
    more_counts, fewer_counts = (a.ravel() for a in np.meshgrid(np.arange(n + 1), np.arange(n + 1)))
    possible = more_counts + fewer_counts <= n
    counts = np.stack([more_counts, fewer_counts, n - more_counts - fewer_counts])[:, possible]
    chances = stats.multinomial.pmf(counts.T, n, [gap + fewer, fewer, 1 - gap - 2 * fewer])
    errors = []
    for error in (0.05, 0.025):
        upper = np.maximum(*(statistics.tango_bound(*pair, n, error) for pair in (counts[:2], counts[1::-1])))
        errors.append(float(chances[upper < gap - 1e-9].sum()))
    return errors[0], errors[1]


@pytest.mark.parametrize(("n", "at_most"), [(50, (0.056, 0.029)), (200, (0.058, 0.029))])
def test_the_gap_s_upper_end_errs_at_most_and_where_possible_exactly_as_wanted(n, at_most):
    cells = [(gap, fewer) for gap in (0.05, 0.1, 0.2) for fewer in (0, 0.01, 0.05, 0.1, 0.2)]
    of_pair, of_two = (max(errors) for errors in zip(*(exact_errors(n, *cell) for cell in cells)))
    assert 0.045 < of_pair <= at_most[0] and 0.022 < of_two <= at_most[1]


def covered(n: int, first: float, second: float, both: float) -> float:
    """How often the gap's interval holds the true gap of two placements right in these shares of n examples, and in
    both together in this one, by enumeration of all outcomes."""
    shares = [first - both, second - both, both, 1 - first - second + both]
    chance = 0.0
    for more in range(n + 1):
        for fewer in range(n + 1 - more):
            low, high = statistics.gap_interval(
                np.repeat([[1.0, 0], [0, 1], [1, 1]], [more, fewer, n - more - fewer], 0)
            )
            if low - 1e-9 <= 100 * abs(first - second) <= high + 1e-9:
                alike = shares[2] + shares[3]
                chance += stats.multinomial.pmf([more, fewer, n - more - fewer], n, [*shares[:2], alike])
    return chance


@pytest.mark.parametrize(("first", "second", "both"), [(0.9, 0.7, 0.65), (0.8, 0.8, 0.7), (0.95, 0.6, 0.58)])
def test_of_two_placements_the_gap_s_interval_covers_in_95_percent(first, second, both):
    assert covered(20, first, second, both) >= 0.945


@pytest.mark.parametrize("accuracy", [0.5, 0.9, 0.98, 1.0])
@pytest.mark.parametrize("n", [20, 200])
def test_the_interval_of_a_position_covers_near_100_percent_too(accuracy, n):
    right = np.arange(n + 1)
    every = (np.arange(n)[:, None] < right).astype(float)  # one column for each number of right answers
    low, high = statistics.mean_interval(every).T
    covered = (low <= 100 * accuracy) & (100 * accuracy <= high)
    assert stats.binom.pmf(right, n, accuracy) @ covered >= 0.92  # exact, no simulation
    assert low[-1] < 100 == high[-1] and low[0] == 0 < high[0]
    by_scipy = stats.binomtest(n - 3, n).proportion_ci(method="wilson")
    assert [low[n - 3], high[n - 3]] == pytest.approx([100 * by_scipy.low, 100 * by_scipy.high])


@pytest.mark.parametrize("mean", [0.5, 0.9, 0.97, 0.99])
@pytest.mark.parametrize("n", [20, 50, 200])
@pytest.mark.parametrize("correlation", [0.05, 0.4, 0.9])
def test_the_interval_of_a_mean_covers_near_100_percent_too(mean, n, correlation):
    rng, runs, placements = np.random.default_rng(0), 1500, 10
    hard = rng.beta(mean * (1 / correlation - 1), (1 - mean) * (1 / correlation - 1), (n, runs))
    low, high = statistics.mean_interval(rng.binomial(placements, hard) / placements).T
    errors = np.mean(low > 100 * mean), np.mean(high < 100 * mean)
    assert errors[0] <= 0.045 and sum(errors) <= 0.085  # Wilson's own, for rights and wrongs, err so often
    if n == 200 and mean < 0.97 and correlation == 0.4:  # and errs where it may, so that it is no wider than it must be
        assert 0.035 <= sum(errors) <= 0.065


def test_scores_between_0_and_1_have_no_wider_interval_than_rights_and_wrongs():
    rights = np.random.default_rng(0).random(200) < 0.8
    low, high = statistics.mean_interval(rights.astype(float))
    for spread in (0.3, 0.05):
        scores = 0.8 + spread * (rights - rights.mean())
        narrower = statistics.mean_interval(scores - scores.mean() + rights.mean())
        assert low < narrower[0] < narrower[1] < high and np.ptp(narrower) < (0.4 if spread == 0.3 else 0.15) * (
            high - low
        )


@pytest.mark.full
@pytest.mark.parametrize(
    "accuracy", [np.full(8, 0.7), np.linspace(0.65, 0.75, 8), 0.6 + 0.3 * np.linspace(-1, 1, 8) ** 2], ids=str
)
@pytest.mark.parametrize("n", [20, 80])
def test_the_interval_of_the_gap_covers_small_gaps_too(accuracy, n):
    rng, truth, errors = np.random.default_rng(0), 100 * np.ptp(accuracy), np.zeros(2)
    for _ in range(RUNS):
        low, high = statistics.gap_interval(outcomes(accuracy, n, 0.4, rng)[0])
        errors += [low > truth + 1e-9, high < truth - 1e-9]
    assert (errors / RUNS <= 0.05).all()


def f1_scores(accuracy, n_examples: int, rng) -> np.ndarray:
    """Scores [E, P] as of F1: right, wrong, or one of a few values between, with these means."""
    hard = rng.normal(0, 1.5, (n_examples, 1)) + rng.normal(0, 1, (n_examples, len(accuracy)))
    parts = np.array([0, 0.4, 0.5, 0.67, 0.8, 1])
    scores = parts[np.clip(((hard + 3) * 1.1).astype(int), 0, 5)]
    kept = np.asarray(accuracy) / np.max(accuracy)  # an answer that is lost at a placement scores 0
    return scores * (rng.random(scores.shape) < kept)


@pytest.mark.full
@pytest.mark.parametrize("n", [20, *(pytest.param(n, marks=pytest.mark.nightly) for n in (60, 200))])
def test_gaps_of_f1_scores_are_covered(n):
    rng, lost, errors = np.random.default_rng(0), np.array([1, 1, 0.85]), np.zeros(2)
    best = f1_scores(np.ones(1), 200_000, rng).mean()
    truth = 100 * best * 0.15
    for _ in range(2 * RUNS):
        low, high = statistics.gap_interval(f1_scores(lost, n, rng))
        errors += [low > truth, high < truth]
    assert (errors / (2 * RUNS) <= 0.05).all()


def test_f1_scores_have_their_own_variance_and_never_more_than_binary_ones():
    rng = np.random.default_rng(0)
    correct = (rng.random((200, 5)) < 0.7).astype(float)
    between = 0.5 + 0.4 * (correct - 0.5)
    assert statistics.gap_interval(between)[1] < 0.45 * statistics.gap_interval(correct)[1]
    assert statistics.gap_interval(np.full((20, 5), 0.6))[1] == statistics.gap_interval(np.ones((20, 5)))[1]


@pytest.mark.nightly
@pytest.mark.parametrize("truth", [0.0, 0.08])
def test_intervals_of_differences_cover(truth):
    rng, covered = np.random.default_rng(1), np.zeros(4)
    for _ in range(RUNS):
        flat = np.full(6, 0.85)
        old, new = outcomes(flat, 60, 0.4, rng, models=2, agreement=0.7)
        new = new | (rng.random(new.shape) < truth / 0.15)
        points = 100 * truth
        low, high = statistics.placement_differences(new, old).T
        covered[0] += np.mean((low <= points) & (points <= high))
        low, high = statistics.placement_differences(new, old, comparisons=6).T
        covered[1] += np.all((low <= points) & (points <= high))
        low, high = statistics.gap_difference(new, old)[1]
        covered[2] += low <= 0 <= high
        low, high = statistics.paired_difference(new, old)[1]
        covered[3] += low <= points <= high
    assert (covered / RUNS >= 0.93).all(), covered / RUNS


def test_equal_models_differ_by_an_interval_around_zero():
    same = np.ones((50, 3))
    low, high = statistics.placement_differences(same, same).T
    assert (low == -high).all() and (high > 0).all() and (high < 8).all()


@pytest.mark.full
@pytest.mark.parametrize(
    ("one", "other"),
    [(0.7, 0.97), *(pytest.param(*each, marks=pytest.mark.nightly) for each in ((0.9, 0.9), (0.5, 0.99)))],
)
@pytest.mark.parametrize("placements", [5, pytest.param(20, marks=pytest.mark.nightly)])
def test_the_gaps_of_two_flat_models_rarely_differ_however_noisy_one_is(one, other, placements):
    rng, runs, different, estimates = np.random.default_rng(2), 300, 0, []
    for _ in range(runs):
        old, new = (outcomes(np.full(placements, mean), 100, 0.4, rng)[0] for mean in (one, other))
        estimate, (low, high) = statistics.gap_difference(new, old)
        different += low > 0 or high < 0
        estimates.append(estimate)
        assert low <= estimate <= high
    assert different / runs <= 0.065
    # The sweeps' gaps differ by some 8 points here, of noise.
    assert abs(np.mean(estimates)) < 3


@pytest.mark.full
@pytest.mark.parametrize("kinds", [("hole", "half"), pytest.param(("half", "hole"), marks=pytest.mark.nightly)])
def test_gaps_of_one_size_and_unlike_shapes_do_not_differ(kinds):
    rng, different, at = np.random.default_rng(3), 0, np.arange(10)
    curves = {"hole": 0.9 - 0.15 * (at == 5), "half": 0.9 - 0.15 * (at >= 5)}
    for _ in range(200):
        old, new = (outcomes(curves[kind], 100, 0.4, rng)[0] for kind in kinds)
        low, high = statistics.gap_difference(new, old)[1]
        different += low > 0 or high < 0
    assert different / 200 <= 0.05


def test_the_reduction_of_a_gap_is_covered_and_seen():
    rng, covered, seen = np.random.default_rng(2), 0, 0
    biased, flat = 0.5 + 0.4 * np.linspace(-1, 1, 6) ** 2, np.full(6, 0.85)
    for _ in range(200):
        old, new = outcomes(biased, 80, 0.4, rng)[0], outcomes(flat, 80, 0.4, rng)[0]
        low, high = statistics.gap_difference(new, old)[1]
        covered, seen = covered + (low <= -100 * np.ptp(biased) <= high), seen + (high < 0)
    assert covered / 200 >= 0.93 and seen / 200 >= 0.9


def test_a_placement_is_chosen_by_the_other_half_of_the_examples():
    correct = np.array([[1, 0, 0], [0, 0, 1], [1, 0, 1], [0, 1, 1.0]])  # rows 0 and 2 choose for rows 1 and 3
    best, worst = statistics.extremes_elsewhere(correct, np.array([0, 1, 0, 1]))
    assert best.tolist() == [2, 0, 2, 0] and worst.tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(("more", "fewer", "alike"), [(9, 2, 20), (6, 5, 0), (30, 14, 100), (3, 0, 7)])
def test_with_two_placements_flatness_is_mcnemar_s_exact_test_with_its_mid_p(more, fewer, alike):
    correct = np.repeat([[1.0, 0], [0, 1], [1, 1]], [more, fewer, alike], axis=0)
    right = stats.binom(more + fewer, 0.5)
    expected = 2 * right.sf(max(more, fewer)) + right.pmf(max(more, fewer))
    assert statistics.flatness_p(correct) == pytest.approx(expected, abs=0.03)


def like_neighbours(accuracy, n: int, correlation: float, rng) -> np.ndarray:
    """Rights and wrongs `[n, P]` whose likeness falls with distance: thresholds of a latent AR(1) process."""
    latent = rng.standard_normal((n, len(accuracy)))
    for j in range(1, len(accuracy)):
        latent[:, j] = correlation * latent[:, j - 1] + np.sqrt(1 - correlation**2) * latent[:, j]
    return (special.ndtr(latent) < accuracy).astype(float)


def cochran_s_q_refutes(correct: np.ndarray) -> bool:
    """Whether Cochran's Q (1950), which takes any two placements to be equally alike, refutes at 5 % that all are."""
    within = ((correct - correct.mean(axis=1, keepdims=True)) ** 2).sum()
    totals, df = correct.sum(axis=0), correct.shape[1] - 1
    return stats.chi2.sf(df * ((totals - totals.mean()) ** 2).sum() / within, df) < 0.05


@pytest.mark.parametrize(("n", "placements", "accuracy"), [(60, 20, 0.7), (30, 50, 0.9), (100, 8, 0.5)])
def test_a_flat_model_whose_neighbouring_positions_are_alike_is_seldom_called_uneven(n, placements, accuracy):
    rng = np.random.default_rng(4)
    samples = [like_neighbours(np.full(placements, accuracy), n, 0.9, rng) for _ in range(RUNS)]
    assert np.mean([statistics.flatness_p(correct) < 0.05 for correct in samples]) <= 0.075  # 2.3 errors above 5 %
    if placements >= 20:
        assert np.mean([cochran_s_q_refutes(correct) for correct in samples]) > 0.09  # what the test is there to mend


def test_a_flat_model_is_called_uneven_as_often_as_the_level_says():
    rng = np.random.default_rng(4)
    found = [statistics.flatness_p(outcomes(np.full(8, 0.7), 60, 0.5, rng)[0]) < 0.05 for _ in range(1000)]
    assert np.mean(found) == pytest.approx(0.05, abs=0.02)


def test_flatness_does_not_depend_on_order_level_or_scale_of_the_scores():
    rng = np.random.default_rng(6)
    scores = rng.random((40, 5)) + np.array([0.1, 0, 0, 0, 0])
    found = statistics.flatness_p(scores)
    assert 0.001 < found < 0.5
    assert statistics.flatness_p(scores[:, ::-1]) == found
    assert statistics.flatness_p(scores / 7 + rng.random((40, 1))) == found


def test_where_nothing_varies_nothing_is_uneven():
    assert statistics.flatness_p(np.repeat([[1.0], [0.0]], 4, axis=1)) == 1
    assert statistics.flatness_p(np.ones((5, 1))) == 1


@pytest.mark.parametrize(("mean", "gap"), [(0.7, 0.15), (0.97, 0.1)])
def test_the_planned_number_of_examples_finds_the_gap_as_often_as_promised(mean, gap):
    rng, power = np.random.default_rng(5), 0.8
    n = examples_for_gap(gap, Assumptions(6, mean, 0.4, 1.0), power)
    best = min(mean + gap / 2, 1.0)
    accuracy = np.array([best, best - gap, *[mean] * 4])
    found = [statistics.flatness_p(outcomes(accuracy, n, 0.4, rng)[0]) < 0.05 for _ in range(600)]
    assert np.mean(found) == pytest.approx(power, abs=0.05)


@pytest.mark.parametrize("what", ["mean_difference", "placement_difference"])
def test_the_planned_number_of_examples_finds_the_difference_as_often_as_promised(what):
    rng, truth = np.random.default_rng(6), 0.1
    n = plan_sweep(PlanConfig(detect=10, n_docs=4, mean=60, correlation=0.4, agreement=0.7, power=0.8))[what]
    found = []
    for _ in range(RUNS):
        old, new = outcomes(np.full(4, 0.6), n, 0.4, rng, models=2, agreement=0.7).astype(float)
        new += (new == 0) & (rng.random(new.shape) < truth / 0.4)
        low, _ = (
            statistics.paired_difference(new, old)[1]
            if what == "mean_difference"
            else statistics.placement_differences(new, old)[0]
        )
        found.append(low > 0)
    assert np.mean(found) == pytest.approx(0.8, abs=0.08)


def test_more_is_needed_to_see_less_and_correlation_helps():
    def needed(**options):
        return plan_sweep(PlanConfig(**options))

    assert needed(detect=3)["gap"] > 3 * needed(detect=6)["gap"] > 0
    assert needed(correlation=0.9)["gap"] < needed(correlation=0.1)["gap"]
    assert needed(agreement=1.0)["mean_difference"] < needed(agreement=0.0)["mean_difference"]
    assert needed(power=0.95)["gap"] > needed(power=0.8)["gap"]


def test_the_correlation_is_read_off_the_outcomes():
    rng = np.random.default_rng(7)
    assert correlation_of_placements(outcomes(np.full(5, 0.7), 4000, 0.4, rng)[0]) == pytest.approx(0.4, abs=0.03)
    assert correlation_of_placements(np.ones((5, 3))) == 0


def test_a_sweep_that_is_always_right_has_nothing_to_plan(monkeypatch):
    monkeypatch.setattr("posgap.verbs.plan_sweep.assumptions_from_config", lambda config: Assumptions(5, 1.0, 0.0, 0.8))
    with pytest.raises(PosgapError, match=" 0 or 100, .* 1, "):
        plan_sweep(PlanConfig())
