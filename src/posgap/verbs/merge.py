"""merge: the parts of a sweep that were swept side by side, as one sweep."""

import logging
import shutil
from pathlib import Path

from posgap.gating.evidence import GUARDS
from posgap.measurement.evidence import Evidence
from posgap.measurement.merging import merge_sweeps
from posgap.measurement.page_examples import ExampleTexts, SweepToShow, pack_examples, read_texts
from posgap.measurement.sweep_folder import write_sweep
from posgap.options.merge import MergeConfig
from posgap.options.sweep import SweepConfig
from posgap.storage.cache import MANIFEST
from posgap.storage.lineage import training_examples
from posgap.tracking.runs import Run
from posgap.tracking.sweeps import log_sweep
from posgap.verbs.frame import stage

log = logging.getLogger(__name__)


@stage
def merge(config: MergeConfig, out: Path, run: Run) -> None:
    """Writes what `sweep` writes, with the same figures as a sweep of all placements at once.

    The questions on the page are those on the pages of the parts.
    """
    parts = [Evidence(path) for path in config.sweeps]
    without_effect = SweepConfig.parameters().keys() - SweepConfig.cache_key_fields()
    sweep, predictions = merge_sweeps(parts, without_effect)
    if len(parts) == 1 and config.sweeps[0].is_dir() and sweep == parts[0].sweep:
        shutil.copytree(config.sweeps[0], out, ignore=shutil.ignore_patterns(MANIFEST, ".*"), dirs_exist_ok=True)
    else:
        texts = dict[str, ExampleTexts]()
        for part in config.sweeps:
            texts |= read_texts(part)
        page = pack_examples([SweepToShow(sweep, predictions, texts)])
        write_sweep(sweep, predictions, set().union(*map(training_examples, config.sweeps)), out, page)
        guarded = next((part / GUARDS for part in config.sweeps if (part / GUARDS).is_dir()), None)
        if guarded:
            shutil.copytree(guarded, out / GUARDS)
    log_sweep(sweep, run)
    run.artifact(out)
