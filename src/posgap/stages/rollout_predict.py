"""rollout predict: each input position's share in the last token, from mask, encoding, residuals and depth alone, and
how well it agrees with what was measured."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import write_json
from posgap.foundation.printing import RESULT
from posgap.measurement.plots import save_picture
from posgap.rollout.agreement import agreement_text
from posgap.rollout.architecture import Architecture
from posgap.rollout.attention import Mask
from posgap.rollout.comparison import (
    compare_distributions,
    comparison_curves,
    comparison_text,
    predicted_shares,
    sweep_spearman,
    sweep_summary,
)
from posgap.rollout.config import RolloutPredictConfig
from posgap.rollout.distributions import bin_distribution, describe_distribution, prediction_text
from posgap.rollout.encodings import require_lambdas
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
from posgap.rollout.position_encodings import POSITION_ENCODINGS, PositionScores, of_model
from posgap.stages.frame import stage
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)
T = TypeVar("T")
COMPARISON_FILE = "comparison.json"
SHOWN = "gradient"  # the measure of influence that plot and summary show; all are compared in the file


@stage
def rollout_predict(config: RolloutPredictConfig, out: Path, run: Run) -> None:
    """Writes `prediction.json` and `prediction.png`; with a measurement whose longest text is as long as predicted for,
    also `comparison.json` and `comparison.png`."""
    measured = read_measurement(config.measurement) if config.measurement else None
    architecture, n_heads = described(config, measured)
    distribution = architecture.rollout()
    bare = dataclasses.replace(architecture, lambdas=np.ones(len(architecture.lambdas))).rollout()
    result = Prediction(
        label=config.label,
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
    write_json(out / PREDICTION_FILE, result.model_dump(mode="json"))
    save_picture(distribution_curves({config.label: distribution, "without residuals": bare}), out / "prediction.png")
    run.metrics({name: value for name, value in result.description.items() if name != "shape"})
    run.tags({"posgap.label": config.label, "posgap.shape": result.description["shape"]})
    log.log(RESULT, "%s: %s", config.label, result.summary)
    if measured and measured.sequence_length == architecture.n:
        _compare(config, result, measured, out, run)
    elif measured:
        log.info(
            "predicted for %d tokens, and measured over up to %d: the two are not compared",
            architecture.n, measured.sequence_length,
        )  # fmt: skip
    run.artifact(out)


def _compare(
    config: RolloutPredictConfig, prediction: Prediction, measurement: Measurement, out: Path, run: Run
) -> None:
    """Writes whether the prediction describes the measured influence, by place and by document, and how the sweep's
    accuracy goes with both."""
    assert config.measurement is not None
    predicted, names = np.array(prediction.distribution), list(measurement.influence)
    places = bin_distribution(predicted, measurement.bins)
    texts = read_influences(config.measurement, measurement, names)
    chosen = np.array(measurement.influence[SHOWN])
    result: dict[str, Any] = {
        "prediction": prediction.label,
        "measurement": measurement.label,
        "influence": SHOWN,
        "figures": {
            name: compare_distributions(places, texts[name], np.random.default_rng(config.seed)) for name in names
        },
        "agreement": measurement.agreement,
        "predicted_summary": prediction.summary,
        "measured_summary": measurement.summary,
    }
    figures, of, n = result["figures"], "places of the prompt", measurement.bins
    if measurement.documents and (shares := read_document_shares(config.measurement, measurement)):
        by_document = predicted_shares(predicted, read_document_edges(config.measurement, measurement))
        result["documents"] = {
            name: compare_distributions(by_document, each, np.random.default_rng(config.seed))
            for name, each in shares.items()
        }
        if SHOWN in shares:
            figures, of, n = result["documents"], "documents", len(by_document)
    sentences = [comparison_text(figures[SHOWN], SHOWN, of, n)]
    if measurement.agreement:
        sentences.append(agreement_text(measurement.agreement))
    if measurement.sweep:
        by_curve = {
            "predicted": sweep_spearman(measurement.sweep, places),
            "measured": sweep_spearman(measurement.sweep, chosen),
        }
        result["sweep"] = {"label": measurement.sweep.label, "gap": measurement.sweep.gap, "spearman": by_curve}
        sentences.append(sweep_summary(measurement.sweep, **by_curve))
        run.metrics({f"sweep_spearman_{name}": value for name, value in by_curve.items() if value is not None})
    result["summary"] = "; ".join(sentences)
    write_json(out / COMPARISON_FILE, result)
    curves = {prediction.label: places, f"{measurement.label}, {SHOWN}": chosen}
    save_picture(comparison_curves(curves, measurement.sweep), out / "comparison.png")
    for name, agreement in figures.items():
        known = {key: agreement[key] for key in ("spearman", "wasserstein") if agreement[key] is not None}
        run.metrics({f"{name}_{key}": value for key, value in known.items()})
    log.log(RESULT, "%s", result["summary"])


def described(config: RolloutPredictConfig, measured: Measurement | None) -> tuple[Architecture, int]:
    """The architecture that the config and the measurement describe, and its number of heads."""

    def from_measurement(value: int, name: str) -> int:
        if value:
            return value
        if measured is None:
            raise PosgapError(f"{name}: must be given, or taken from a `measurement`")
        return getattr(measured, name)

    n = from_measurement(config.sequence_length, "sequence_length")
    n_layers, n_heads = from_measurement(config.layers, "layers"), from_measurement(config.heads, "heads")
    of_measurement = {
        "encoding": POSITION_ENCODINGS[config.encoding].of_measurement,
        "mask": config.mask == "measured",
        "residual": config.residual == "measured",
        "content": config.content != "given",
    }
    if measured is None and any(of_measurement.values()):
        wanting = next(name for name, wants in of_measurement.items() if wants)
        raise PosgapError(f"{wanting}: needs measured values: give a `measurement`")
    encoded = _encoding(config, measured, n_heads)
    if config.rope_factors and encoded.scores is None:
        raise PosgapError("rope_factors: they divide RoPE's positions: give `encoding` rope, or leave them out")
    taken = POSITION_ENCODINGS[config.encoding].parameters.model_fields
    if config.slope != config.default("slope") and "slope" not in taken:
        raise PosgapError("slope: is that of a decay: give `encoding` decay, or leave it out")
    if config.rope_theta != config.default("rope_theta") and encoded.scores is None:
        raise PosgapError("rope_theta: is the base of RoPE: give `encoding` rope, or leave it out")
    if encoded.factors:
        _of_each_layer("rope_factors", encoded.factors, n_layers)
    if isinstance(encoded.scores, Sequence):
        by = "rope_theta" if len(config.rope_theta) > 1 else "the measured encoding"
        _of_each_layer(by, encoded.scores, n_layers)
    architecture = Architecture(
        n,
        _masks(config, measured, n, n_layers),
        _schedule(config, measured, n_layers),
        _table("slope", encoded.slopes if _has_rows(encoded.slopes) else [encoded.slopes], n_layers, n_heads),
        scores=encoded.scores,
        factors=encoded.factors,
        diagonal=_content(config, measured, n_layers, n_heads),
    )
    return architecture, n_heads


def _masks(config: RolloutPredictConfig, measured: Measurement | None, n: int, n_layers: int) -> Mask | list[Mask]:
    """The mask of all layers, or of each."""
    if config.window and config.mask != "window":
        raise PosgapError("window: is that of a mask: give `mask` window, or leave it out")
    if measured and config.mask == "measured":
        masks = []
        for layer, seen in enumerate(_of_each_layer("the measured windows", measured.windows, n_layers), start=1):
            if seen is None:
                raise PosgapError(
                    f"mask: layer {layer} of the measured model sees no window that ends with the token: give another "
                    "mask"
                )
            # What saw all of the texts is taken for a layer without a window.
            masks.append(Mask.causal(n) if seen >= measured.sequence_length else Mask.window(seen))
        return masks
    if len(config.window) > 1:
        widths = _of_each_layer("window", config.window, n_layers)
        return [Mask.window(width) if width else Mask.causal(n) for width in widths]
    width = config.window[0] if config.window else 0
    if {"window": width, "prefix": config.prefix}.get(config.mask) == 0:
        raise PosgapError(f"{config.mask}: mask {config.mask} needs a size: give at least 1 token")
    return {
        "causal": lambda: Mask.causal(n),
        "full": lambda: Mask.full(n),
        "window": lambda: Mask.window(width),
        "prefix": lambda: Mask.with_prefix(n, config.prefix),
    }[config.mask]()


def _encoding(config: RolloutPredictConfig, measured: Measurement | None, n_heads: int) -> PositionScores:
    """The position encoding's part of the scores, from the config or as it was measured on the model."""
    encoding, facts = POSITION_ENCODINGS[config.encoding], dict[str, Any]()
    if measured and encoding.of_measurement:
        encoding, facts = of_model(measured.encoding), dict(measured.encoding)
    return encoding.encode(encoding.parameters.of(config), facts, n_heads)


