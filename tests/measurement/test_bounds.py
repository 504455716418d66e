"""Every statistic against a twin that follows its definition in loops, by brute force where there is a search."""

import math
from itertools import permutations, product

import numpy as np
import pytest
from by_definition import bound_by_brute_force, paired
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import integrate, optimize, stats

from posgap.measurement import statistics

VARIANCE_OF_TWO = 0.5  # a right and a wrong one, about their mean
scores = st.sampled_from([0, 0, 0.25, 0.5, 0.8, 1, 1])
differences = st.sampled_from([-1, -0.75, -0.2, 0, 0, 0.5, 1])


def some(values, rows=12, columns=4):
    return arrays(np.float64, st.tuples(st.integers(2, rows), st.integers(2, columns)), elements=values)


def mean_bounds(values, error) -> tuple[float, float]:
    """The means that the score test does not refute, for as many rights and wrongs as these scores are worth."""
    n, mean, z = len(values), np.mean(values), stats.norm.isf(error)
    rights_and_wrongs = n * mean * (1 - mean)
    worth = n * (rights_and_wrongs + VARIANCE_OF_TWO) / (sum((x - mean) ** 2 for x in values) + VARIANCE_OF_TWO)

    def strays(true):
        return worth * (mean - true) ** 2 - z**2 * true * (1 - true)

    low = 0.0 if mean == 0 else optimize.brentq(strays, 0, min(mean, 1 - 1e-9), xtol=1e-12)
    high = 1.0 if mean == 1 else optimize.brentq(strays, max(mean, 1e-9), 1, xtol=1e-12)
    return 100 * low, 100 * high


def upper_bound(values, error, more_variance=0.0) -> float:
    """Tango's bound for as many rights and wrongs as these differences are worth, in points."""
    above, below = sum(d for d in values if d > 0), sum(-d for d in values if d < 0)
    squares = sum(d * d + more_variance for d in values)
    worth = (above + below + VARIANCE_OF_TWO) / (squares + VARIANCE_OF_TWO)
    counts = np.array([above * worth]), np.array([below * worth])
    return 100 * float(statistics.tango_bound(*counts, worth * len(values), error)[0])


def close(value):
    return pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("counts", [(2.5, 1.2, 17.3), (0.3, 4.4, 9.1), (0.7, 0, 2.4)], ids=str)
def test_tango_s_bound_of_parts_of_examples_is_that_of_a_brute_force_search(counts):
    found = float(statistics.tango_bound(*map(np.array, counts), 0.05))
    assert found == pytest.approx(bound_by_brute_force(*counts, 0.05), abs=1e-5)


@settings(deadline=None, max_examples=50)
@given(some(scores), st.sampled_from([0.025, 0.05, 0.2]))
def test_the_interval_of_a_mean_is_what_the_score_test_does_not_refute(values, error):
    expected = [mean_bounds(column, error) for column in values.T]
    np.testing.assert_allclose(statistics.mean_interval(values, error), expected, atol=1e-5)


def test_ends_that_no_sample_can_reach_are_reached_exactly():
    for n in range(1, 200):
        for all_alike, end in ((np.ones(n), 1), (np.zeros(n), 0)):
            low_high = statistics.mean_interval(all_alike).tolist()
            assert low_high[end] == 100 * end and 0 < low_high[1 - end] < 100


@settings(deadline=None, max_examples=40)
@given(some(differences), st.sampled_from([0.025, 0.05, 0.001]))
def test_the_interval_of_differences_is_tango_s_or_gaffke_s(values, error):
    found = statistics.difference_interval(values, error)
    assert found.shape == (values.shape[1], 2)
    for (low, high), column in zip(found, values.T):
        if statistics.are_rights_and_wrongs(column):
            assert high == close(upper_bound(column, error)) and low == close(-upper_bound(-column, error))
        else:  # by an approximation, which is worst where examples are few
            assert chance_by_inversion(column, low / 100) == pytest.approx(error, rel=0.15)
            assert chance_by_inversion(-column, -high / 100) == pytest.approx(error, rel=0.15)


