"""What tells right answers: areas by pairs, a twin of the regression, and features that know more than position."""

import dataclasses

import numpy as np
import pytest
from conftest import kv_example
from scipy import optimize

from posgap.foundation.errors import PosgapError
from posgap.generation.setup import prompt_builder
from posgap.measurement.config import SweepConfig
from posgap.rollout.answers import read_answers
from posgap.rollout.config import RolloutMeasureConfig
from posgap.rollout.documents import Asked, gold_shares
from posgap.rollout.files import read_measurement
from posgap.rollout.telling import HEADS, RIDGE, auc, best_heads, logistic, telling, telling_summary
from posgap.stages.rollout_measure import rollout_measure
from posgap.stages.sweep import sweep
from posgap.tasks.content import content
from posgap.tasks.reading import write_examples

E = 200
RNG = np.random.default_rng(3)
POSITIONS = np.arange(E) % 5 + 1
RATE = np.array([0.9, 0.5, 0.1, 0.5, 0.9])[POSITIONS - 1]
HIDDEN = RNG.normal(size=E)  # what else decides
RIGHT = RATE + 0.25 * HIDDEN + 0.2 * RNG.normal(size=E) > 0.5
NO_HEADS = np.empty((E, 0))


def told(**features):
    return telling(features, NO_HEADS, RIGHT, POSITIONS, 0)


def test_areas_count_pairs():
    values, groups = RNG.integers(0, 6, 40), np.arange(40) % 3
    right = RNG.random(40) < 0.4
    for of in (None, groups):
        pairs = [
            (values[i] > values[j]) + (values[i] == values[j]) / 2
            for i in range(40)
            for j in range(40)
            if right[i] and not right[j] and (of is None or of[i] == of[j])
        ]
        assert auc(values, right, of) == pytest.approx(np.mean(pairs))
    assert auc(values, np.ones(40, bool)) is None


def test_the_regression_is_the_minimum_that_scipy_finds():
    x = RNG.normal(size=(E, 2))

    def loss(weights):
        margin = np.where(RIGHT, 1, -1) * (weights[0] + x @ weights[1:])
        return np.logaddexp(0, -margin).sum() + RIDGE / 2 * (1e-6 * weights[0] ** 2 + weights[1:] @ weights[1:])

    np.testing.assert_allclose(logistic(x, RIGHT), optimize.minimize(loss, np.zeros(3)).x[1:], atol=1e-4)
    apart = np.where(RIGHT, 1.0, -1.0)[:, None]
    assert 3 < logistic(apart, RIGHT)[0] < 10  # a feature that tells everything keeps a finite weight


def test_what_knows_more_than_position_gains_and_position_itself_does_not():
    found = told(hidden=HIDDEN, place=RATE, noise=RNG.normal(size=E))
    area, (low, high) = found["position"]
    assert 0.65 < low < area < high < 0.95
    hidden, place, noise = (found["features"][name] for name in ("hidden", "place", "noise"))
    assert hidden["gain"] > 0.08 and hidden["gain_ci95"][0] > 0.03 and hidden["auc_within_position"] > 0.8
    assert place["auc"] > 0.7 and place["auc_within_position"] == 0.5 and abs(place["gain"]) < 0.02
    assert noise["gain_ci95"][0] < 0 and abs(noise["gain"]) < 0.03
    assert "of 3 other things hidden adds most, AUC +0." in telling_summary({"label": "base"} | found)
    assert "it gains (200 prompts, cross-validated" in telling_summary({"label": "base"} | found)


def test_a_feature_may_be_the_other_way_round():
    against = told(against=-HIDDEN)["features"]["against"]
    assert against["auc"] < 0.5 and against["gain"] > 0.08


def test_heads_are_chosen_where_they_are_not_judged():
    """Of 400 heads of noise the best on all prompts tell a good deal; held out they tell nothing."""
    noise = RNG.normal(size=(E, 400))
    within = best_heads(noise, RIGHT, np.ones(E, bool))
    assert auc(within, RIGHT) > 0.65
    found = telling({}, noise, RIGHT, POSITIONS, 0)["features"][HEADS]
    assert abs(found["auc"] - 0.5) < 0.12 and found["gain_ci95"][0] < 0
    knows = np.hstack([noise, HIDDEN[:, None] + 0.3 * RNG.normal(size=(E, 5))])
    assert telling({}, knows, RIGHT, POSITIONS, 0)["features"][HEADS]["gain_ci95"][0] > 0.02


@pytest.mark.parametrize("right", [np.ones(E, bool), np.zeros(E, bool)])
def test_answers_that_are_all_alike_tell_nothing(right):
    found = telling({"hidden": HIDDEN}, NO_HEADS, right, POSITIONS, 0)
    assert found["features"] == {}
    assert "answered all of the 200 measured prompts alike" in telling_summary({"label": "base"} | found)


