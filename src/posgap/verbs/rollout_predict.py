"""rollout predict: each input position's share in the last token, from mask, encoding, residuals and depth alone, and
how well it agrees with a measurement."""

import dataclasses
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from posgap.foundation.files import write_json
from posgap.foundation.printing import RESULT
from posgap.measurement.plots import save_picture
from posgap.options.rollout_predict import RolloutPredictConfig
from posgap.rollout.agreement import agreement_text
from posgap.rollout.architecture import Architecture
from posgap.rollout.architecture_options import Description, build_architecture
from posgap.rollout.comparison import (
    compare_distributions,
    comparison_curves,
    comparison_text,
    predicted_shares,
    sweep_spearman,
    sweep_summary,
)
from posgap.rollout.distributions import bin_distribution, describe_distribution, prediction_text
from posgap.rollout.files import (
    PREDICTION_FILE,
    Measurement,
    Prediction,
    read_document_edges,
    read_document_shares,
    read_influences,
    read_measurement,
)
from posgap.rollout.plots import distribution_curves
from posgap.tracking.runs import Run
from posgap.verbs.frame import stage

log = logging.getLogger(__name__)
COMPARISON_FILE = "comparison.json"
LABEL = "predicted"  # what plots and tables call the prediction
SHOWN = "gradient"  # the measure of influence that plot and summary show; all are compared in the file


@stage
def rollout_predict(config: RolloutPredictConfig, out: Path, run: Run) -> None:
    """Writes `prediction.json` and `prediction.png`; if a measurement's longest text has the predicted length, also
    `comparison.json` and `comparison.png`."""
    measured = read_measurement(config.measurement) if config.measurement else None
    architecture, n_heads = build_architecture(describe_architecture(config), measured)
    prediction = _predict(config, architecture, n_heads)
    _write_prediction(prediction, out, run)
    if measured and measured.sequence_length == architecture.n:
        places = bin_distribution(np.array(prediction.distribution), measured.bins)
        comparison = _compare(config, prediction, measured, places)
        write_json(out / COMPARISON_FILE, comparison)
        curves = {prediction.label: places, f"{measured.label}, {SHOWN}": np.array(measured.influence[SHOWN])}
        save_picture(comparison_curves(curves, measured.sweep), out / "comparison.png")
        log.log(RESULT, "%s", comparison["summary"])
    elif measured:
        log.info(
            "predicted for %d tokens, and measured over up to %d: the two are not compared",
            architecture.n, measured.sequence_length,
        )  # fmt: skip
    run.artifact(out)


def describe_architecture(config: RolloutPredictConfig) -> Description:
    """Returns the architecture that the options describe."""
    values = {each.name: getattr(config, each.name) for each in dataclasses.fields(Description) if each.name != "given"}
    given = {name for name, value in values.items() if value != config.default(name)}
    return Description(**values, given=frozenset(given))


def _predict(config: RolloutPredictConfig, architecture: Architecture, n_heads: int) -> Prediction:
    distribution = architecture.rollout()
    bare = dataclasses.replace(architecture, lambdas=np.ones(len(architecture.lambdas))).rollout()
    return Prediction(
        label=LABEL,
        sequence_length=architecture.n,
        layers=len(architecture.lambdas),
        heads=n_heads,
        lambdas=architecture.lambdas.tolist(),
        distribution=distribution.tolist(),
        without_residuals=bare.tolist(),
        description=describe_distribution(distribution),
        summary=prediction_text(distribution, architecture.lambdas, bare),
        settings=config.parameter_values(),
    )


def _write_prediction(prediction: Prediction, out: Path, run: Run) -> None:
    write_json(out / PREDICTION_FILE, prediction.model_dump(mode="json"))
    curves = {prediction.label: prediction.distribution, "without residuals": prediction.without_residuals}
    save_picture(distribution_curves({name: np.array(row) for name, row in curves.items()}), out / "prediction.png")
    description = prediction.description
    run.metrics({name: value for name, value in description.items() if name != "shape"})
    run.tags({"posgap.label": prediction.label, "posgap.shape": description["shape"]})
    log.log(RESULT, "%s: %s", prediction.label, prediction.summary)


def _compare(
    config: RolloutPredictConfig, prediction: Prediction, measured: Measurement, places: np.ndarray
) -> dict[str, Any]:
    """Returns what `comparison.json` holds: whether the prediction, over all tokens and over `places`, describes the
    measured influence by place and by document, and how the sweep's accuracy goes with both."""
    folder = config.measurement
    assert folder is not None
    by_place = _compare_measures(places, read_influences(folder, measured, list(measured.influence)), config.seed)
    result: dict[str, Any] = {
        "prediction": prediction.label,
        "measurement": measured.label,
        "influence": SHOWN,
        "figures": by_place,
        "agreement": measured.agreement,
        "predicted_summary": prediction.summary,
        "measured_summary": measured.summary,
    }
    sentences = [comparison_text(by_place[SHOWN], SHOWN, "places of the prompt", measured.bins)]
    shares = read_document_shares(folder, measured)
    if shares:
        predicted = predicted_shares(np.array(prediction.distribution), read_document_edges(folder, measured))
        result["documents"] = _compare_measures(predicted, shares, config.seed)
        if SHOWN in shares:
            sentences = [comparison_text(result["documents"][SHOWN], SHOWN, "documents", len(predicted))]
    if measured.agreement:
        sentences.append(agreement_text(measured.agreement))
    if measured.sweep:
        spearman = {
            "predicted": sweep_spearman(measured.sweep, places),
            "measured": sweep_spearman(measured.sweep, np.array(measured.influence[SHOWN])),
        }
        result["sweep"] = {"label": measured.sweep.label, "gap": measured.sweep.gap, "spearman": spearman}
        sentences.append(sweep_summary(measured.sweep, **spearman))
    return result | {"summary": "; ".join(sentences)}


def _compare_measures(predicted: np.ndarray, texts: Mapping[str, np.ndarray], seed: int) -> dict[str, dict]:
    """Compares a prediction `[N]` with each text's distributions `[E, N]`, by measure; each by the same resamples."""
    return {name: compare_distributions(predicted, each, np.random.default_rng(seed)) for name, each in texts.items()}