def chance_by_inversion(values, mean: float) -> float:
    """What `chance_of_less` approximates: the chance that a weighted sum of exponential numbers is below 0, by the
    integral over its characteristic function (Imhof 1961)."""
    weights = np.append(values, -1.0) - mean
    weights = weights / abs(weights).max()

    def integrand(at: float) -> float:
        return float(np.sin(np.arctan(weights * at).sum()) / at / np.sqrt(1 + (weights * at) ** 2).prod())

    return 0.5 - integrate.quad(integrand, 0, np.inf, limit=1000)[0] / math.pi


@pytest.mark.parametrize("n", [60, 100, 300])
@pytest.mark.parametrize("error", [0.05, 0.025])
def test_of_rights_and_wrongs_gaffke_s_bound_is_clopper_and_pearson_s(n, error):
    """A mean of at least 1 - 2p, where p is what so few losses among n allow."""
    for losses in (0, 1, 5):
        worst = stats.beta.isf(error, losses + 1, n - losses)
        chance = statistics.chance_of_less(np.array([[1.0], [-1.0]]), np.array([[n - losses], [losses]]), 1 - 2 * worst)
        assert chance[0] == pytest.approx(error, rel=0.02)


@pytest.mark.parametrize(("n", "gain"), [(60, 0.02), (40, 0.05), (100, 0.02)])
def test_few_large_losses_that_were_not_seen_are_not_ruled_out(n, gain):
    """Small gains in every example called a model better in up to 30 % where it is not; 2.5 % are asked."""
    low, high = statistics.difference_interval(np.full(n, gain))
    assert low < 0 < high
    chance_of_no_loss = (1 - gain / (1 + gain)) ** n
    assert chance_of_no_loss > 0.1


def test_differences_that_reach_a_number_are_those_whose_interval_does():
    rng = np.random.default_rng(0)
    values = rng.choice([-1.0, -0.4, 0.0, 0.02, 0.2], (60, 8), p=[0.02, 0.03, 0.6, 0.3, 0.05])
    values = np.concatenate([values, rng.choice([-1.0, 0.0, 1.0], (60, 2)), rng.random((60, 2)) - 0.5], axis=1)
    lows = statistics.difference_interval(values, 0.05)[:, 0]
    for least in (-1.5, -0.1, -0.03, 0.0, 0.05):
        assert statistics.difference_reaches(values, least, 0.05).tolist() == (lows >= 100 * least).tolist()
    assert statistics.difference_reaches(values[:, 0], -0.5, 0.05)


def test_ninety_five_percent_is_what_is_meant_where_nothing_else_is_said():
    column = paired(7, 3, 20)
    assert statistics.difference_interval(column)[1] == close(upper_bound(column, 0.025))
    rights = np.repeat([1.0, 0.0], [13, 7])
    assert statistics.mean_interval(rights).tolist() == close(mean_bounds(rights, 0.025))


@settings(deadline=None, max_examples=40)
@given(some(scores, rows=8), some(scores, rows=8))
def test_paired_differences_are_those_of_the_examples(candidate, reference):
    rows, columns = np.minimum(candidate.shape, reference.shape)
    candidate, reference = candidate[:rows, :columns], reference[:rows, :columns]
    means = [np.mean([c - r for c, r in zip(*both)]) for both in zip(candidate, reference)]
    estimate, (low, high) = statistics.paired_difference(candidate, reference)
    assert estimate == pytest.approx(100 * (candidate.mean() - reference.mean()))
    assert [low, high] == close(statistics.difference_interval(np.array(means), 0.025).tolist())
    one = statistics.paired_difference(candidate[:, 0], reference[:, 0])
    assert one == (pytest.approx(100 * (candidate - reference)[:, 0].mean()), one[1])
    at_each = statistics.placement_differences(candidate, reference)
    assert at_each[0].tolist() == pytest.approx(one[1])
    together = statistics.placement_differences(candidate, reference, comparisons=5)
    for j in range(columns):
        column = candidate[:, j] - reference[:, j]
        assert at_each[j].tolist() == close(statistics.difference_interval(column, 0.025).tolist())
        assert together[j].tolist() == close(statistics.difference_interval(column, 0.005).tolist())


