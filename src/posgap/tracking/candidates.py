"""Which candidate of a pipeline run is the best."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from posgap.foundation.errors import NotFound
from posgap.foundation.heavy_types import ModelVersion, RegisteredModel
from posgap.measurement import statistics
from posgap.measurement.comparability import align_comparable
from posgap.measurement.evidence import Evidence
from posgap.tracking import champions
from posgap.tracking.registry import find_versions
from posgap.tracking.runs import PIPELINE_TAG
from posgap.tracking.version_record import judged_sweep


def best_of_run(registered: RegisteredModel, version: str, pipeline: str) -> str:
    """Returns the best candidate of the pipeline run that made `version`, without those that were rolled back."""
    without = champions.rolled_back(registered).keys() - {version}
    rivals = find_versions(registered.name, PIPELINE_TAG, pipeline) if pipeline else []
    rivals = [rival for rival in rivals if str(rival.version) not in without]
    if len(rivals) < 2:
        return version
    with tempfile.TemporaryDirectory() as place:
        return best_candidate({str(rival.version): _judged_sweep(rival, Path(place)) for rival in rivals})


def _judged_sweep(version: ModelVersion, place: Path) -> Evidence:
    """The sweep with which a version was admitted, downloaded to a folder in `place`."""
    sweep = judged_sweep(version, place / str(version.version))
    if sweep:
        return Evidence(sweep)
    raise NotFound(
        "MLflow lacks the sweep that it was promoted with, so it cannot be compared with other candidates of its run; "
        "promote it again, or delete that version",
        at=f"{version.name} version {version.version}",
    )


def best_candidate(candidates: Mapping[str, Evidence]) -> str:
    """The name of the best of these candidates, by the sweeps that admitted them.

    Each is compared with the one whose mean is highest, paired by example. It drops out if it is certainly worse: if
    the 95 % interval of the paired difference of their means lies below 0. Of the others, the best has the smallest
    upper end of the gap; then the higher mean; then the model's digest that comes first. So the order in which they are
    given has no effect. `PosgapError` if they were not asked alike.
    """
    leader = min(candidates.values(), key=_by_mean)
    level = {name: each for name, each in candidates.items() if not _is_worse(each, leader)}
    return min(level, key=lambda name: (level[name].sweep.gap_ci95[1], *_by_mean(level[name])))


def _by_mean(candidate: Evidence) -> tuple[float, str]:
    return -candidate.sweep.mean, candidate.sweep.model_digest


def _is_worse(candidate: Evidence, leader: Evidence) -> bool:
    paired, _ = align_comparable(candidate, leader)
    _, (_, high) = statistics.paired_difference(paired.correct, leader.correct)
    return high < 0
