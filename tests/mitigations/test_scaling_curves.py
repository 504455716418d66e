"""Curves over depth: what holds for every kind, and what makes a Bezier curve one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posgap.mitigations.curve_kinds import CURVES, bernstein
from posgap.mitigations.curves import Curve

orders = st.fixed_dictionaries({"order": st.integers(0, 6)})
curves = st.builds(Curve, kind=st.sampled_from(CURVES.names()), parameters=orders)
layers = st.integers(1, 40)


def elevate(points: np.ndarray) -> np.ndarray:
    """Control points `[k + 1]` of the same Bezier curve, one order higher than `points [k]`."""
    k = len(points)
    share = np.arange(k + 1) / k
    return share * np.append(points, 0)[np.arange(k + 1) - 1] + (1 - share) * np.append(points, 0)


def heights(data, k: int, low: float = 0.5, high: float = 3.0) -> np.ndarray:
    return np.array(data.draw(st.lists(st.floats(low, high), min_size=k, max_size=k)))


@given(curves, layers)
def test_every_layer_is_a_convex_combination_of_the_control_points(curve, n_layers):
    basis = curve.basis(n_layers)
    assert basis.shape == (n_layers, curve.n_points(n_layers))
    assert (basis >= 0).all()
    np.testing.assert_allclose(basis.sum(axis=1), 1)


@given(curves, layers, st.data())
def test_constrained_points_keep_bounds_and_order_and_so_do_the_factors(curve, n_layers, data):
    points = curve.constrain(heights(data, curve.n_points(n_layers)))
    factors = np.array(curve.factors(points, n_layers))
    assert len(factors) == n_layers
    for values in (points, factors):
        assert (values >= curve.low).all() and (values <= curve.high).all()
    np.testing.assert_array_equal(curve.constrain(points), points)


def test_points_are_moved_no_further_than_the_constraints_ask():
    points = np.array([2.5, 0.2, 1.23456, 1.7])
    assert Curve().constrain(points).tolist() == [2, 1, 1.2346, 1.7]
    assert Curve(low=0.5, high=3).constrain(points).tolist() == [2.5, 0.5, 1.2346, 1.7]


def test_a_family_and_its_factors_are_recorded_in_plain_values():
    curve = Curve("step", {"order": 1}, low=0.5, high=3.0)
    assert curve.as_record() == {"kind": "step", "order": 1, "low": 0.5, "high": 3.0}
    assert [repr(factor) for factor in curve.factors(np.array([0.5, 1.23456]), 2)] == ["0.5", "1.2346"]


@given(st.integers(0, 6), st.integers(2, 40), st.data())
def test_a_bezier_curve_ends_in_its_end_points(order, n_layers, data):
    curve = Curve("bezier", {"order": order})
    points = curve.constrain(heights(data, order + 1))
    factors = curve.factors(points, n_layers)
    assert factors[0] == pytest.approx(points[0]) and factors[-1] == pytest.approx(points[-1])
    assert curve.factors(points, 1) == pytest.approx((points[0],))


@given(st.integers(0, 6), layers, st.data())
def test_degree_elevation_leaves_the_curve_unchanged(order, n_layers, data):
    points = heights(data, order + 1)
    depth = np.arange(n_layers) / max(n_layers - 1, 1)
    np.testing.assert_allclose(bernstein(depth, order) @ points, bernstein(depth, order + 1) @ elevate(points))


@given(st.integers(1, 6), st.floats(0, 1), st.data())
def test_bernstein_weights_are_de_casteljau_s(order, x, data):
    points = heights(data, order + 1)
    rest = points
    while len(rest) > 1:
        rest = (1 - x) * rest[:-1] + x * rest[1:]
    assert bernstein(np.array([x]), order)[0] @ points == pytest.approx(rest[0])


def test_the_other_kinds_by_hand():
    assert Curve("uniform").factors(np.array([1.5]), 3) == (1.5, 1.5, 1.5)
    assert Curve("free").factors(np.array([1.0, 2.0, 1.2]), 3) == (1.0, 2.0, 1.2)
    assert Curve("linear").factors(np.array([1.0, 2.0]), 3) == (1.0, 1.5, 2.0)
    assert Curve("step", {"order": 1}).factors(np.array([1.0, 2.0]), 4) == (1.0, 1.0, 2.0, 2.0)
    assert Curve("step", {"order": 2}).factors(np.array([1.0, 1.5, 2.0]), 1) == (1.0,)


@pytest.mark.parametrize("kind", CURVES.names())
def test_two_layers(kind):
    curve = Curve(kind)
    points = np.linspace(1, 2, curve.n_points(2))
    assert curve.factors(points, 2) == ((1.0, 1.0) if kind == "uniform" else (1.0, 2.0))
