"""Records the files of an output in its manifest: who wrote them, and whether they are complete."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from posgap.foundation import files
from posgap.foundation.errors import PosgapError
from posgap.storage.cache import INCOMPLETE, MANIFEST

REFUSAL = "rejected.json"  # in place of the manifest in `<out>.rejected`, which is never taken for an output
_FILE_MANAGERS = {".DS_Store", "Thumbs.db", "desktop.ini"}  # made by file managers in every folder they show


def read_record(file: Path | None) -> dict[str, Any]:
    """The content of a manifest; empty if there is none, or no JSON object."""
    try:
        return files.read_object(file) if file else {}
    except PosgapError:
        return {}


def hash_files(folder: Path, names: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
    """sha256 and size of a folder's files by their names below it: of these, or of all but the manifest."""
    return {
        name: {"sha256": files.digest_path(folder / name), "size": (folder / name).stat().st_size}
        for name in (files.entries(folder) if names is None else names)
        if name != MANIFEST
    }


def file_records(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The files that a manifest records; empty for one of an older version."""
    found = manifest.get("files")
    return found if isinstance(found, dict) and all(isinstance(each, dict) for each in found.values()) else {}


def why_not_ours(names: Collection[str], manifest: Mapping[str, Any], stage: str) -> str:
    """Why `stage` must not replace a folder that holds these names; empty if it made the folder."""
    names = [name for name in names if name.rpartition("/")[2] not in _FILE_MANAGERS]
    if not names:
        return ""
    if {"stage", "identity", "versions"} <= manifest.keys() and "files" not in manifest:
        return "an older posgap made it, and its manifest lists no files"
    if not {"stage", "identity", "files"} <= manifest.keys():
        return f"it holds what posgap did not write ({min(names)})"
    if manifest["stage"] != stage:
        return f"it holds what {manifest['stage']} made"
    others = set(names) - {MANIFEST, REFUSAL, INCOMPLETE} - file_records(manifest).keys()
    return f"it holds what posgap did not write ({min(others)})" if others else ""


def damage(manifest: Mapping[str, Any], sizes: Mapping[str, int]) -> str:
    """The first file of a manifest that is missing or has another size, in words; empty if there is none."""
    if "files" not in manifest:
        return "its manifest, of an older posgap, lists no files"
    for name, recorded_files in file_records(manifest).items():
        if name not in sizes:
            return f"{name} is missing"
        if sizes[name] != recorded_files.get("size"):
            return f"{name} has {sizes[name]} bytes, not {recorded_files.get('size')}"
    return ""
