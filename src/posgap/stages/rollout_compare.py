"""rollout compare: how well the predicted rollout agrees with the measured influence, and with a sweep's accuracy."""

import logging
from pathlib import Path

import numpy as np

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import write_json
from posgap.foundation.printing import RESULT
from posgap.measurement.sweeps import read_predictions, read_sweep, swept_rows
from posgap.rollout.agreement import reading as agreement_reading
from posgap.rollout.comparison import compare, comparison_curves, reading, sweep_reading, sweep_spearman
from posgap.rollout.config import RolloutCompareConfig
from posgap.rollout.documents import joined, joined_reading
from posgap.rollout.files import read_document_shares, read_influences, read_measurement, read_prediction
from posgap.rollout.measurement import ATTRIBUTIONS, INFLUENCES
from posgap.rollout.plots import save
from posgap.stages.frame import stage
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)


@stage
def rollout_compare(config: RolloutCompareConfig, out: Path, run: Run) -> None:
    """Writes `comparison.json` and `comparison.png`."""
    prediction, measurement = read_prediction(config.prediction), read_measurement(config.measurement)
    if prediction.sequence_length != measurement.sequence_length:
        raise PosgapError(
            f"{config.prediction}: predicted for {prediction.sequence_length} tokens, but {config.measurement} was "
            f"measured over {measurement.sequence_length}; predict again with `measurement`"
        )
    sweep = read_sweep(config.sweep) if config.sweep else None
    if sweep:
        sweep.require_model_alone(config.sweep, "give a sweep without one, whose positions are those that it reads")
    if sweep and sweep.categories:
        raise PosgapError(
            f"{config.sweep}: a sweep of pairs has no curve over positions; give one of a task with one gold document"
        )
    names = [name for name in (*INFLUENCES, *ATTRIBUTIONS) if name in measurement.influence]
    if config.influence not in names:
        raise PosgapError(
            f"{config.measurement}: {config.influence} was not measured; measure with `attributions`, or give another "
            "`influence`"
        )
    predicted, texts = np.array(prediction.distribution), read_influences(config.measurement, measurement, names)
    figures = {
        name: compare(predicted, texts[name], config.resamples, np.random.default_rng(config.seed)) for name in names
    }
    chosen = np.array(measurement.influence[config.influence])
    sentences = [reading(figures[config.influence], predicted, chosen, config.influence.replace("_", " "))]
    result = {
        "prediction": prediction.label,
        "measurement": measurement.label,
        "influence": config.influence,
        "figures": figures,
        "agreement": measurement.agreement,
        "predicted_reading": prediction.reading,
        "measured_reading": measurement.reading,
    }
    if measurement.agreement:
        sentences.append(agreement_reading(measurement.agreement))
    if sweep and config.sweep:
        by_curve = {"predicted": sweep_spearman(sweep, predicted), "measured": sweep_spearman(sweep, chosen)}
        result["sweep"] = {"label": sweep.label, "gap": sweep.gap, "spearman": by_curve}
        sentences.append(sweep_reading(sweep, **by_curve))
        run.metrics({f"sweep_spearman_{name}": value for name, value in by_curve.items() if value is not None})
        if shares := read_document_shares(config.measurement, measurement):
            assert measurement.documents is not None
            answers = {
                (row["id"], row["placement"][0]): float(row["correct"])
                for row in swept_rows(read_predictions(config.sweep))
                if not row.get("sample")
            }
            told = joined(measurement.documents["asked"], shares, answers, config.seed)
            result["documents"] = told
            sentences.append(joined_reading(told, sweep.label))
    result["reading"] = "; ".join(sentences)
    write_json(out / "comparison.json", result)
    curves = {prediction.label: predicted, f"{measurement.label}, {config.influence.replace('_', ' ')}": chosen}
    save(comparison_curves(curves, sweep), out / "comparison.png")
    for name, agreement in figures.items():
        run.metrics(
            {f"{name}_{key}": agreement[key] for key in ("spearman", "wasserstein") if agreement[key] is not None}
        )
    run.artifact(out)
    log.log(RESULT, "%s", result["reading"])
