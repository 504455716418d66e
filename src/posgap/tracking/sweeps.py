"""A sweep's figures in its MLflow run."""

import logging

from posgap.foundation.printing import RESULT
from posgap.measurement.lengths import LengthMap
from posgap.measurement.summary import copies_warning, p_value
from posgap.measurement.sweeps import Sweep
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)


def _sweep_metrics(sweep: Sweep) -> dict[str, float]:
    """Returns the figures that compare runs and models, in points with two decimals: `gap_high` is the upper end of the
    gap's interval, `worst` the accuracy at the worst placement, and `preference` how much more often than evenly the
    favoured slot is chosen."""
    figures = {
        "gap": sweep.gap,
        "gap_high": sweep.gap_ci95[1],
        "mean": sweep.mean,
        "worst": sweep.worst.accuracy,
        **{name.replace("-", "_"): baseline.accuracy for name, baseline in sweep.baselines.items()},
        **{f"accuracy_{name}": category.accuracy for name, category in sweep.by_category.items()},
    }
    choices = sweep.choices
    if choices:
        figures |= {"consistency": choices.consistency, "preference": choices.preference, "no_choice": choices.none}
    return {name: round(value, 2) for name, value in figures.items()}


def log_lengths(lengths: LengthMap, run: Run) -> None:
    """Logs the figures of sweeps at several lengths as metrics, over `step` = tokens, and the effective length."""
    for at, tokens in enumerate(lengths.tokens):
        figures = {"gap": lengths.gap[at], "gap_high": lengths.gap_ci95[at][1], "mean": lengths.mean[at]}
        by_depth = zip(lengths.depths, lengths.accuracy[at])
        figures |= {f"accuracy_at_depth_{depth:.3g}": value for depth, value in by_depth}
        run.metrics({name: round(value, 2) for name, value in figures.items()}, step=tokens)
    effective = lengths.effective
    ends = {"effective_length_low": effective.low, "effective_length_high": effective.high}
    run.metrics({"effective_length": effective.tokens} | ends)
    run.label(lengths.label)
    for sentence in lengths.summary_text():
        log.log(RESULT, "%s: %s", lengths.label, sentence)


def log_sweep(sweep: Sweep, run: Run, model_id: str = "") -> None:
    """Logs the figures as metrics, for the logged model of this id, too; the curve over `step` = position, and a line
    to read."""
    run.metrics(_sweep_metrics(sweep), model_id=model_id)
    run.metrics({"flatness_p": sweep.flatness.p} | (sweep.outcomes.metrics if sweep.outcomes else {}))
    if not sweep.by_category:
        for position, value in zip(sweep.positions, sweep.accuracy):
            run.metrics({"accuracy_by_position": value}, step=position)
    run.label(sweep.label)
    log.log(
        RESULT,
        "%s: mean %.1f, gap %.1f (%.1f to %.1f), flatness %s",
        sweep.label, sweep.mean, sweep.gap, *sweep.gap_ci95, p_value(sweep.flatness.p),
    )  # fmt: skip
    sentences = [sweep.outcomes.unanswered_text(sweep.placements) if sweep.outcomes else "", copies_warning(sweep)]
    if sweep.same_place:
        sentences.append(sweep.same_place.habit_text)
    for sentence in filter(None, sentences):
        log.log(RESULT, "%s: %s", sweep.label, sentence)
    for name, baseline in sweep.baselines.items():
        log.log(
            RESULT,
            "%s, %s: %.1f (%.1f to %.1f), %+.1f from the mean over positions",
            sweep.label, name, baseline.accuracy, *baseline.ci95, baseline.over_mean,
        )  # fmt: skip
    for name, category in sweep.by_category.items():
        log.log(RESULT, "%s, %s: %.1f (%.1f to %.1f)", sweep.label, name, category.accuracy, *category.ci95)
