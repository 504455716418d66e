"""How many examples are needed to see a difference: against scipy's distributions."""

import json
import logging
import math
from itertools import islice

import numpy as np
import pytest
from scipy import stats
from written_sweeps import write_sweep

from posgap.foundation.errors import PosgapError
from posgap.measurement import power, simulated_sweeps, statistics
from posgap.measurement.power import Assumptions
from posgap.measurement.simulated_sweeps import examples_for_gap
from posgap.options.plan_sweep import PlanConfig
from posgap.verbs.plan_sweep import assumptions_from_config, plan_sweep


@pytest.mark.parametrize("gap", [0.1, 0.25])
@pytest.mark.parametrize("assumed", [Assumptions(6, 0.7, 0.4, 1.0), Assumptions(2, 0.9, 0.0, 0.3)], ids=["six", "two"])
def test_the_number_of_examples_for_a_gap_is_the_least_with_the_power_of_cochran_s_q(gap, assumed):
    df, own = assumed.placements - 1, assumed.mean * (1 - assumed.mean) * (1 - assumed.correlation)

    def found(n: int) -> float:
        return stats.ncx2.sf(stats.chi2.isf(0.05, df), df, n * 2 * (gap / 2) ** 2 / own)

    n = math.ceil(power.examples_by_cochran(gap, assumed, 0.8))
    assert found(n - 1) < 0.8 <= found(n)


@pytest.mark.parametrize("placements", [3, 20])
def test_a_plan_calls_uneven_what_the_flatness_test_does(placements):
    assumed = Assumptions(placements, 0.9, 0.4, 1.0)
    pairs = []
    for correct in islice(simulated_sweeps._simulate_gap(0.1, assumed, 120), 200):
        pairs.append((simulated_sweeps._is_uneven(correct), statistics.flatness_p(correct) < 0.05))
    assert np.mean([plan == test for plan, test in pairs]) > 0.95
    assert 0.2 < np.mean([test for _, test in pairs]) < 0.9
    assert not simulated_sweeps._is_uneven(np.ones((9, placements)))


def test_the_number_of_examples_is_the_least_with_the_paired_test_s_power():
    n = power.examples_for_difference(0.05, 0.3, 0.9)
    graded = power.examples_for_difference(0.05, 0.3, 0.9, graded=True)
    # The gain less the one more example that lost it all is as many standard errors.
    assert (0.05 - 1.05 / graded) * np.sqrt(graded) == pytest.approx(0.05 * np.sqrt(n), rel=1e-3)
    found = [stats.norm.sf(stats.norm.isf(0.025), 0.05 / np.sqrt(0.3 / each)) for each in (n - 1, n)]
    assert found[0] < 0.9 <= found[1]


def test_variances_are_those_of_the_parts_of_an_outcome():
    """Of p (1 - p) the example has the correlation's share, of which two models have the agreement's in common."""
    assumed = Assumptions(placements=4, mean=0.9, correlation=0.25, agreement=0.8)
    assert assumed.own_variance == pytest.approx(0.09 * 0.75)
    assert assumed.shared_variance == pytest.approx(0.09 * 0.25)
    assert assumed.between_models == pytest.approx(2 * 0.09 * 0.25 * 0.2)


def test_a_plan_has_the_least_numbers_and_says_what_it_rests_on(capsys, caplog):
    caplog.set_level(logging.INFO)
    needed = plan_sweep(PlanConfig(detect=10, n_docs=4, mean=60, correlation=0.4, agreement=0.7, power=0.9))
    own, shared = 0.24 * 0.6, 2 * 0.24 * 0.4 * 0.3
    z = stats.norm.isf(0.025) + stats.norm.isf(0.1)
    assert needed == {
        "gap": examples_for_gap(0.1, Assumptions(4, 0.6, 0.4, 0.7), 0.9),
        "mean_difference": power.examples_for_difference(0.1, shared + 2 * own / 4, 0.9, graded=True),
        "placement_difference": int(np.ceil(z**2 * (shared + 2 * own) / 0.01)),
    }
    assert json.loads(capsys.readouterr().out) == {"detect": 10, "power": 0.9, "examples": needed}
    assert caplog.messages == [
        "assuming a mean of 60.0 over 4 placements, a correlation of 0.40 between placements, an agreement of 0.70 "
        "between models",
        f"a gap of one model of 10 points: {needed['gap']} examples (power 90 %)",
        f"a difference of two models in the mean of 10 points: {needed['mean_difference']} examples (power 90 %)",
        f"a difference of two models at one placement of 10 points: {needed['placement_difference']} examples "
        "(power 90 %)",
    ]


