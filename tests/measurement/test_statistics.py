"""Statistics against known answers, brute force and simulation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import special

from posgap.measurement import statistics
from posgap.measurement.figures import summarize
from posgap.measurement.shape import shape_of

matrices = arrays(bool, st.tuples(st.integers(1, 12), st.integers(1, 6)))


def test_accuracy_and_gap_by_hand():
    correct = np.array([[1, 0, 1], [1, 0, 0], [1, 1, 0], [1, 0, 1]], dtype=bool)
    assert statistics.accuracy(correct).tolist() == [100, 25, 50]
    assert statistics.gap(statistics.accuracy(correct)) == 75


@settings(max_examples=30, deadline=None)
@given(matrices)
def test_summary_invariants(correct):
    found = summarize(correct, [[i + 1] for i in range(correct.shape[1])], seed=0)
    assert found["gap"] == max(found["accuracy"]) - min(found["accuracy"])
    assert found["worst"]["accuracy"] == min(found["accuracy"])
    assert found["mean"] == pytest.approx(np.mean(found["accuracy"]))
    for value, (low, high) in [
        (found["gap"], found["gap_ci95"]),
        (found["mean"], found["mean_ci95"]),
        *zip(found["accuracy"], found["ci95"]),
    ]:
        assert 0 <= low <= value + 1e-9 and value - 1e-9 <= high <= 100


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
    found = shape_of(correct[:, order], [10 * (i + 1) for i in order], uneven=True)
    assert shape_of(correct, range(7), uneven=False).name == "of no certain shape"
    means = 100 * correct.mean(axis=0)
    assert (found.name, found.ends, found.middle) == (name, 2, 3)
    assert found.beginning_over_middle == pytest.approx(means[:2].mean() - means[2:5].mean())
    assert found.end_over_middle == pytest.approx(means[5:].mean() - means[2:5].mean())
    low, high = found.end_over_middle_ci95
    assert low < found.end_over_middle < high


def test_a_flat_model_seldom_has_a_shape_and_two_positions_have_none():
    rng, names = np.random.default_rng(0), []
    for _ in range(400):
        correct = (rng.random((100, 9)) < rng.random((100, 1))).astype(float)
        uneven = statistics.flatness_p(correct) < 0.05
        names.append(shape_of(correct, range(9), uneven).name)
    assert names.count("of no certain shape") >= 380  # 5 % at most: flatness must be refuted first
    assert shape_of(np.ones((5, 2)), [1, 20], uneven=True) is None


def test_a_sweep_names_no_shape_where_it_cannot_tell_that_position_matters():
    rng, placements = np.random.default_rng(1), [[i + 1] for i in range(6)]
    for ends in (0.72, 0.95):
        sweeps = [
            summarize(rng.random((60, 6)) < [ends, 0.7, 0.7, 0.7, 0.7, ends], placements, seed=0) for _ in range(10)
        ]
        assert all(s["shape"].name == "of no certain shape" for s in sweeps if not s["flatness"].is_refuted)
        assert all(s["gap_ci95"][0] == 0 for s in sweeps if not s["flatness"].is_refuted)
    assert sum(s["shape"].name == "U-shaped" for s in sweeps) > 5


def test_examples_right_everywhere_or_nowhere_vary_by_their_number_alone():
    correct = np.repeat(np.array([[True], [False]] * 50), 5, axis=1)
    found = summarize(correct, [[i + 1] for i in range(5)], seed=0)
    z = special.ndtri(0.95)
    assert found["gap_ci95"] == (0, pytest.approx(100 * z**2 / (100 + z**2)))
    assert found["gap_noise"] == 0


def test_gap_noise_is_the_gap_of_a_flat_model_by_simulation():
    rng = np.random.default_rng(0)
    simulated = [statistics.gap(statistics.accuracy(rng.random((100, 10)) < 0.7)) for _ in range(2000)]
    estimates = [statistics.gap_noise(rng.random((100, 10)) < 0.7, rng, 200) for _ in range(20)]
    assert np.mean(estimates) == pytest.approx(np.mean(simulated), rel=0.03)


def test_gap_noise_does_not_see_a_real_gap():
    rng = np.random.default_rng(0)
    probability = np.linspace(0.9, 0.1, 10)
    biased = rng.random((200, 10)) < probability
    flat = rng.random((200, 10)) < probability.mean()
    assert statistics.gap(statistics.accuracy(biased)) > 60
    assert statistics.gap_noise(biased, rng, 200) == pytest.approx(statistics.gap_noise(flat, rng, 200), rel=0.1)


def test_pairing_removes_what_examples_share():
    rng = np.random.default_rng(0)
    reference = rng.random((400, 5)) < rng.random((400, 1))
    candidate = reference.copy()
    candidate[:20] = True
    estimate, (low, high) = statistics.paired_difference(candidate, reference)
    assert estimate == pytest.approx(100 * (candidate.mean() - reference.mean()))
    assert 0 < low < estimate < high < 6
    same, (low, high) = statistics.paired_difference(reference, reference)
    assert same == 0 and -1 < low == -high < 0
