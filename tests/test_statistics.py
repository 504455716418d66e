"""Statistics against known answers, brute force and simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from posgap.measurement import statistics
from posgap.measurement.shape import shape_of
from posgap.measurement.sweeps import summarize

matrices = arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 6)))


def test_accuracy_and_gap_by_hand():
    correct = np.array([[1, 0, 1], [1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=bool)
    assert statistics.accuracy(correct).tolist() == [100, 25, 50]
    assert statistics.gap(statistics.accuracy(correct)) == 75


@settings(max_examples=30, deadline=None)
@given(matrices)
def test_summary_invariants(correct):
    found = summarize(correct, [[i + 1] for i in range(correct.shape[1])], 200, seed=0)
    assert found["gap"] == max(found["accuracy"]) - min(found["accuracy"])
    assert found["worst"]["accuracy"] == min(found["accuracy"])
    assert found["mean"] == pytest.approx(np.mean(found["accuracy"]))
    assert 0 <= found["gap_ci95"][0] <= found["gap_ci95"][1] <= 100
    for value, (low, high) in zip(found["accuracy"], found["ci95"]):
        assert low - 1e-9 <= value <= high + 1e-9 or len(correct) < 12  # percentile intervals of few examples


@pytest.mark.parametrize(
    ("accuracy", "name"),
    [
        ([0.9, 0.8, 0.4, 0.3, 0.4, 0.5, 0.8], "U-shaped"),
        ([0.9, 0.9, 0.5, 0.5, 0.5, 0.2, 0.2], "falling"),
        ([0.2, 0.2, 0.5, 0.5, 0.5, 0.9, 0.9], "rising"),
        ([0.2, 0.2, 0.8, 0.8, 0.8, 0.2, 0.2], "hump-shaped"),
        ([0.9, 0.9, 0.4, 0.4, 0.4, 0.4, 0.4], "better at the beginning"),
    ],
)
def test_the_shape_is_that_of_the_outer_thirds_against_the_middle(accuracy, name):
    rng, order = np.random.default_rng(0), [4, 0, 6, 2, 5, 1, 3]  # positions may come in any order
    correct = (rng.random((300, 7)) < accuracy).astype(float)
    found = shape_of(correct[:, order], [10 * (i + 1) for i in order], 500, rng)
    means = 100 * correct.mean(axis=0)
    assert (found.name, found.ends, found.middle) == (name, 2, 3)
    assert found.beginning_over_middle == pytest.approx(means[:2].mean() - means[2:5].mean())
    assert found.end_over_middle == pytest.approx(means[5:].mean() - means[2:5].mean())
    low, high = found.end_over_middle_ci95
    assert low < found.end_over_middle < high


def test_a_flat_model_is_seldom_called_u_shaped_and_two_positions_have_no_shape():
    rng = np.random.default_rng(0)
    names = [shape_of(rng.random((100, 9)) < rng.random((100, 1)), range(9), 200, rng).name for _ in range(400)]
    assert names.count("U-shaped") <= 20  # 5 % at most: both intervals must lie above 0
    assert names.count("of no certain shape") > 340
    assert shape_of(np.ones((5, 2)), [1, 20], 200, rng) is None


def test_the_bootstrap_draws_whole_rows():
    rng = np.random.default_rng(0)
    correct = rng.random((7, 3)) < 0.5
    weights = statistics.bootstrap_weights(7, 5, np.random.default_rng(3))
    resampled = statistics.bootstrap_accuracy(correct, 5, np.random.default_rng(3))
    for row, expected in zip(weights, resampled):
        drawn = np.repeat(correct, row, axis=0)  # each example as often as it was drawn, with all placements
        assert len(drawn) == 7
        np.testing.assert_allclose(100 * drawn.mean(axis=0), expected)


def test_examples_that_are_right_everywhere_or_nowhere_leave_no_gap_to_chance():
    correct = np.repeat(np.array([[True], [False]] * 50), 5, axis=1)
    found = summarize(correct, [[i + 1] for i in range(5)], 200, seed=0)
    assert found["gap_ci95"] == (0, 0)
    assert found["gap_noise"] == 0


def test_gap_noise_is_the_gap_of_a_flat_model_by_simulation():
    rng = np.random.default_rng(0)
    simulated = [statistics.gap(statistics.accuracy(rng.random((100, 10)) < 0.7)) for _ in range(2000)]
    estimates = [statistics.gap_noise(rng.random((100, 10)) < 0.7, 200, rng) for _ in range(20)]
    assert np.mean(estimates) == pytest.approx(np.mean(simulated), rel=0.03)


def test_gap_noise_does_not_see_a_real_gap():
    rng = np.random.default_rng(0)
    probability = np.linspace(0.9, 0.1, 10)
    biased = rng.random((200, 10)) < probability
    flat = rng.random((200, 10)) < probability.mean()
    assert statistics.gap(statistics.accuracy(biased)) > 60
    assert statistics.gap_noise(biased, 200, rng) == pytest.approx(statistics.gap_noise(flat, 200, rng), rel=0.1)


def test_the_interval_of_the_mean_covers_the_truth_as_often_as_it_says():
    rng, hits, runs = np.random.default_rng(0), 0, 300
    for _ in range(runs):
        difficulty = rng.random((80, 1))  # examples differ, placements of one share its difficulty
        correct = rng.random((80, 5)) < difficulty
        low, high = statistics.interval(statistics.bootstrap_accuracy(correct, 400, rng).mean(axis=1))
        hits += low <= 50 <= high
    assert 0.91 <= hits / runs <= 0.98


def test_pairing_removes_what_examples_share():
    rng = np.random.default_rng(0)
    reference = rng.random((400, 5)) < rng.random((400, 1))
    candidate = reference.copy()
    candidate[:20] = True
    estimate, (low, high) = statistics.paired_difference(candidate, reference, 1000, rng)
    assert estimate == pytest.approx(100 * (candidate.mean() - reference.mean()))
    assert 0 < low < estimate < high < 6
    same, interval = statistics.paired_difference(reference, reference, 100, rng)
    assert same == 0 and interval == (0, 0)
