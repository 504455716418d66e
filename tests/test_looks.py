"""Looks at a model with ever more examples, and candidates of one run, share the error of a verdict."""

import math

import numpy as np
import pytest

from posgap.gating.verdict import LATER, share_of_error
from posgap.measurement.statistics import LEVEL, tango_bound, upper_error


def test_the_shares_add_up_to_little_more_than_a_first_look_has():
    assert share_of_error(1, 1) == 1 and share_of_error(3, 5) == pytest.approx(LATER**2 / 5)
    assert math.fsum(share_of_error(look, 1) for look in range(1, 60)) == pytest.approx(4 / 3)
    assert 10 * share_of_error(1, 10) == pytest.approx(1)


@pytest.fixture(scope="module")
def passed():
    """Whether a model of two placements whose gap is just what is allowed, 10 points, passes [runs, looks] with 100 to
    1,600 examples, by the error of each bound."""
    rng, runs, limit, sizes = np.random.default_rng(0), 4000, 0.1, [100, 150, 250, 400, 650, 1000, 1600]
    outcomes = rng.choice([1, -1, 0], p=[0.15, 0.05, 0.8], size=(runs, sizes[-1]))

    def by(errors):
        columns = []
        for size, error in zip(sizes, errors, strict=True):
            seen = outcomes[:, :size]
            more, fewer = ((seen == sign).sum(axis=1).astype(float) for sign in (1, -1))
            bounds = [tango_bound(*pair, size, upper_error(2, error)) for pair in ((more, fewer), (fewer, more))]
            columns.append(np.maximum(*bounds) <= limit)
        return np.stack(columns, axis=1)

    return by


def test_seven_looks_pass_hardly_more_often_than_one(passed):
    alone = passed([LEVEL] * 7)
    spent = passed([LEVEL * share_of_error(look, 1) for look in range(1, 8)])
    assert alone.any(axis=1).mean() > 0.075
    assert 0.015 < spent[:, 0].mean() <= spent.any(axis=1).mean() < 0.035


def test_ten_candidates_pass_hardly_more_often_than_one(passed):
    alone, shared = (passed([LEVEL * share] * 7)[:, -1].reshape(-1, 10).any(axis=1) for share in (1, 1 / 10))
    assert alone.mean() > 0.18 and 0.005 < shared.mean() < 0.05
