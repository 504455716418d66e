"""The origin of a model, from its folder: the manifest, and the examples that it was trained on."""

from collections.abc import Iterable
from pathlib import Path

from posgap.foundation.files import parse_as, read_json, write_json
from posgap.foundation.locations import Location, is_address, is_uri
from posgap.storage.cache import fetch_location
from posgap.storage.inputs import read_manifest

TRAINING_EXAMPLES_FILE = "training_examples.json"


def examples_of(swept: Location) -> Location | None:
    """Returns the location of a sweep's examples; for a merged sweep, of its first part's. None if its manifest names
    none."""
    folder = fetch_location(swept)
    inputs = read_manifest(folder).get("inputs", {})
    for field in ("examples", "sweeps.1"):
        path = inputs.get(field, {}).get("path")
        if path:
            place = find_from(path, Path(folder))
            return place if field == "examples" else examples_of(place)
    return None


def find_from(location: str, folder: Path) -> Location:
    """Returns a location that the manifest of `folder` names.

    A relative path that does not exist from here is resolved from the folders above `folder`: the command that wrote it
    ran in one of them.
    """
    path = Path(location)
    if is_uri(location) or is_address(location) or path.is_absolute() or path.exists():
        return location
    there = (above / path for above in folder.resolve().parents)
    return next(filter(Path.exists, there), location)


def ancestors(folder: str | Path) -> list[str]:
    """Digests, or names, of all that the model in a folder was made from; none if no stage made it."""
    return sorted(read_manifest(Path(folder)).get("ancestors", []))


def training_examples(folder: str | Path) -> set[str]:
    """Returns the contents (`posgap.tasks.content`) of all examples learnt by a model or by one that it was made from.

    A model learns examples by training, or by a search for its scaling. `folder` is the model's or its sweep's. Empty
    if nothing is known: for a model on the hub, behind an endpoint, or made elsewhere.
    """
    file = Path(folder) / TRAINING_EXAMPLES_FILE
    return set(parse_as(list[str], read_json(file), str(file))) if file.is_file() else set()


def write_training_examples(out: Path, contents: Iterable[str]) -> None:
    """Records in the folder `out`, of a model or of a sweep of it, what `training_examples` reads."""
    write_json(out / TRAINING_EXAMPLES_FILE, sorted(set(contents)))
