"""What the manifest of an output says of its files: whose they are, and whether they are all there."""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from posgap.foundation import files
from posgap.foundation.errors import PosgapError
from posgap.storage.cache import INCOMPLETE, MANIFEST

REFUSAL = "rejected.json"  # stands for the manifest in `<out>.rejected`, which is never taken for an output
_FILE_MANAGERS = {".DS_Store", "Thumbs.db", "desktop.ini"}  # leave these behind, wherever somebody looks


def read_record(file: Path | None) -> dict[str, Any]:
    """What a manifest says; empty where there is none, or no JSON object."""
    try:
        return files.read_object(file) if file else {}
    except PosgapError:
        return {}


def recorded(folder: Path, names: Iterable[str] | None = None) -> dict[str, dict[str, Any]]:
    """sha256 and size of files of a folder, by their names below it; of all but its manifest, unless they are given."""
    return {
        name: {"sha256": files.digest(folder / name), "size": (folder / name).stat().st_size}
        for name in (files.entries(folder) if names is None else names)
        if name != MANIFEST
    }


def listed(manifest: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The files that a manifest records; empty for one of before it did."""
    found = manifest.get("files")
    return found if isinstance(found, dict) and all(isinstance(each, dict) for each in found.values()) else {}


def stranger(names: Collection[str], manifest: Mapping[str, Any], stage: str) -> str:
    """Why a folder that holds these names is not one that `stage` made, and may replace; empty where it is."""
    names = [name for name in names if name.rpartition("/")[2] not in _FILE_MANAGERS]
    if not names:
        return ""
    if {"stage", "identity", "versions"} <= manifest.keys() and "files" not in manifest:
        return "an older posgap made it, whose manifest lists no files"
    if not {"stage", "identity", "files"} <= manifest.keys():
        return f"it holds what posgap did not write ({min(names)})"
    if manifest["stage"] != stage:
        return f"it holds what {manifest['stage']} made"
    others = set(names) - {MANIFEST, REFUSAL, INCOMPLETE} - listed(manifest).keys()
    return f"it holds what posgap did not write ({min(others)})" if others else ""


def damage(manifest: Mapping[str, Any], sizes: Mapping[str, int]) -> str:
    """What of a manifest's files is missing or of another size than it was; empty where nothing is."""
    if "files" not in manifest:
        return "its manifest, of an older posgap, lists no files"
    for name, recorded_files in listed(manifest).items():
        if name not in sizes:
            return f"{name} is missing"
        if sizes[name] != recorded_files.get("size"):
            return f"{name} has {sizes[name]} bytes, not {recorded_files.get('size')}"
    return ""
