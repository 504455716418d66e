"""The evidence of a registered version: one file of digests, among those of the run that promoted it.

A tag of the version has the file's sha256, so a file that was changed later is not believed.
"""

import logging
import tempfile
from pathlib import Path

from posgap.foundation import files
from posgap.foundation.heavy_types import ModelVersion
from posgap.foundation.locations import cache_folder
from posgap.tracking import registry
from posgap.tracking.server import call_mlflow, upload_file

log = logging.getLogger(__name__)
RECORD_FILE = "evidence.json"


class VersionRecord(files.Record):
    """The sweeps and the policy that admitted a version, and what it was made from.

    `sweeps` has, for candidate, base and champion, the digests of model, examples, settings and files that were judged;
    `verdict` and `policy` are the sha256s of `gate.json` and of the policy. `base_model` is the path or name of the
    model that it was made from, and `ancestors` are digests, or names, of everything that was used. `anchor` is the
    number of the best champion so far if this version is not shown to be better; else empty.
    """

    sweeps: dict[str, dict[str, str]]
    verdict: str
    policy: str
    base_model: str
    ancestors: list[str]
    anchor: str = ""

    @property
    def candidate_files(self) -> dict[str, str]:
        """The sha256s of the files of the sweep with which the version was admitted, by name."""
        return {name: sha for name, sha in self.sweeps.get("candidate", {}).items() if "." in name}


def store_record(record: VersionRecord, run_id: str, folder: Path) -> str:
    """Writes the record into a folder and uploads it to a run; returns its sha256, for the tag `registry.EVIDENCE`.

    `PosgapError` if MLflow does not take it: a version without its record cannot be compared with others.
    """
    file = folder / RECORD_FILE
    files.write_json(file, record.model_dump(mode="json"))
    call_mlflow(lambda client: upload_file(client, run_id, file))
    return files.digest_path(file)


def record_of(version: ModelVersion) -> VersionRecord | None:
    """The record of a version; None if MLflow does not have the file with the sha256 that the version names."""
    sha, run_id = (version.tags.get(tag, "") for tag in (registry.EVIDENCE, registry.PROMOTION_RUN))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / RECORD_FILE
        if not (sha and run_id and registry.bring(run_id, file.name, Path(folder))) or files.digest_path(file) != sha:
            return None
        return files.read_model(VersionRecord, file, file.name)


def anchor_of(version: ModelVersion) -> ModelVersion | None:
    """The best champion of its name up to a version, where that is another one, and still there."""
    record = record_of(version)
    if not (record and record.anchor):
        return None
    best = next((each for each in registry.versions(version.name) if str(each.version) == record.anchor), None)
    if best is None:
        gone = f"{version.name} version {record.anchor}"
        log.warning("%s, the best champion so far, was deleted, so nothing is compared with it", gone)
    return best


def judged_sweep(version: ModelVersion, folder: Path) -> Path | None:
    """Returns the sweep that admitted a version, downloaded to `folder` if need be; None if MLflow lacks the judged
    files."""
    there = folder / registry.PROMOTED_SWEEP
    record = record_of(version)
    if record is None:
        return None
    if not there.is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        registry.bring(version.tags[registry.PROMOTION_RUN], there.name, folder)
    for name, sha in record.candidate_files.items():
        if not (there / name).is_file() or files.digest_path(there / name) != sha:
            return None
    return there


def swept_champions() -> Path:
    """Where what is known of registered versions lies on this machine."""
    return cache_folder().absolute() / "champions"
