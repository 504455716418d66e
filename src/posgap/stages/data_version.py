"""data version: whether there is anything new to train on."""

import logging
from pathlib import Path

from posgap.config import DataVersionConfig
from posgap.files import read_json, write_json
from posgap.locations import Location
from posgap.stage import stage
from posgap.storage.inputs import source
from posgap.storage.versions import newest
from posgap.tracking import registry
from posgap.tracking.runs import Run
from posgap.tracking.version_record import record_of

log = logging.getLogger(__name__)
VERSION_FILE = "version.json"


@stage
def data_version(config: DataVersionConfig, out: Path, run: Run) -> None:
    """Writes `version.json`: the newest data version, and which of data and base model the champion was not made from.

    If the champion was made from both, `skip` is true and the run's description in MLflow says why. If `only_new` is
    false, only the version is looked up.
    """
    version = newest(config.data)
    champion = registry.champion(config.name) if config.only_new else None
    digests = {"data": _digest(version.location), "base model": _digest(config.model)} if config.only_new else {}
    record = record_of(champion) if champion else None
    changed = [what for what, digest in digests.items() if not record or digest not in record.ancestors]
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
        "uri": str(version.location),
        "digests": digests,
        "champion": str(champion.version) if champion else None,
        "changed": changed,
        "skip": config.only_new and not changed,
        "note": note,
    }
    write_json(out / VERSION_FILE, result)
    run.tags(
        {
            "mlflow.note.content": note,
            "posgap.skip": str(result["skip"]).lower(),
            "posgap.data_version": version.name,
        }
    )
    run.artifact(out)
    log.info("data version %s, %s: %s", version.name, version.location, note)


def read_data_version(folder: Location) -> dict:
    """Reads the result that `data_version` wrote into `folder`."""
    return read_json(Path(folder) / VERSION_FILE)


def _digest(location: str | Path) -> str:
    """The digest that a manifest would record for this input; the name itself for a model on the hub."""
    return source(location).digest() or str(location)