def test_rights_and_wrongs_may_be_truth_values():
    """The difference of two truth values is no number."""
    rights, wrongs = np.array([[True, False], [True, True]]), np.array([[False, False], [True, False]])
    as_numbers = rights.astype(float), wrongs.astype(float)
    for compared in (statistics.paired_difference, statistics.gap_difference):
        assert compared(rights, wrongs) == compared(*as_numbers)
    for bounds in (statistics.placement_differences, lambda a, b: statistics.pair_bounds(a, 0.05)):
        np.testing.assert_array_equal(bounds(rights, wrongs), bounds(*as_numbers))


@settings(deadline=None, max_examples=40)
@given(some(scores, rows=8, columns=3), st.sampled_from([0.05, 0.01]), st.data())
def test_pairs_are_bounded_each_by_itself(values, error, data):
    examples, placements = values.shape
    less = data.draw(arrays(np.float64, examples, elements=differences))
    plain, taken_off = statistics.pair_bounds(values, error), statistics.pair_bounds(values, error, less)
    assert np.isnan(plain.diagonal()).all() and np.isnan(taken_off.diagonal()).all()
    for i, j in permutations(range(placements), 2):
        difference = values[:, i] - values[:, j]
        assert plain[i, j] == close(upper_bound(difference, error))
        assert taken_off[i, j] == close(2 * upper_bound((difference - less) / 2, error))


@settings(deadline=None, max_examples=40)
@given(some(scores, rows=20))
def test_the_gap_lies_between_its_pairs_bounds(values):
    pairs = list(permutations(values.T, 2))
    low, high = statistics.gap_interval(values)
    assert high == close(max(upper_bound(a - b, 0.05 if len(pairs) > 2 else 0.025) for a, b in pairs))
    if statistics.flatness_p(values) >= 0.05:
        assert low == 0
    else:
        assert low == close(max(0, *(-upper_bound(b - a, 0.05 / len(pairs)) for a, b in pairs)))


def test_a_gap_that_cannot_be_denied_has_a_lower_end_above_zero():
    values = np.repeat([[1.0, 0.0]], 20, axis=0)
    low, high = statistics.gap_interval(values)
    assert high == 100 and low == close(-upper_bound(paired(0, 20, 20), 0.025)) and low > 60
    # All pairs' lower bounds hold together: of four placements there are twelve.
    low, _ = statistics.gap_interval(np.repeat([[1.0, 0.0, 0.0, 0.0]], 20, axis=0))
    assert low == close(-upper_bound(paired(0, 20, 20), 0.05 / 12))
    # The flatness test refutes that all positions are alike, and no pair's bound is above 0: there is still no gap
    # below 0.
    assert statistics.gap_interval(np.repeat([[1, 0, 0.5, 0.5], [0.5, 0.5, 0.5, 0.5]], [4, 30], axis=0))[0] == 0


@pytest.mark.parametrize(
    ("correct", "expected"),
    [
        ([[1, 0]], 100),
        ([[1, 0], [1, 0]], 50),
        ([[1, 0], [1, 1]], 50),
        ([[0.5, 0], [0.5, 0]], 25),
        ([[1, 1], [0, 0]], 0),
    ],
)
def test_the_noise_of_a_gap_by_hand(correct, expected):
    found = statistics.gap_noise(np.array(correct), np.random.default_rng(0), 4000)
    assert found == pytest.approx(expected, abs=3)


def test_the_noise_of_a_gap_is_averaged_over_as_many_permutations_as_are_asked_for():
    correct = np.array([[1, 0], [1, 0]])
    averages = [statistics.gap_noise(correct, np.random.default_rng(seed), 2) for seed in range(40)]
    assert set(averages) == {0.0, 50.0, 100.0}


def extremes_of_other_half(values, half) -> list[tuple[int, int]]:
    """For each row the placements at which the rows of the other half are best and worst."""
    found = []
    for own, row in zip(half, values):
        means = [sum(other[j] for at, other in zip(half, values) if at != own) for j in range(len(row))]
        found.append((means.index(max(means)), means.index(min(means))))
    return found


