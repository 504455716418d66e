"""Makes private copies of what is judged: checked files are not read from their place a second time."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from posgap.foundation.errors import PosgapError
from posgap.gating.evidence import folder_of, judged_files

ROLES = ("candidate", "base", "champion", "anchor")


@contextmanager
def private_sweeps(sweeps: Mapping[str, Path | None]) -> Iterator[dict[str, Path]]:
    """Copies what verdicts rest on of each sweep, by its role, into a folder that only this process knows.

    An error within the block names the place that was copied, and not the copy.
    """
    with tempfile.TemporaryDirectory(prefix="posgap-") as place:
        copies = {role: copy_sweep(path, Path(place) / role) for role, path in sweeps.items() if path}
        with _naming({copy: folder_of(sweeps[role] or copy) for role, copy in copies.items()}):
            yield copies


@contextmanager
def private_verdict(folder: Path, names: tuple[str, ...]) -> Iterator[Path]:
    """Copies a gate's folder: the files of these names, and the parts of the sweeps beside them that the verdict is
    based on.

    An error within the block names the gate's folder, and not the copy.
    """
    with tempfile.TemporaryDirectory(prefix="posgap-") as place:
        copy = Path(place) / "gate"
        copy.mkdir()
        for name in names:
            if (folder / name).is_file():
                shutil.copyfile(folder / name, copy / name)
        for role in ROLES:
            if (folder / role).is_dir():
                copy_sweep(folder / role, copy / role)
        with _naming({copy: folder}):
            yield copy


def copy_sweep(sweep: Path, folder: Path) -> Path:
    """Copies of a sweep what a verdict rests on into a new folder, which it returns."""
    folder.mkdir(parents=True)
    for name in judged_files(folder_of(sweep)):
        original = folder_of(sweep) / name
        if original.is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(original, folder / name)
        elif os.path.lexists(original):
            raise PosgapError("is a pipe, device, folder or broken link; put a file in its place", at=str(original))
    return folder


@contextmanager
def _naming(places: Mapping[Path, Path]) -> Iterator[None]:
    try:
        yield
    except PosgapError as error:
        for copy, original in places.items():
            error.args = tuple(str(each).replace(str(copy), str(original)) for each in error.args)
            error.at = error.at.replace(str(copy), str(original))
        raise
