"""How many examples are needed: against scipy's distributions, Tango's test by brute force, and simulated sweeps."""

import json
import logging

import numpy as np
import pytest
from scipy import optimize, special, stats
from test_gate import write_sweep

from posgap.foundation.errors import PosgapError
from posgap.measurement import power, statistics
from posgap.measurement.config import PlanConfig
from posgap.measurement.power import Assumed


def tango_score(more: float, fewer: float, n: float, difference: float) -> float:
    """How many standard errors a difference lies above that of the counts; the likelihood is maximised numerically."""

    def unlikelihood(q: float) -> float:
        counts, shares = (more, fewer, n - more - fewer), (q + difference, q, 1 - 2 * q - difference)
        return -sum(special.xlogy(count, max(share, 1e-300)) for count, share in zip(counts, shares))

    bounds = max(0.0, -difference), (1 - difference) / 2
    q = optimize.minimize_scalar(unlikelihood, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
    return (n * difference - more + fewer) / np.sqrt(n * (2 * q + difference * (1 - difference)))


def largest_passing(n: int, limit: float, variance: float, error: float) -> float:
    """The difference of two placements, or models, that is just shown to be at most `limit`: of examples half of whose
    `variance` is in either direction, or all in one where the difference is larger than that."""

    def spare(difference: float) -> float:
        differing = max(variance, abs(difference))
        counts = n * (differing + difference) / 2, n * (differing - difference) / 2
        return tango_score(*counts, n, limit) - stats.norm.isf(error)

    return optimize.brentq(spare, -1 + 1e-9, limit - 1e-9)


@pytest.mark.parametrize(
    ("n", "tolerance", "variance"),
    [(150, 0.08, 0.224), (200, 0.04, 0.05), (60, 0.1, 0.02), (40, 0.3, 0.001), (300, 0.02, 0.3), (30, 0.05, 0.01)],
)
def test_that_nothing_was_lost_is_shown_as_often_as_a_normal_number_is_below_the_largest_difference_that_passes(
    n, tolerance, variance
):
    largest = largest_passing(n, tolerance, variance, 0.05)
    expected = stats.norm.cdf(largest / np.sqrt(variance / n))
    assert power.equal_rate(n, tolerance, variance) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("placements", [2, 3, 7, 20])
@pytest.mark.parametrize(("n", "limit", "variance"), [(150, 0.15, 0.08), (400, 0.12, 0.14)])
def test_a_flat_model_passes_as_often_as_the_range_of_normal_numbers_is_so_small(placements, n, limit, variance):
    """Which scipy has as the studentized range with infinitely many degrees of freedom."""
    largest = largest_passing(n, limit, 2 * variance, 0.025 if placements == 2 else 0.05)
    expected = stats.studentized_range.cdf(largest / np.sqrt(variance / n), placements, np.inf)
    assert power.flat_rate(n, limit, placements, variance) == pytest.approx(expected, abs=1e-4)


def answered(rng: np.random.Generator, mean: float, correlation: float, n: int, placements: int, models: int = 1):
    """Rights and wrongs `[models, n, 4000, P]` of as many sweeps, beta-binomial, of models that find the same hard."""
    size = (1 - correlation) / correlation
    chances = rng.beta(mean * size, (1 - mean) * size, (n, 4000, 1))
    return rng.random((models, n, 4000, placements)) < chances


@pytest.mark.parametrize(
    ("mean", "correlation", "placements", "n", "points"),
    [(0.8, 0.3, 4, 150, 5), (0.6, 0.2, 2, 240, 6), (0.3, 0.4, 8, 120, 3)],
)
def test_rates_of_passing_are_those_of_the_intervals_of_simulated_sweeps(mean, correlation, placements, n, points):
    rng, variance = np.random.default_rng(0), mean * (1 - mean)
    new, old = answered(rng, mean, correlation, n, placements, models=2).mean(axis=-1)
    passed = statistics.difference_interval(new - old, statistics.LEVEL)[..., 0] >= -points
    own = variance * (1 - correlation) / placements
    assert power.equal_rate(n, points / 100, 2 * own, placements) == pytest.approx(passed.mean(), abs=0.02)
    above = statistics.mean_interval(new, statistics.LEVEL)[..., 0] >= 100 * mean - points
    rate = power.above_rate(n, mean - points / 100, mean, own + variance * correlation)
    assert rate == pytest.approx(above.mean(), abs=0.02) and 0.2 < rate < 0.98


@pytest.mark.parametrize("regions", [3, 2])
def test_the_rate_of_flat_regions_is_that_of_simulated_sweeps(regions):
    rng, n, pooled = np.random.default_rng(1), 200, 4
    scores = answered(rng, 0.8, 0.3, n, regions * pooled).reshape(n, 4000, regions, pooled).mean(axis=-1)
    pairs = [(a, b) for a in range(regions) for b in range(a)]
    error = statistics.upper_error(regions)
    ends = [statistics.difference_interval(scores[..., a] - scores[..., b], error) for a, b in pairs]
    passed = np.all([(low >= -5.5) & (high <= 5.5) for low, high in (np.moveaxis(end, -1, 0) for end in ends)], axis=0)
    rate = power.flat_rate(n, 0.055, regions, 0.16 * 0.7 / pooled, pooled)
    assert rate == pytest.approx(passed.mean(), abs=0.025) and 0.2 < rate < 0.9


@pytest.mark.parametrize(("n", "least", "mean"), [(1000, 0.75, 0.78), (2000, 0.2, 0.22), (1500, 0.5, 0.52)])
def test_a_mean_is_shown_to_be_above_a_floor_as_often_as_binomial_counts_say(n, least, mean):
    """Those whose interval by Wilson, as scipy has it, ends above the floor."""

    def is_above(count: int) -> bool:
        return stats.binomtest(count, n).proportion_ci(0.9, "wilson").low >= least

    fewest = next(count for count in range(int(n * least), n) if is_above(count))
    # Between counts a normal number has none of its own.
    low, high = stats.binom.sf(fewest, n, mean), stats.binom.sf(fewest - 2, n, mean)
    assert low < power.above_rate(n, least, mean, mean * (1 - mean)) < high < low + 0.06


def test_where_nothing_varies_the_bound_of_no_difference_decides():
    """It is z^2 / (n + z^2), Wilson's for no count; and that of a mean of 1 is n / (n + z^2)."""
    z_of_each, z_of_two = stats.norm.isf([0.05, 0.025])
    for z, rate in (
        (z_of_each, lambda n: power.flat_rate(n, 0.05, 3, 0.0)),
        (z_of_two, lambda n: power.flat_rate(n, 0.05, 2, 0.0)),
        (z_of_each, lambda n: power.equal_rate(n, 0.05, 0.0)),
        (z_of_each, lambda n: power.above_rate(n, 0.95, 1.0, 0.0)),
    ):
        fewest = int(np.ceil(19 * z**2))
        assert [rate(n) for n in (fewest - 1, fewest, 10 * fewest)] == [0, 1, 1]
    assert power.above_rate(10, 0.0, 0.0, 0.0) == 1  # a floor of 0 is always held
    assert power.flat_rate(20, 0.05, 3, 0.01) == 0  # where not even equal placements would pass
    assert power.equal_rate(50, 1.5, 0.3) == power.equal_rate(50, 1.0, 0.3)  # of more than all nothing is lost


@pytest.mark.parametrize("gap", [0.1, 0.25])
@pytest.mark.parametrize("assumed", [Assumed(6, 0.7, 0.4, 1.0), Assumed(2, 0.9, 0.0, 0.3)], ids=["six", "two"])
def test_the_number_of_examples_for_a_gap_is_the_least_with_the_power_of_cochran_s_q(gap, assumed):
    df, own = assumed.placements - 1, assumed.mean * (1 - assumed.mean) * (1 - assumed.correlation)

    def found(n: int) -> float:
        return stats.ncx2.sf(stats.chi2.isf(0.05, df), df, n * 2 * (gap / 2) ** 2 / own)

    n = power.examples_for_gap(gap, assumed, 0.8)
    assert found(n - 1) < 0.8 <= found(n)


def test_the_number_of_examples_for_a_difference_is_the_least_with_the_power_of_a_paired_test():
    n = power.examples_for_difference(0.05, 0.3, 0.9)
    found = [stats.norm.sf(stats.norm.isf(0.025), 0.05 / np.sqrt(0.3 / each)) for each in (n - 1, n)]
    assert found[0] < 0.9 <= found[1]


@pytest.mark.parametrize("least", [1, 2, 3, 4, 5, 63, 64, 65, 1000, 8_388_609, 9_999_999, 10_000_000])
def test_the_least_number_that_reaches_a_rate_is_found(least):
    assert power.examples_for_rate(lambda n: min(0.8, 0.8 * n / least), 0.8) == least


def test_what_more_than_ten_million_examples_would_be_needed_for_has_no_number():
    assert power.examples_for_rate(lambda n: float(n > 10_000_000), 0.8) is None


def test_the_gap_that_can_be_certified_is_the_least_that_a_flat_model_is_shown_to_have_so_often():
    assumed = Assumed(5, 0.8, 0.3, 1.0)

    def rate(gap: float) -> float:
        largest = largest_passing(300, gap, 2 * 0.16 * 0.7, 0.05)
        return stats.studentized_range.cdf(max(0.0, largest) / np.sqrt(0.16 * 0.7 / 300), 5, np.inf)

    expected = optimize.brentq(lambda gap: rate(gap) - 0.8, 0.05, 0.5)
    assert power.certifiable_gap(300, assumed, 0.8) == pytest.approx(expected, abs=1e-5)


def test_variances_are_those_of_the_parts_of_an_outcome():
    """Of p (1 - p) the example has the correlation's share, of which two models have the agreement's in common."""
    assumed = Assumed(placements=4, mean=0.9, correlation=0.25, agreement=0.8)
    assert assumed.own_variance == pytest.approx(0.09 * 0.75)
    assert assumed.shared_variance == pytest.approx(0.09 * 0.25)
    assert assumed.between_models == pytest.approx(2 * 0.09 * 0.25 * 0.2)


def test_a_plan_has_the_least_numbers_and_says_what_it_rests_on(capsys, caplog):
    caplog.set_level(logging.INFO)
    needed = power.plan(PlanConfig(detect=10, n_docs=4, mean=60, correlation=0.4, agreement=0.7, power=0.9))
    own, shared = 0.24 * 0.6, 2 * 0.24 * 0.4 * 0.3
    z = stats.norm.isf(0.025) + stats.norm.isf(0.1)
    assert needed == {
        "gap": power.examples_for_gap(0.1, Assumed(4, 0.6, 0.4, 0.7), 0.9),
        "mean_difference": int(np.ceil(z**2 * (shared + 2 * own / 4) / 0.01)),
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
    monkeypatch.setattr(power, "assumed_of_config", lambda config: Assumed(*assumed, 0.8))
    with pytest.raises(PosgapError, match="a mean of 0 or 100, or a correlation of 1, leaves nothing to chance"):
        power.plan(PlanConfig())


def test_what_a_sweep_shows_takes_the_place_of_what_is_expected(tmp_path):
    assert power.assumed_of_config(PlanConfig(n_docs=7, mean=60, correlation=0.4, agreement=0.7)) == (
        7,
        0.6,
        0.4,
        0.7,
        1.0,
    )
    folder = write_sweep(tmp_path / "sweep", [0.9, 0.7, 0.6, 0.7, 0.8])
    correct = outcomes_in(folder)
    off_diagonal = np.corrcoef(correct.T)[np.triu_indices(5, 1)]
    assumed = power.assumed_of_config(PlanConfig(sweep=folder, n_docs=7, mean=60, correlation=0.9, agreement=0.7))
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
    found = power.assumed_of_pair(*scores)
    assert found.placements == 3 and found.mean == pytest.approx(scores[0].mean())
    assert found.correlation == pytest.approx(1 / 5, abs=0.02) and found.agreement == pytest.approx(agreement, abs=0.03)


def test_models_of_which_nothing_is_hard_for_one_agree():
    rng = np.random.default_rng(3)
    varied = np.repeat(rng.random((30, 1)) < 0.5, 3, axis=1).astype(float)
    assert power.assumed_of_pair(varied, varied) == pytest.approx((3, varied.mean(), 1, 1, 1))
    assert power.assumed_of_pair(varied, np.ones((30, 3))).agreement == 1
    assert power.assumed_of_pair(varied, 1 - varied).agreement == 0
    same_mean = np.stack([varied[:, 0], 1 - varied[:, 0]], axis=1)
    assert power.assumed_of_pair(same_mean, same_mean).agreement == 1
