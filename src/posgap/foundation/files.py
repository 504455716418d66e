"""Reading and writing files so that nothing half-written is ever taken for complete."""

import errno
import gzip
import hashlib
import json
import os
import shutil
import socket
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from posgap.foundation.bounds import open_plain
from posgap.foundation.errors import Malformed, PosgapError, TooLarge, first_fault
from posgap.foundation.json_text import is_array, items, lines, parse_json, read_document, require_unique_names
from posgap.foundation.locations import blobs
from posgap.foundation.rows import kind_of_table, table_rows

HOME_PREFIX = ".posgap-"  # how the name of an output's home begins
_AS_TEXT: dict[str, Any] = {"ensure_ascii": False, "allow_nan": False}


class Record(BaseModel):
    """The base of values read from files: they do not change, and their figures are finite."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False, defer_build=True)  # commands start sooner


T = TypeVar("T")


@cache
def _adapter(kind: Hashable) -> TypeAdapter:
    return TypeAdapter(cast(Any, kind))


@contextmanager
def atomic(path: Path, lasting: bool = True) -> Iterator[Path]:
    """Yields a temporary sibling of `path` to write, a file or a folder; renames it at the end.

    If the body raises, the temporary is removed and `path` is unchanged. A file replaces one of the same name; a folder
    replaces only an empty one. It then survives a power failure as a whole, unless `lasting` is false, for data that
    can be made again at no cost.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{_temporaries()}{os.getpid()}-{path.name}")
    delete_path(partial)
    try:
        yield partial
        if lasting:
            flush(partial)
        os.replace(partial, path)
        if lasting:
            flush(path.parent, deep=False)
    finally:
        delete_path(partial)


def _temporaries() -> str:
    """Returns the beginning of this machine's temporary names. They end like the file's own name, as its suffix tells
    some writers the format."""
    return f".partial-{hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]}-"


def remove_leftovers(folder: Path) -> None:
    """Removes the temporaries in and below a folder that processes of this machine left when they were killed."""
    for temporary in [*folder.rglob(f"{_temporaries()}*")]:
        process = temporary.name.removeprefix(_temporaries()).partition("-")[0]
        if process.isdigit() and not is_running(int(process)):
            delete_path(temporary)


def is_running(process: int) -> bool:
    """Whether a process of this machine runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def flush(path: Path, deep: bool = True) -> None:
    """Makes the disk keep a file, or a folder's names and, if `deep`, everything in it."""
    for each in path.rglob("*") if deep and path.is_dir() else ():
        flush(each, deep=False)
    if path.is_symlink():
        return
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    except OSError as error:
        # Some file systems cannot do it for folders, and keep them in order by themselves.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(opened)


def workspace(out: Path) -> Path:
    """Returns the hidden folder beside `out` for unfinished work and for leftovers of a killed run."""
    return out.with_name(f"{HOME_PREFIX}{out.name}")


def work_folder(out: Path) -> Path:
    """Returns the folder in the workspace that an interrupted run continues from; it goes when `out` is complete."""
    return workspace(out) / "work"


def delete_path(path: Path) -> None:
    """Deletes a file or a folder; does nothing if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def link(source: Path, target: Path) -> None:
    """Brings an immutable file to another place: as a hard link, if the disk has them."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def entries(folder: Path) -> list[str]:
    """Returns the names of everything in a folder and the folders below it, except these folders themselves."""

    def fail(error: OSError) -> None:
        raise error

    found: list[str] = []
    for at, folders, names in os.walk(folder, onerror=fail) if folder.exists() else ():
        links = [name for name in folders if os.path.islink(os.path.join(at, name))]
        found += [os.path.relpath(os.path.join(at, name), folder) for name in (*names, *links)]
    return sorted(found)