def _schedule(config: RolloutPredictConfig, measured: Measurement | None, n_layers: int) -> np.ndarray:
    if len(config.residual_strength) > 1:
        return require_lambdas(_of_each_layer("residual_strength", config.residual_strength, n_layers))
    if measured and config.residual == "measured":
        if len(measured.lambdas) != n_layers:
            raise PosgapError(f"residual: measured for {len(measured.lambdas)} layers, but `layers` is {n_layers}")
        return require_lambdas(measured.lambdas)
    return require_lambdas(np.full(n_layers, config.residual_strength[0]))


def _of_each_layer(name: str, values: Sequence[T], n_layers: int) -> Sequence[T]:
    if len(values) != n_layers:
        raise PosgapError(f"{name}: {len(values)} given for {n_layers} layers")
    return values


def _has_rows(values: Sequence[Any]) -> bool:
    return any(isinstance(row, Sequence) for row in values)


def _table(name: str, rows: Sequence[Any], n_layers: int, n_heads: int) -> np.ndarray:
    """A number for each layer and head: a single row counts for all layers, a single number in each for all heads."""
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, Sequence):
            raise PosgapError(f"{name}: some layers have a row, and layer {number} has a single number")
        if len(row) not in (1, n_heads) or len(row) != len(rows[0]):
            raise PosgapError(f"{name}: {len(row)} given for {n_heads} heads" + f" in layer {number}" * (len(rows) > 1))
    if len(rows) not in (1, n_layers):
        raise PosgapError(f"{name}: {len(rows)} rows given for {n_layers} layers")
    return np.array(rows, dtype=float)


def _content(config: RolloutPredictConfig, measured: Measurement | None, n_layers: int, n_heads: int) -> np.ndarray:
    """The extra scores of tokens on themselves: [1, 1] for all layers and heads, [L, 1], or [L, H]."""
    if _has_rows(config.content_score):
        return _table("content_score", config.content_score, n_layers, n_heads)
    if len(config.content_score) > 1:
        return np.array([_of_each_layer("content_score", config.content_score, n_layers)]).T
    if measured and config.content == "heads":
        return np.array(measured.content)
    if measured and config.content == "mean":
        return np.array([[np.mean(measured.content)]])
    return np.array([config.content_score])
