"""data version: whether there is anything new to train on, and by what the steps of a pipeline are kept."""

import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posgap.foundation.files import digest_of, write_json
from posgap.foundation.heavy_types import ModelVersion
from posgap.foundation.locations import Location, is_uri
from posgap.foundation.printing import RESULT, show
from posgap.options.data_version import DataVersionConfig
from posgap.storage.inputs import source
from posgap.storage.versions import Version, newest
from posgap.tracking import registry
from posgap.tracking.runs import NOTE_TAG, Run
from posgap.tracking.version_record import record_of
from posgap.verbs.frame import stage

log = logging.getLogger(__name__)
VERSION_FILE = "version.json"


@functools.partial(stage, name="data_version")
def _write_version(config: DataVersionConfig, out: Path, run: Run) -> None:
    """Writes what `find_version` says to `version.json`."""
    write_json(out / VERSION_FILE, find_version(config, run))
    run.artifact(out)


def find_version(config: DataVersionConfig, run: Run) -> dict[str, Any]:
    """Returns the newest data version, and which of data, base model and recipe have changed since the champion.

    If the champion was made from all of them, `skip` is true and the run's description in MLflow says why. If
    `only_new` is false, only the version is looked up. `cache_keys` has a digest of the inputs of a pipeline's steps,
    for KFP's cache, which knows artifacts only by name: `eval` of evaluation data and base model, `train` of these and
    the training data, `champion` of evaluation data, base model, recipe and champion.
    """
    version = newest(config.data)
    held_out = newest(config.data_eval) if config.data_eval else None
    champion = registry.champion(config.name)
    to_beat = registry.to_beat(config.name)
    places = {"data": version.location, "base model": config.model} if config.only_new else {}
    digests = {what: source(place).digest() or str(place) for what, place in places.items() if place}  # as in manifests
    changed = _find_changes(config, digests, champion) if config.only_new else []
    if not config.only_new:
        note = "taken whether it is new or not"
    elif not champion:
        note = f"{config.name} has no champion"
    elif changed:
        note = f"{' and '.join(changed)} changed since {config.name} version {champion.version}"
    else:
        made = f"{config.name} version {champion.version} was made"
        note = f"skipped: {made} from data version {version.name} and this base model"
    result = {
        "version": version.name,
        "uri": _to_import(version),
        "eval_uri": _to_import(held_out) if held_out else "",
        "digests": digests,
        "champion": str(to_beat.version) if to_beat else None,
        "cache_keys": _cache_keys(config, version, held_out, to_beat),
        "changed": changed,
        "skip": config.only_new and not changed,
        "note": note,
    }
    run.tags(
        {
            NOTE_TAG: note,
            "posgap.skip": str(result["skip"]).lower(),
            "posgap.data_version": version.name,
        }
    )
    log.log(RESULT, "data version %s, %s: %s", version.name, version.location, note)
    return result


def data_version(config: DataVersionConfig) -> Location | None:
    """Writes `version.json` if there is a folder to write, and returns that; else only prints the location of the
    newest complete version."""
    if config.out:
        return _write_version(config)
    found = newest(config.data)
    log.info("version %s", found.name)
    show(str(found.location), {"version": found.name, "location": str(found.location)})
    return None


def _find_changes(config: DataVersionConfig, digests: Mapping[str, str], champion: ModelVersion | None) -> list[str]:
    """Returns what the champion was not made from. One that does not say how it was made may be made the same way."""
    record = record_of(champion) if champion else None
    changed = [what for what, digest in digests.items() if not record or digest not in record.ancestors]
    recipe = champion.tags.get(registry.RECIPE, "") if champion else ""
    if config.recipe and recipe and config.recipe != recipe:
        changed.append("recipe")
    return changed


def _to_import(version: Version) -> str:
    """Returns the address for KFP's importer, of a folder with a slash: 2.15 and 2.16 bring all that begins with it."""
    is_prefix = version.is_folder and is_uri(version.location)
    return f"{version.location}/" if is_prefix else str(version.location)


def _cache_keys(
    config: DataVersionConfig, version: Version, held_out: Version | None, champion: ModelVersion | None
) -> dict[str, str]:
    places = (held_out or version).location, config.model
    evaluated = [source(place).cache_key() if place else "" for place in places]
    identity = registry.identity(champion) if champion else []
    return {
        "eval": digest_of(evaluated),
        "train": digest_of([*evaluated, source(version.location).cache_key()]),
        "champion": digest_of([*evaluated, config.recipe, config.name, identity]),
    }
