"""The genetic search on fitness functions whose best point is known."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from posgap.mitigations.curves import Curve
from posgap.scaling.genetic import ELITE, MUTATION, Genetic, search_genetically

TARGET = np.array([1.2, 1.8, 1.4])
CURVE = Curve("free")


def genetic(curve=CURVE, seed=0):
    return Genetic(curve, len(TARGET), population=12, seed=seed)


def near_target(candidates):
    return [-float(np.square(np.array(c) - TARGET).sum()) for c in candidates]


def run(strategy, curve=CURVE, generations=25, patience=25, score=near_target):
    return search_genetically(strategy, curve, len(TARGET), score, generations, patience=patience)


def test_it_finds_the_best_point_and_repeats_itself():
    winner = run(genetic())
    np.testing.assert_allclose(winner.factors, TARGET, atol=0.05)
    assert run(genetic()).history == winner.history != run(genetic(seed=1)).history
    best = [row["best"] for row in winner.history]
    assert best == sorted(best) and best[-1] == winner.fitness
    assert all(row["generation_mean"] <= row["generation_best"] <= row["best"] for row in winner.history)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 99))
def test_every_proposal_keeps_the_constraints_and_the_elite_survives(seed):
    curve = Curve("free")
    strategy = genetic(curve, seed)
    before = []
    for _ in range(4):
        proposed = strategy.propose_points()
        assert len(proposed) == 12
        for points in proposed:
            np.testing.assert_array_equal(curve.constrain(points), points)
        if before:
            low, high = np.min(before, 0) - MUTATION, np.max(before, 0) + MUTATION
            assert all((low - 1e-4 <= p).all() and (p <= high + 1e-4).all() for p in proposed)
        scores = near_target([tuple(p) for p in proposed])
        best = [proposed[i] for i in np.argsort(-np.array(scores), kind="stable")[:ELITE]]
        strategy.rank_points(proposed, scores)
        before = proposed
        np.testing.assert_array_equal(strategy.ranked[:ELITE], best)
        np.testing.assert_array_equal(strategy.propose_points()[:ELITE], best)


def test_the_first_generation_holds_the_unscaled_model():
    assert genetic().propose_points()[0].tolist() == [1.0, 1.0, 1.0]


def test_early_stop_after_generations_without_improvement():
    best = run(genetic(), generations=20, patience=3, score=lambda c: [1.0 for _ in c])
    assert len(best.history) == 4
    assert best.factors == (1.0, 1.0, 1.0)  # the first of equals
