"""`posgap gate`: judges a candidate against the champion that the registry has, on the same examples.

It runs several stages: where the champion was not swept on these examples, it is swept now, with the candidate's
settings, and then the gate judges. Sweeps of champions are kept in the cache by what decides them.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from posgap.choices import BACKENDS
from posgap.config import GateConfig, SweepConfig
from posgap.config.fields import registered
from posgap.errors import PosgapError, first_fault
from posgap.files import atomic, digest, digest_of, remove
from posgap.locations import MODELS, Location, cache_folder
from posgap.measurement.comparability import differing
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.stages.gate import gate
from posgap.stages.sweep import sweep
from posgap.storage.cache import fetch, locked
from posgap.storage.lineage import examples_of
from posgap.tracking import registry
from posgap.tracking.version_record import record_of

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

log = logging.getLogger(__name__)


def admit(config: GateConfig) -> Location:
    """Judges as `gate` does, against the registry's champion where `config` names a registered model and no sweep.

    Without a champion there it says so, and the base is what the candidate is compared with.
    """
    name = registered(config.champion) or ("" if config.champion else config.name)
    if not name:
        return gate(config)
    version = registry.to_beat(name)
    if version is None:
        log.info("%s has no champion: the candidate is judged against the base", name)
        return gate(config.model_copy(update={"champion": None}))
    log.info("the candidate is judged against the champion, %s version %s", name, version.version)
    return gate(config.model_copy(update={"champion": _sweep_of(version, config)}))


def _sweep_of(version: "ModelVersion", config: GateConfig) -> Location:
    """A sweep of a registered version that was asked as the candidate's: the one it was promoted with, or a new one."""
    candidate = read_sweep(fetch(config.candidate))
    identity = [version.name, version.version, version.run_id, version.creation_timestamp]
    folder = cache_folder().absolute() / "champions" / digest_of(identity)[:16]
    # Candidates that are judged side by side need the champion's sweep once.
    with locked(folder.name):
        promoted = _promoted_with(version, folder)
        if promoted and not differing(read_sweep(promoted), candidate):
            log.info("the champion's sweep is at hand: it was promoted with one that asked the same")
            return promoted
        return _swept_again(version, config, candidate, folder)


def _promoted_with(version: "ModelVersion", folder: Path) -> Path | None:
    """The sweep with which a version was promoted, as MLflow keeps it; None where it is not there, or was changed."""
    run = version.tags.get(registry.PROMOTION_RUN, "")
    kept = folder / f"sweep-{digest_of(run)[:16]}"
    if run and not kept.is_dir():
        with atomic(kept, lasting=False) as partial:
            partial.mkdir(parents=True)
            registry.bring(run, registry.PROMOTED_SWEEP, partial)
    there = kept / registry.PROMOTED_SWEEP
    record = record_of(version)
    if record and all((there / name).is_file() and digest(there / name) == sha for name, sha in record.judged.items()):
        return there
    remove(kept)
    log.warning("%s version %s: MLflow has not the sweep that it was promoted with", version.name, version.version)
    return None


def _swept_again(version: "ModelVersion", config: GateConfig, candidate: Sweep, folder: Path) -> Location:
    """A sweep of a registered version with the settings of the candidate's."""
    where = f"{version.name} version {version.version}"
    settings = candidate.settings | {"shard": "", "label": "champion"}
    if not BACKENDS[settings.get("backend", SweepConfig.default("backend"))].local:
        raise PosgapError(
            f"{where}: the candidate was swept at an endpoint, where the champion is not; sweep the champion there in "
            "the same way, and give its folder as --champion"
        )
    examples = config.examples or examples_of(config.candidate)
    if examples is None:
        raise PosgapError(
            f"{where}: was not swept on the candidate's examples, and {config.candidate} does not say where these are; "
            "give them with --examples"
        )
    log.info("the champion is swept on the candidate's examples, %s", examples)
    out = folder / digest_of([settings, candidate.examples_digest])[:16]
    try:
        asked = SweepConfig(
            **settings | {"model": f"{MODELS}{version.name}/{version.version}", "examples": examples, "out": out}
        )
    except ValidationError as error:
        raise PosgapError(f"{config.candidate}: settings: {first_fault(error)}; sweep the candidate again") from None
    return sweep(asked)
