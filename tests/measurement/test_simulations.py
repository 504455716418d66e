"""The simulations of docs/statistics.md in miniature, against bounds that were frozen with what the whole ones gave.

Each draws the same cases in every run, so that a figure leaves its bounds only where the code's decisions change.
"""

import sys
from pathlib import Path

import numpy as np
import pytest

from posgap.gating.passing import POLICY, PassRates
from posgap.gating.verdict import asked_rules
from posgap.measurement.statistics import LEVEL

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import simulations


@pytest.fixture(scope="module")
def called_uneven():
    """The share of 150 models of this mean over 20 placements, flat or not, that each test calls uneven at n = 50."""

    def share(shape: str, scores: str, model: str = "flat") -> dict[str, float]:
        rng, (mean, binary) = np.random.default_rng(0), simulations.SCORES[scores]
        deviations = dict(simulations.unevenness(20))[model]
        drawn = [simulations.simulated(mean + deviations, 50, shape, binary, rng) for _ in range(150)]
        tests = {name: simulations.TESTS[name] for name in ("flips", "Q")}
        return {name: np.mean([test(each) < LEVEL for each in drawn]) for name, test in tests.items()}

    return share


@pytest.mark.parametrize("shape", simulations.SHAPES)
@pytest.mark.parametrize("scores", ["0.5", "0.9, graded"])
def test_flat_models_are_called_uneven_as_often_as_the_level_says(called_uneven, shape, scores):
    """Up to correlations of 0.9 of either shape; Cochran's Q calls more where neighbours are alike."""
    found = called_uneven(shape, scores)
    assert 0.005 <= found["flips"] <= 0.095
    assert (found["Q"] > 0.1) == (shape == "AR(1) 0.9")


@pytest.mark.parametrize(
    ("shape", "model", "least"),
    [("exchangeable 0.9", "U", 0.4), ("AR(1) 0.9", "falling", 0.2), ("AR(1) 0.6", "U", 0.3)],
)
def test_uneven_models_are_found_as_often_as_they_were(called_uneven, shape, model, least):
    found = called_uneven(shape, "0.9", model)
    assert found["flips"] > least


def test_the_interval_of_two_placements_covers_as_it_did():
    """Exactly, by enumeration; and no wider than it must be, since somewhere each end errs about as often as it may."""
    found = simulations.coverage(25)
    assert len(found) == len(simulations.GAPS) * len(simulations.FEWER)
    assert 0.928 < min(each.coverage for each in found.values()) < 0.93  # the lowest of the whole table
    assert 0.025 < max(each.below for each in found.values()) < 0.039
    assert 0.03 < max(each.above for each in found.values()) < 0.05
    assert found[0.0, 0.0] == (0, 0)  # where nothing differs nothing can be missed


def test_the_gate_admits_and_refuses_as_often_as_it_did():
    runs = 30
    flat, equal, hole, u_shaped = (
        simulations.judged(simulations.Gated(kind, 0.97, 10, 10.0), 200, runs)
        for kind in ("flat", "equal", "hole", "U")
    )
    assert flat["admitted"] >= 26 and flat["refused"] == 0
    assert equal["admitted"] >= 27  # of two that are equally good, too
    assert hole["admitted"] <= 1 and u_shaped["admitted"] == 0 and u_shaped["refused"] >= 28


@pytest.mark.full
@pytest.mark.parametrize(
    ("cell", "least", "most"),
    [
        (simulations.Cell(0.97, 0.6, 2), 0.73, 0.91),
        pytest.param(simulations.Cell(0.9, 0.9, 5), 0.71, 0.89, marks=pytest.mark.nightly),
        # Neighbours are alike: no fewer are admitted.
        pytest.param(simulations.Cell(0.9, 0.9, 5, True), 0.72, 0.93, marks=pytest.mark.nightly),
    ],
)
def test_a_plan_keeps_its_word_with_models_that_are_drawn_otherwise(cell, least, most):
    n = PassRates(asked_rules(simulations.POLICY_OF_ALL), simulations.assumed(cell)).least(POLICY, 0.8)
    assert least <= simulations.admitted(cell, n, 100) <= most


def test_the_plan_s_trial_models_have_the_given_mean_correlation_and_agreement():
    cell = simulations.Cell(0.9, 0.6, 8)
    one, other = simulations.pair(cell, 40_000, np.random.default_rng(0))
    found = simulations.assumptions_from_pair(one, other)
    assert (found.mean, found.correlation) == (pytest.approx(0.9, abs=0.005), pytest.approx(0.6, abs=0.02))
    assert found.agreement == pytest.approx(simulations.AGREEMENT, abs=0.02)


@pytest.mark.full
def test_the_number_that_a_first_look_names_is_enough_for_the_second():
    named, share = simulations.second_look(simulations.Cell(0.97, 0.5, 2), 80, 12)
    assert min(named) > 80 and share >= 0.5