@pytest.fixture(scope="module")
def asked(tmp_path_factory, model_folder):
    """Examples, and a sweep of the tiny model that asked some positions of them."""
    folder = tmp_path_factory.mktemp("asked")
    write_examples(folder / "e.jsonl", [kv_example(i) for i in range(24)])
    words = {"examples": folder / "e.jsonl", "model": str(model_folder), "task": "kv", "n_docs": 4}
    sweep(SweepConfig(**words, positions=[1, 3, 4], baselines=["closed-book"], out=folder / "sweep"))
    return folder, words


def test_a_measurement_beside_a_sweep_asks_its_positions_and_tells_its_answers(asked, tmp_path, model_folder):
    folder, _ = asked
    measure = RolloutMeasureConfig(
        texts=folder / "e.jsonl", model=str(model_folder), task="kv", n_docs=4, sweep=folder / "sweep",
        out=tmp_path / "m",
    )  # fmt: skip
    measured = read_measurement(rollout_measure(measure))
    assert measured.documents["positions"] == [1, 3, 4] == measured.sweep.positions
    assert measured.telling["prompts"] == 24
    assert measured.telling["label"] == measured.sweep.label
    with pytest.raises(PosgapError, match="asked 4 documents of the task kv, and not 3 of kv; measure what was swept"):
        rollout_measure(measure.model_copy(update={"n_docs": 3, "out": tmp_path / "other"}))
    with pytest.raises(PosgapError, match="length: is that of plain texts, and prompts are measured whole"):
        rollout_measure(measure.model_copy(update={"length": 30, "out": tmp_path / "cut"}))
    with pytest.raises(PosgapError, match="sweep: has answers to prompts: give the `task`"):
        read_answers(folder / "sweep", None, 4)


def test_features_are_those_of_the_answers_own_prompts(asked, model_folder):
    """The tiny model answers nothing, so scores are made: what is right is told by the length alone."""
    folder, _ = asked
    examples = {f"kv-{i}": kv_example(i) for i in range(24)}
    build = prompt_builder("kv", str(model_folder), 0)
    made = [Asked(f"kv-{i}", (1, 3, 4)[i % 3], (), (0, 0)) for i in range(24)]
    right = [i % 4 < 2 for i in range(24)]
    swept = read_answers(folder / "sweep", build, 4)
    assert {(content(examples[each.id]), each.position) for each in made} <= set(swept.scores)
    scores = {(content(examples[each.id]), each.position): float(good) for each, good in zip(made, right)}
    swept = dataclasses.replace(swept, scores=scores)
    lengths, rng = [90 - 10 * good for good in right], np.random.default_rng(0)
    shares, attention = {"rollout": rng.dirichlet(np.ones(4), 24)}, rng.random((24, 2, 3, 4))
    found = swept.told(build, examples, made, lengths, shares, attention, 0)
    names = {"rollout of the gold document", "a short prompt", "BM25", "closed book", HEADS}
    assert set(found["features"]) == names and found["accuracy"] == 50
    assert found["features"]["a short prompt"]["auc"] == 1
    gold = gold_shares(shares["rollout"], np.array([each.position for each in made]))
    assert found["features"]["rollout of the gold document"]["auc"] == auc(gold, np.array(right))
    # Another example under the same name is another question, and has no answer in the sweep.
    with pytest.raises(PosgapError, match="has answers to 0 of 24 prompts to measure, and 10 are the fewest"):
        swept.require_enough({f"kv-{i}": kv_example(i + 100) for i in range(24)}, made)


def test_too_few_answers_are_told_before_the_model_is_loaded(asked, tmp_path, model_folder, monkeypatch):
    folder, _ = asked
    monkeypatch.setattr("posgap.stages.rollout_measure.load_model", lambda *a: pytest.fail("was loaded"))
    measure = RolloutMeasureConfig(
        texts=folder / "e.jsonl", model=str(model_folder), task="kv", n_docs=4, sweep=folder / "sweep", limit=9,
        out=tmp_path / "few",
    )  # fmt: skip
    with pytest.raises(PosgapError, match="has answers to 9 of 9 prompts to measure, and 10 are the fewest"):
        rollout_measure(measure)


def test_a_sweep_with_other_prompts_is_refused(asked, tmp_path, model_folder):
    folder, words = asked
    other = sweep(SweepConfig(**words, limit=2, shuffle=1, out=tmp_path / "shuffled"))
    measure = RolloutMeasureConfig(
        texts=folder / "e.jsonl", model=str(model_folder), task="kv", n_docs=4, sweep=other, out=tmp_path / "m"
    )
    with pytest.raises(PosgapError, match="shuffled: asked other prompts than are measured"):
        rollout_measure(measure)
