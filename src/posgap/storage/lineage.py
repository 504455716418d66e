"""How a model came to be, read off the manifest that lies in its folder."""

from pathlib import Path

from posgap.choices import METHODS
from posgap.storage.inputs import read_manifest


def method_of(model: str | Path) -> str:
    """The name of the method that made a model, as in `METHODS`; empty for a model that came from elsewhere."""
    manifest = read_manifest(Path(model))
    made = [method.name for method in METHODS if not method.trains and method.made_by == manifest.get("stage")]
    return made[0] if made else manifest.get("config", {}).get("method", "")
