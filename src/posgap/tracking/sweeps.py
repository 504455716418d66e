"""A sweep's figures in its MLflow run."""

import logging

from posgap.measurement.reading import p_value
from posgap.measurement.sweeps import Sweep
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)


def log_sweep(sweep: Sweep, run: Run) -> None:
    """Logs the figures as metrics, the curve over `step` = position, and a line to read."""
    run.metrics(
        {"gap": sweep.gap, "gap_ci95_high": sweep.gap_ci95[1], "mean": sweep.mean, "flatness_p": sweep.flatness.p}
    )
    if sweep.by_category:
        run.metrics({f"accuracy_{name}": figures.accuracy for name, figures in sweep.by_category.items()})
    else:
        for position, value in zip(sweep.positions, sweep.accuracy):
            run.metrics({"accuracy_by_position": value}, step=position)
    run.tags({"posgap.label": sweep.label})
    log.info(
        "%s: mean %.1f, gap %.1f (%.1f to %.1f), flatness %s",
        sweep.label, sweep.mean, sweep.gap, *sweep.gap_ci95, p_value(sweep.flatness.p),
    )  # fmt: skip
    for name, figures in sweep.by_category.items():
        log.info("%s, %s: %.1f (%.1f to %.1f)", sweep.label, name, figures.accuracy, *figures.ci95)