def gap_of_other_half(values, half) -> np.ndarray:
    """Each example's score at the placement where the other half of the rows is best, less where that is worst."""
    pairs = zip(values, extremes_of_other_half(values, half))
    return np.array([row[best] - row[worst] for row, (best, worst) in pairs])


@settings(deadline=None, max_examples=40)
@given(some(scores, rows=10, columns=3), st.data())
def test_the_difference_of_two_gaps_is_bounded_by_its_pairs(candidate, data):
    reference = data.draw(arrays(np.float64, candidate.shape, elements=scores))
    found = []
    for half in statistics.split_halves(len(candidate)):
        new, old = gap_of_other_half(candidate, half), gap_of_other_half(reference, half)
        # On a scale of half the points.
        of_new, of_old = ((candidate.shape[1] == 2) / (2 * np.pi) * each.var() for each in (new, old))
        highest = max(2 * upper_bound((a - b - old) / 2, 0.025, of_old) for a, b in permutations(candidate.T, 2))
        lowest = -max(2 * upper_bound((a - b - new) / 2, 0.025, of_new) for a, b in permutations(reference.T, 2))
        found.append((100 * (max(0, new.mean()) - max(0, old.mean())), max(-100, lowest), min(100, highest)))
    estimate, (low, high) = statistics.gap_difference(candidate, reference)
    assert [estimate, low, high] == close(np.median(found, axis=0).tolist())


@settings(deadline=None, max_examples=40)
@given(some(scores, rows=10, columns=3), st.data())
def test_the_difference_at_the_best_placement_is_that_of_held_out_examples(chooser, data):
    other = data.draw(arrays(np.float64, chooser.shape, elements=scores))
    found, chosen = [], set()
    for half in statistics.split_halves(len(chooser)):
        best = [at for at, _ in extremes_of_other_half(chooser, half)]
        chosen.update(best)
        held_out = np.array([row[at] - own[at] for row, own, at in zip(other, chooser, best)])
        found.append((100 * held_out.mean(), *statistics.difference_interval(held_out, 0.05)))
    estimate, (low, high), places = statistics.difference_at_best(other - chooser, chooser, 0.05)
    assert [estimate, low, high] == close(np.median(found, axis=0).tolist()) and places == sorted(chosen)
    rights, wrongs = (chooser > 0.5).astype(float), (other > 0.5).astype(float)
    low = statistics.difference_at_best(wrongs - rights, rights, 0.05)[1][0]
    other, chooser = wrongs, rights
    for least in (-0.6, -0.1, 0.0, 0.2):
        reaches = statistics.difference_at_best_reaches((other - chooser)[:, None], chooser[:, None], least, 0.05)
        assert abs(low - 100 * least) < 1e-6 or reaches.tolist() == [low >= 100 * least]


@pytest.mark.filterwarnings("error")
def test_one_placement_says_nothing_of_gaps():
    assert statistics.gap_difference(np.ones((9, 1)), np.zeros((9, 1))) == (0, (-100, 100))
    assert statistics.gap_interval(np.ones((9, 1))) == (0, 100)


@settings(deadline=None)
@given(some(scores, rows=9, columns=4))
def test_the_flatness_test_is_that_of_all_signs(values):
    contrasts = [[x - sum(row) / len(row) for x in row] for row in values]

    def statistic(signs) -> float:
        return sum(sum(sign * row[j] for sign, row in zip(signs, contrasts)) ** 2 for j in range(values.shape[1]))

    seen, every = statistic([1] * len(values)), [statistic(signs) for signs in product((1, -1), repeat=len(values))]
    larger = sum(each > seen + 1e-9 for each in every)
    exact = (larger + sum(abs(each - seen) <= 1e-9 for each in every) / 2) / len(every)
    expected = exact if any(map(any, contrasts)) else 1.0
    assert statistics.flatness_p(values) == pytest.approx(expected, abs=0.05)  # five times the error of so many flips
