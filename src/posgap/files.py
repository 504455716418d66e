"""Reading and writing files so that nothing half-written is ever taken for complete."""

import gzip
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posgap.errors import PosgapError
from posgap.locations import blobs


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yields a temporary sibling of `path` to write, a file or a folder; renames it at the end.

    When the body raises, the temporary is removed and `path` is as it was.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The temporary keeps the suffix, since writers choose their format by it.
    partial = path.with_name(f".partial-{os.getpid()}-{path.name}")
    remove(partial)
    try:
        yield partial
        replace(partial, path)
    finally:
        remove(partial)


def work_folder(out: Path) -> Path:
    """Where what is under way to `out` is kept until `out` is complete."""
    return out.with_name(f".work-{out.name}")


def replace(source: Path, target: Path) -> None:
    """Renames `source` to `target`, a file or a folder, whether or not `target` exists."""
    if target.is_dir():
        # A folder cannot be renamed onto a full one, so the old one steps aside first.
        aside = target.with_name(f".old-{os.getpid()}-{target.name}")
        os.replace(target, aside)
        os.replace(source, target)
        remove(aside)
    else:
        os.replace(source, target)


def remove(path: Path) -> None:
    """Deletes a file or a folder; does nothing where there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def digest(path: Path) -> str:
    """sha256 of a file, or of a folder's file names and contents. Hidden files do not count,
    and neither does a stage's manifest, which holds times and run ids."""
    path, sha = Path(path), hashlib.sha256()
    if path.is_dir():
        found = {p.relative_to(path).as_posix(): p for p in path.rglob("*") if p.is_file()}
        return digest_of_folder({name: digest(found[name]) for name in found if _counts(name)})
    if path.is_symlink() and (blob := path.resolve()).parent == blobs().resolve():
        return blob.name  # the cache names files by their sha256
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            sha.update(chunk)
    return sha.hexdigest()


def digest_of_folder(files: Mapping[str, str]) -> str:
    """sha256 of a folder whose files, by their names below it, have these sha256s."""
    sha = hashlib.sha256()
    for name in sorted(filter(_counts, files), key=lambda name: name.split("/")):
        sha.update(f"{name}\0{files[name]}\n".encode())
    return sha.hexdigest()


def _counts(name: str) -> bool:
    *_, last = parts = name.split("/")
    return last != "manifest.json" and not any(part.startswith(".") for part in parts)


def digest_of(value: object) -> str:
    """sha256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def write_json(path: Path, value: object) -> None:
    """Writes one JSON document, atomically."""
    with atomic(path) as partial:
        partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_json(path: Path) -> Any:
    """Reads one JSON document, gzipped where the name ends in `.gz`; a missing or corrupt file is a
    `PosgapError`."""
    path = Path(path)
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        raise PosgapError(f"{path}: no such file") from None
    except (OSError, EOFError, ValueError) as error:
        raise PosgapError(f"{path}: not a JSON file: {error}") from None


def write_jsonl(path: Path, rows: Iterable[dict]) -> None:
    """Writes one JSON object a line, atomically; gzipped where the name ends in `.gz`."""
    with atomic(path) as partial:
        if path.suffix == ".gz":
            # No name and no time in the header: equal rows give equal bytes.
            with open(partial, "wb") as raw, gzip.GzipFile("", "wb", mtime=0, fileobj=raw) as packed:
                for row in rows:
                    packed.write((json.dumps(row, ensure_ascii=False) + "\n").encode())
        else:
            with open(partial, "w", encoding="utf-8") as file:
                for row in rows:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")


def read_jsonl(path: Path) -> Iterator[tuple[int, dict]]:
    """Yields (line number from 1, object) of a `.jsonl` or `.jsonl.gz` file.

    A missing file, a broken archive or a line that is no JSON object is a `PosgapError` naming
    the line.
    """
    path, number = Path(path), 0
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    continue
                row = json.loads(line)
                if not isinstance(row, dict):
                    raise PosgapError(f"{path}:{number}: expected a JSON object, found {line[:40]!r}")
                yield number, row
    except FileNotFoundError:
        raise PosgapError(f"{path}: no such file") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise PosgapError(f"{path}: cannot be read after line {number}: {error}") from None
    except json.JSONDecodeError as error:
        raise PosgapError(f"{path}:{number}: not JSON: {error}") from None
