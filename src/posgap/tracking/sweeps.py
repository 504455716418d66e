"""A sweep's figures in its MLflow run."""

import logging

from posgap.measurement.reading import p_value
from posgap.measurement.sweeps import Sweep
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)


def _figures(sweep: Sweep) -> dict[str, float]:
    """The figures by which runs and models are compared, in points with the two decimals that people read: `gap_high`
    is the upper end of the gap's interval, `worst` the accuracy at the worst placement."""
    figures = {
        "gap": sweep.gap,
        "gap_high": sweep.gap_ci95[1],
        "mean": sweep.mean,
        "worst": sweep.worst.accuracy,
        **{f"accuracy_{name}": category.accuracy for name, category in sweep.by_category.items()},
    }
    return {name: round(value, 2) for name, value in figures.items()}


def log_sweep(sweep: Sweep, run: Run, model_id: str = "") -> None:
    """Logs the figures as metrics, for the logged model of this id, too; the curve over `step` = position, and a line
    to read."""
    run.metrics(_figures(sweep), model_id=model_id)
    run.metrics({"flatness_p": sweep.flatness.p} | (sweep.outcomes.figures if sweep.outcomes else {}))
    if sweep.grading:
        run.metrics(sweep.grading.metrics())
    if not sweep.by_category:
        for position, value in zip(sweep.positions, sweep.accuracy):
            run.metrics({"accuracy_by_position": value}, step=position)
    run.label(sweep.label)
    log.info(
        "%s: mean %.1f, gap %.1f (%.1f to %.1f), flatness %s",
        sweep.label, sweep.mean, sweep.gap, *sweep.gap_ci95, p_value(sweep.flatness.p),
    )  # fmt: skip
    if sweep.outcomes and (sentence := sweep.outcomes.sentence(sweep.placements)):
        log.info("%s: %s", sweep.label, sentence)
    for sentence in sweep.grading.sentences() if sweep.grading else ():
        log.info("%s: %s", sweep.label, sentence)
    for name, category in sweep.by_category.items():
        log.info("%s, %s: %.1f (%.1f to %.1f)", sweep.label, name, category.accuracy, *category.ci95)
