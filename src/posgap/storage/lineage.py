"""How a model came to be, read off the manifest that lies in its folder."""

from pathlib import Path

from posgap.storage.inputs import read_manifest


def method_of(model: str | Path) -> str:
    """The method that made a model: r1, r2, sft, seqkd or lpes; empty for one that came from elsewhere."""
    manifest = read_manifest(Path(model))
    return "lpes" if manifest.get("stage") == "scale_apply" else manifest.get("config", {}).get("method", "")