def digest_path(path: Path) -> str:
    """sha256 of a file, or of a folder's file names and contents. Hidden files do not count,
    and neither does a stage's manifest, which holds times and run ids."""
    path = Path(path)
    if path.is_dir():
        paths = {each.relative_to(path).as_posix(): each for each in path.rglob("*") if each.is_file()}
        return digest_of_folder({name: digest_path(paths[name]) for name in paths if is_content(name)})
    if path.is_symlink() and path.resolve().parent == blobs().resolve():
        return path.resolve().name  # the cache names files by their sha256
    with open_plain(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_folder(files: Mapping[str, str]) -> str:
    """Returns the sha256 of a folder whose files, by their names below it, have these sha256s."""
    sha = hashlib.sha256()
    for name in sorted(filter(is_content, files), key=lambda name: name.split("/")):
        sha.update(f"{name}\0{files[name]}\n".encode())
    return sha.hexdigest()


def is_content(name: str) -> bool:
    """Whether a file of this name below a folder is part of the folder's content, and so of its digest."""
    *_, last = parts = name.split("/")
    return last != "manifest.json" and not any(part.startswith(".") for part in parts)


def digest_of(value: object) -> str:
    """sha256 of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def write_text(path: Path, text: str, lasting: bool = True) -> None:
    """Writes a text file in UTF-8, all of it or nothing; `lasting` as for `atomic`."""
    with atomic(path, lasting) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, value: object) -> None:
    """Writes one JSON document, atomically. NaN and infinities, which are no JSON, are a `ValueError`."""
    write_text(path, json.dumps(value, indent=2, **_AS_TEXT) + "\n")


def read_json(path: Path) -> Any:
    """Reads one JSON document, gzipped if the name ends in `.gz`, within the limits of `json_text`.

    Raises `PosgapError` if there is none, or it cannot be read.
    """
    return parse_json(read_document(path), str(path))


def read_object(path: Path) -> dict[str, Any]:
    """Reads one JSON document, as `read_json` does, that must be an object."""
    return _object(read_json(path), str(path))


def read_model(kind: type[T], path: Path, name: str) -> T:
    """Reads a JSON document as `kind`: the file `name` in the folder `path`, or the file `path` itself.

    `PosgapError` names the file, and the first field that is missing or wrong, or there twice.
    """
    file = path / name if path.is_dir() else path
    data = read_document(file)
    value = parse_json(data, str(file))
    require_unique_names(data, value, str(file))
    return parse_as(kind, value, str(file))


def write_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Writes one JSON object a line, atomically, gzipped if the name ends in `.gz`; returns how many."""
    number = 0
    with atomic(path) as partial, open(partial, "wb") as raw:
        # No name and no time in the header: equal rows give equal bytes.
        packing = gzip.GzipFile("", "wb", mtime=0, fileobj=raw) if path.suffix == ".gz" else nullcontext(raw)
        with packing as file:
            for row in rows:
                file.write((json.dumps(row, **_AS_TEXT) + "\n").encode())
                number += 1
    return number


def read_jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number from 1, object) of a `.jsonl` or `.jsonl.gz` file, one line in memory at a time.

    A missing file, a broken archive or a line that is not a JSON object is a `PosgapError` naming
    the line.
    """
    for number, line in lines(path):
        where = f"{path}:{number}"
        yield number, _object(parse_json(line, where), where)


def read_models(kind: type[T], path: Path, name: str) -> Iterator[tuple[int, T]]:
    """Yields (line number, row) of a file of JSON lines as `kind`: `name` in the folder `path`, or `path` itself."""
    file = path / name if path.is_dir() else path
    for number, line in lines(file):
        where = f"{file}:{number}"
        row = _object(parse_json(line, where), where)
        require_unique_names(line, row, where)
        yield number, parse_as(kind, row, where)


def read_rows(path: Path, columns: Sequence[str] = ()) -> Iterator[tuple[int, Any]]:
    """Yields (line or number from 1, row) of a table (`rows.table_rows`), of JSON lines, of a JSON array, or of one
    JSON object, which is its only row. `columns` names the columns of a CSV file without a header."""
    if kind_of_table(path) or Path(path).is_dir():
        return table_rows(path, columns)
    if ".jsonl" not in path.suffixes and is_array(path):
        return items(path)
    return _read_lines_or_object(path)


def _read_lines_or_object(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    rows = read_jsonl(path)
    if ".jsonl" in path.suffixes:
        yield from rows
        return
    try:
        first = next(rows)
    except (Malformed, TooLarge, StopIteration):
        try:
            first = 1, _object(parse_json(read_document(path), str(path)), str(path))
        except PosgapError as error:
            raise Malformed(
                f"expected a JSON array of objects, lines of them, or one ({error})", at=str(path)
            ) from None
    yield first
    yield from rows


def parse_as(kind: type[T], value: object, where: str) -> T:
    """A value as `kind`; `PosgapError` names the place, and the first field that is missing or wrong."""
    try:
        return _adapter(cast(Hashable, kind)).validate_python(value)
    except ValidationError as error:
        raise Malformed(first_fault(error), at=where) from None


def _object(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"expected a JSON object, found {json.dumps(value)[:40]}", at=where)
    return value
