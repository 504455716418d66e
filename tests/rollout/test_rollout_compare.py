"""Distributions over positions: shapes, correlation, distance, and predictions compared with measurements."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_json
from posgap.options.rollout_measure import RolloutMeasureConfig
from posgap.options.rollout_predict import RolloutPredictConfig
from posgap.rollout import comparison
from posgap.rollout.comparison import compare_distributions, predicted_shares
from posgap.rollout.distributions import bin_distribution, normalize, prediction_text, shape, spearman, wasserstein
from posgap.rollout.files import read_measurement
from posgap.verbs.rollout_measure import rollout_measure
from posgap.verbs.rollout_predict import rollout_predict


@given(st.integers(2, 40), st.integers(0, 999))
def test_correlation_and_distance_are_scipy_s(n, seed):
    rng = np.random.default_rng(seed)
    a, b = normalize(rng.integers(0, 6, (3, n)).astype(float)), normalize(rng.random(n))
    for row, rank, distance in zip(a, spearman(a, b), wasserstein(a, b)):
        if np.ptp(row) > 0:
            assert rank == pytest.approx(stats.spearmanr(row, b).statistic)
        positions = np.arange(n)
        assert distance == pytest.approx(stats.wasserstein_distance(positions, positions, row, b), abs=1e-12)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.ones(100), "flat"),
        (np.exp(-np.arange(100) / 20), "falling from the first token (primacy)"),
        (np.exp(np.arange(100) / 20), "rising to the last token (recency)"),
        (np.cosh((np.arange(100) - 60) / 15), "U-shaped"),
        (np.exp(-(((np.arange(100) - 50) / 10) ** 2)), "greatest between the ends"),
        (np.array([3.0, 1.0, 2.0, 9.0]), "U-shaped"),
        # What the last token keeps of itself is no rise towards the end.
        (np.concatenate([np.exp(-np.arange(100) / 20), [5.0]]), "falling from the first token (primacy)"),
        (np.concatenate([np.ones(100), [9.0]]), "flat"),
        (np.array([3.0, 1.0]), "flat"),
        (np.array([1.0]), "flat"),
    ],
)
def test_shapes(values, expected):
    assert shape(normalize(values)) == expected


def test_the_reading_names_what_the_issue_asks_for():
    sentence = prediction_text(
        normalize(np.array([15.0, 1, 1, 2, 1])), np.array([0.54, 0.02]), np.array([0.99, 0.01, 0, 0])
    )
    assert sentence.startswith("U-shaped; the first token draws 3.8 times its share")
    assert "residual strength falls from 0.54 to 0.02 over depth" in sentence
    assert "without residuals the same attention would put 99 % on token 1" in sentence


def test_an_interval_narrows_around_what_all_texts_share():
    rng = np.random.default_rng(0)
    shared = normalize(np.linspace(1, 3, 30))
    texts = normalize(shared * rng.lognormal(sigma=0.5, size=(400, 30)))
    many, few = compare_distributions(shared, texts, rng), compare_distributions(shared, texts[:10], rng)
    assert many["spearman"] > 0.9 and many["spearman_ci95"][0] > 0.8
    width = {name: agreement["wasserstein_ci95"][1] - agreement["wasserstein_ci95"][0] for name, agreement in
             {"many": many, "few": few}.items()}  # fmt: skip
    assert width["many"] < width["few"] / 2
    same = compare_distributions(shared, np.tile(shared, (5, 1)), rng)
    assert same["spearman"] == pytest.approx(1) and same["wasserstein"] == pytest.approx(0, abs=1e-12)


ACCURACY = {
    "label": "base", "gap": 75.0, "n_docs": 4, "metric": "em", "positions": [1, 2, 3, 4],
    "accuracy": [100.0, 50.0, 25.0, 75.0],
}  # fmt: skip


@pytest.fixture
def measured(tmp_path, model_folder):
    (tmp_path / "t.txt").write_text("0123456789abcdef" * 12)
    return rollout_measure(
        RolloutMeasureConfig(texts=tmp_path / "t.txt", model=str(model_folder), length=24, out=tmp_path / "measured")
    )


@pytest.mark.parametrize(
    ("name", "value"), [("measures", -0.5), ("spearman", "high"), ("spearman_ci95", [0.1]), ("texts", None)]
)
def test_an_agreement_that_was_edited_is_refused_in_one_line(measured, name, value):
    told = read_json(measured / "measurement.json")
    assert len(told["agreement"]["pairs"]) > 1
    told["agreement"]["pairs"][1][name] = value
    (measured / "measurement.json").write_text(json.dumps(told))
    with pytest.raises(PosgapError, match=rf"measurement.json: field `agreement.pairs.1.{name}"):
        read_measurement(measured)


def swept(measured, tmp_path, **changes):
    """The measurement, as if a sweep had been given."""
    told = read_json(measured / "measurement.json")
    told["sweep"] = {**ACCURACY, **changes}
    (tmp_path / "swept").mkdir()
    (tmp_path / "swept" / "measurement.json").write_text(json.dumps(told))
    (tmp_path / "swept" / "arrays.npz").write_bytes((measured / "arrays.npz").read_bytes())
    return tmp_path / "swept"


@pytest.mark.full
@pytest.mark.usefixtures("pictures")
def test_a_prediction_is_compared_with_its_measurement_and_a_sweep(tmp_path, measured, caplog):
    caplog.set_level("INFO", "posgap")
    config = RolloutPredictConfig(
        measurement=swept(measured, tmp_path), encoding="measured", residual=["measured"],
        out=tmp_path / "predicted",
    )  # fmt: skip
    predicted = rollout_predict(config)
    assert (predicted / "prediction.json").is_file()
    compared = read_json(predicted / "comparison.json")
    figures = compared["figures"]["gradient"]
    low, high = figures["wasserstein_ci95"]
    assert 0 <= low <= figures["wasserstein"] <= high
    assert "the accuracy of base (gap 75.0) follows the measured shares" in compared["summary"]
    assert compared["agreement"]["of"] == "tokens" and "by rollout agrees (Spearman)" in compared["summary"]
    assert "of the measured gradient over 24 places of the prompt" in compared["summary"]
    assert compared["summary"] in caplog.messages
    assert (predicted / "comparison.png").stat().st_size > 10_000


def test_a_measure_that_was_left_out_is_not_compared(tmp_path, measured):
    told = read_json(measured / "measurement.json")
    told["influence"].pop("value_norm")
    (measured / "measurement.json").write_text(json.dumps(told))
    compared = rollout_predict(RolloutPredictConfig(measurement=measured, out=tmp_path / "predicted"))
    assert "value_norm" not in read_json(compared / "comparison.json")["figures"]


@pytest.mark.parametrize(("rank", "said"), [(0.2, True), (0.49, True), (0.51, False), (-0.3, True), (None, False)])
def test_a_prediction_that_fails_says_so_first(rank, said):
    figures = {"spearman": rank, "spearman_ci95": rank and [rank - 0.1, rank + 0.1], "wasserstein_share": 0.1}
    sentence = comparison.comparison_text(figures, "rollout", "documents", 10)
    assert sentence.startswith("the prediction does not describe this model (Spearman below 0.5)") == said
    assert rank is None or f"(Spearman {rank:.2f}, {rank - 0.1:.2f} to {rank + 0.1:.2f})" in sentence


def test_predicted_shares_of_documents_are_those_of_their_stretches():
    predicted = normalize(np.arange(1.0, 11))
    edges = np.array([[0.1, 0.3, 0.3, 0.5], [0.2, 0.25, 0.9, 1.0]])
    one, other = (2 + 3) / (2 + 3 + 4 + 5), 1.5 / (1.5 + 10)
    expected = np.mean([[one, 1 - one], [other, 1 - other]], axis=0)
    np.testing.assert_allclose(predicted_shares(predicted, edges), expected)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 99))
def test_binning_keeps_what_there_is_and_where(n, bins, seed):
    values = normalize(np.random.default_rng(seed).random((2, n)))
    found = bin_distribution(values, bins)
    assert found.shape == (2, bins)
    np.testing.assert_allclose(found.sum(axis=1), 1)
    fine = np.repeat(values / bins, bins, axis=1).reshape(2, bins, n).sum(axis=2)  # each token in `bins` pieces
    np.testing.assert_allclose(found, fine, atol=1e-12)
    np.testing.assert_allclose(bin_distribution(values, n), values, atol=1e-12)


def test_without_an_order_there_is_no_correlation_and_the_report_says_so(tmp_path, measured):
    """A sweep whose accuracy is the same everywhere, and a prediction whose shares are."""
    flat_sweep = swept(measured, tmp_path, accuracy=[50.0] * 4, gap=0.0)
    compared = read_json(
        rollout_predict(RolloutPredictConfig(measurement=flat_sweep, out=tmp_path / "predicted")) / "comparison.json"
    )
    assert compared["sweep"]["spearman"] == {"predicted": None, "measured": None}
    assert "the accuracy of base is the same at every position, so nothing can be said" in compared["summary"]
    flat, texts = np.full(24, 1 / 24), normalize(np.random.default_rng(0).random((5, 24)))
    figures = compare_distributions(flat, texts, np.random.default_rng(0))
    assert figures["spearman"] is None and figures["spearman_ci95"] is None and figures["wasserstein"] > 0
    said = comparison.comparison_text(figures, "rollout", "documents", 24)
    assert "cannot be compared in order (no Spearman: one of the two is the same" in said


def test_lengths_that_differ_are_not_compared(tmp_path, measured, caplog):
    caplog.set_level("INFO", "posgap")
    config = RolloutPredictConfig(sequence_length=9, measurement=measured, out=tmp_path / "predicted")
    predicted = rollout_predict(config)
    assert "predicted for 9 tokens, and measured over up to 24: the two are not compared" in caplog.messages
    assert (predicted / "prediction.json").is_file() and not list(predicted.glob("comparison*"))