@pytest.mark.parametrize("assumed", [(5, 1.0, 0.0), (5, 0.0, 0.0), (5, 0.5, 1.0)], ids=str)
def test_where_nothing_is_left_to_chance_there_is_nothing_to_plan(monkeypatch, assumed):
    monkeypatch.setattr("posgap.verbs.plan_sweep.assumptions_from_config", lambda config: Assumptions(*assumed, 0.8))
    with pytest.raises(PosgapError, match=" 0 or 100, .* 1, "):
        plan_sweep(PlanConfig())


def test_what_a_sweep_shows_takes_the_place_of_what_is_expected(tmp_path):
    assert assumptions_from_config(PlanConfig(n_docs=7, mean=60, correlation=0.4, agreement=0.7)) == (
        7,
        0.6,
        0.4,
        0.7,
        1.0,
    )
    folder = write_sweep(tmp_path / "sweep", [0.9, 0.7, 0.6, 0.7, 0.8])
    correct = outcomes_in(folder)
    off_diagonal = np.corrcoef(correct.T)[np.triu_indices(5, 1)]
    assumed = assumptions_from_config(PlanConfig(sweep=folder, n_docs=7, mean=60, correlation=0.9, agreement=0.7))
    assert assumed[::3] == (5, 0.7)
    assert assumed.mean == pytest.approx(correct.mean())
    assert assumed.correlation == pytest.approx(max(0, off_diagonal.mean()))


def outcomes_in(folder) -> np.ndarray:
    """Rights and wrongs `[E, P]` in a sweep's file of predictions."""
    rows = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    examples = dict.fromkeys(row["id"] for row in rows)
    return np.array([[row["correct"] for row in rows if row["id"] == name] for name in examples], dtype=float)


def test_placements_that_are_never_or_always_right_correlate_with_none():
    hard, easy = np.array([1.0, 0, 1, 0, 1, 1]), np.array([1.0, 0, 1, 1, 1, 1])
    both = np.corrcoef(hard, easy)[0, 1]
    alone = power.correlation_of_placements(np.stack([hard, np.ones(6), easy, np.zeros(6)], axis=1))
    assert alone == pytest.approx(both) and 0 < both < 1
    assert power.correlation_of_placements(np.stack([hard, np.ones(6)], axis=1)) == 0
    assert power.correlation_of_placements(np.stack([hard, 1 - hard], axis=1)) == 0  # below 0 there is no share
    assert power.correlation_of_placements(np.stack([hard, easy, easy], axis=1)) == pytest.approx((2 * both + 1) / 3)


@pytest.mark.parametrize(("shares", "agreement"), [((1.0, 0.0), 1.0), ((0.6, 0.8), 0.6), ((0.0, 1.0), 0.0)])
def test_the_agreement_of_two_models_is_that_of_what_is_hard_for_each(shares, agreement):
    """Without what each outcome has of its own, of which the means over few placements hold much."""
    rng, n = np.random.default_rng(2), 40_000
    common, other = rng.standard_normal((2, n, 1))
    first, second = common, shares[0] * common + shares[1] * other
    scores = [hard + noise * rng.standard_normal((n, 3)) for hard, noise in ((first, 2), (second, 0.5))]
    found = power.assumptions_from_pair(*scores)
    assert found.placements == 3 and found.mean == pytest.approx(scores[0].mean())
    assert found.correlation == pytest.approx(1 / 5, abs=0.02) and found.agreement == pytest.approx(agreement, abs=0.03)


def test_models_of_which_nothing_is_hard_for_one_agree():
    rng = np.random.default_rng(3)
    varied = np.repeat(rng.random((30, 1)) < 0.5, 3, axis=1).astype(float)
    assert power.assumptions_from_pair(varied, varied) == pytest.approx((3, varied.mean(), 1, 1, 1))
    assert power.assumptions_from_pair(varied, np.ones((30, 3))).agreement == 1
    assert power.assumptions_from_pair(varied, 1 - varied).agreement == 0
    same_mean = np.stack([varied[:, 0], 1 - varied[:, 0]], axis=1)
    assert power.assumptions_from_pair(same_mean, same_mean).agreement == 1
