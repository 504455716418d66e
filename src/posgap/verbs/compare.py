"""compare: how do models differ on the same examples, and for certain?"""

import logging
from pathlib import Path

from posgap.foundation.files import write_json
from posgap.foundation.printing import RESULT
from posgap.measurement.comparison import COMPARISON_FILE, compare_sweeps, with_distinct_labels
from posgap.measurement.evidence import Evidence
from posgap.measurement.length_comparison import (
    compare_lengths,
    read_swept_lengths,
    table_text,
    write_length_comparison,
)
from posgap.measurement.lengths import is_of_lengths
from posgap.measurement.page_examples import pack_folders
from posgap.measurement.report import write_report
from posgap.options.compare import CompareConfig
from posgap.tracking.runs import Run
from posgap.verbs.frame import stage
from posgap.verbs.inspect_logs import SUFFIX, sweep_of_log

log = logging.getLogger(__name__)


@stage
def compare(config: CompareConfig, out: Path, run: Run) -> None:
    """Writes `comparison.json`, `comparison.png` and `comparison.html`; of sweeps at several lengths
    `comparison-lengths.json` and `comparison-lengths.html`."""
    if all(is_of_lengths(path) for path in config.sweeps):
        _compare_lengths(config, out, run)
        return
    folders = [sweep_of_log(path) if path.suffix == SUFFIX else path for path in config.sweeps]
    evidence = with_distinct_labels([Evidence(path) for path in folders])
    comparison = compare_sweeps(evidence, config.allow)
    write_json(out / COMPARISON_FILE, comparison.model_dump(mode="json"))
    sweeps = [each.sweep for each in evidence]
    explored = pack_folders(evidence)
    write_report(sweeps, out / "comparison.png", out / "comparison.html", comparison.title, explored, comparison)
    for number, difference in enumerate(comparison.differences, start=1):
        run.metrics({"mean_difference": difference.mean, "gap_difference": difference.gap}, step=number)
        log.log(RESULT, "%s", difference.verdict)
    run.artifact(out)


def _compare_lengths(config: CompareConfig, out: Path, run: Run) -> None:
    by_length = read_swept_lengths(config.sweeps)
    comparison = compare_lengths(by_length, config.allow)
    first, *_ = by_length.values()
    write_length_comparison(comparison, [each.sweep for each in first], out)
    for step, at in enumerate(comparison.lengths, start=1):
        for difference in at.comparison.differences:
            run.metrics({"mean_difference": difference.mean, "gap_difference": difference.gap}, step=step)
    log.log(RESULT, "at each length:\n%s", table_text(comparison))
    run.artifact(out)
