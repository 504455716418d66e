"""Where things are: the checkout, and the public data."""

import os
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def public_file(name: str) -> Path:
    """A file of the public data folder; skips where it is missing, or fails where it must be there."""
    folder = Path(os.environ.get("POSGAP_PUBLIC_DATA", ROOT.parent / "shared" / "data"))
    file = folder / name
    if not file.is_file():
        reason = f"{file} is missing: set POSGAP_PUBLIC_DATA to the folder with the public data files"
        (pytest.fail if os.environ.get("POSGAP_REQUIRE_PUBLIC_DATA") == "1" else pytest.skip)(reason)
    return file


def but_for_seconds(file: Path) -> bytes:
    """What a file holds, without what differs between runs: a sweep's seconds, an endpoint's pace, a verdict's time."""
    differing = rb'"seconds": [\d.]+|, [\d,]+ s of waiting for answers|"pace": \{[^}]*\}|"judged_at": "[^"]+"'
    return re.sub(differing, b"", file.read_bytes())
