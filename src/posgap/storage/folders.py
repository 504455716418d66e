"""Folders that are made here and kept in S3."""

import json
import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from posgap.foundation import files
from posgap.foundation.errors import BadOutput
from posgap.foundation.locations import Location, in_cache, is_uri
from posgap.storage.cache import INCOMPLETE, MANIFEST, Snapshot, lock_mark, move_into_cache
from posgap.storage.client import client
from posgap.storage.manifests import REFUSAL, read_record, why_not_ours
from posgap.storage.objects import Object, delete, head, list_objects, put_object, stated_sha256
from posgap.storage.transfer import download, require_sha256, upload_files

log = logging.getLogger(__name__)


def local_copy(location: Location, kind: str = "outputs") -> Path:
    """Returns the local place to write a location's content: the location itself or, for a URI, a path in the cache.
    Copies nothing."""
    if not is_uri(location):
        return Path(location)
    return in_cache(kind, files.digest_of([client().meta.endpoint_url, location])[:16], location)


def announce(location: Location, stage: str) -> None:
    """Marks a folder in S3 that will come: so it is known before any work whether it can be written.

    `PosgapError` if the folder would replace what this stage did not write.
    """
    if not is_uri(location):
        return
    require_ours(location, stage)
    require_ours(f"{location}.rejected", stage, REFUSAL)
    if not list_objects(location):
        _mark_incomplete(location, stage, ())


def require_ours(uri: Location, stage: str, record: str = MANIFEST) -> None:
    """Raises `PosgapError` if a folder in S3 holds what `stage` did not write, according to the folder's record.

    Does nothing if it is no URI.
    """
    if not is_uri(uri):
        return
    # Listed before `head`: only a refused list explains what is wrong with the access key.
    there = Snapshot(uri, tuple(list_objects(uri)))
    if head(uri):
        raise BadOutput("is an object, but this command writes a folder; write elsewhere", at=uri)
    # The mark of an unfinished upload names what it may replace.
    manifest = read_record(there.local_file(INCOMPLETE if there.is_incomplete else record))
    names = {stored.name for stored in there.objects}
    reason = "" if names == {INCOMPLETE} else why_not_ours(names, manifest, stage)
    if reason:
        raise BadOutput(f"is not replaced: {reason}; move it away, or write elsewhere", at=uri)


def _mark_incomplete(uri: str, stage: str, names: Iterable[str]) -> None:
    """Says in S3 that a folder is incomplete, and what the stage may replace in it."""
    mark = {"stage": stage, "identity": "", "files": {name: {} for name in names}}
    put_object(f"{uri}/{INCOMPLETE}", json.dumps(mark).encode())


def publish(path: Path, uri: Location, hashed: Mapping[str, str] = MappingProxyType({})) -> None:
    """Uploads a folder to a URI, in place of the one that is there, and moves it into the cache.

    Does nothing if it is no URI. `hashed` has the sha256s of its files that are known.
    """
    if not is_uri(uri):
        return
    digests = upload_path(path, uri, hashed)
    # The manifest first: if this is interrupted, the rest at `path` is not taken for complete.
    for file in sorted(digests, key=lambda file: file.name != MANIFEST):
        move_into_cache(file, digests[file])
    files.delete_path(path)


def publish_file(path: Path, uri: Location, force: bool) -> None:
    """Uploads a file to a URI, and moves it into the cache. Does nothing if it is no URI.

    `PosgapError` if there is a folder or, without `force`, another file.
    """
    if not is_uri(uri):
        return
    if list_objects(uri):
        raise BadOutput("is a folder; name a file", at=uri)
    there = head(uri)
    sha256 = files.digest_path(path)
    if not there or stated_sha256(there) != sha256:
        if there and not force:
            raise BadOutput("was not written by this command; --force replaces it", at=uri)
        upload_path(path, uri)
    move_into_cache(path, sha256)


def upload_path(path: Path, uri: str, hashed: Mapping[str, str] = MappingProxyType({})) -> dict[Path, str]:
    """Uploads a file or folder, without the files that S3 has already; returns all files with their sha256s.

    The manifest is uploaded last. Until then a mark tells every reader that the folder is incomplete.
    """
    log.info("%s: uploading", uri)
    if not path.is_dir():
        sha256 = files.digest_path(path)
        upload_files([(path, sha256, uri)], uri)
        return {path: sha256}
    hashed = {name: hashed.get(name) or files.digest_path(path / name) for name in files.entries(path)}
    there = {stored.name: stored for stored in list_objects(uri)}
    sent = [name for name in hashed if name not in there or stated_sha256(there[name]) != hashed[name]]
    _mark_incomplete(uri, read_record(path / MANIFEST).get("stage", ""), {*there, *hashed})
    delete(f"{uri}/{name}" for name in there if name == MANIFEST or name not in (*hashed, INCOMPLETE))
    upload_files([(path / name, hashed[name], f"{uri}/{name}") for name in sent if name != MANIFEST], uri)
    if MANIFEST in hashed:
        upload_files([(path / MANIFEST, hashed[MANIFEST], f"{uri}/{MANIFEST}")], uri)
    delete([f"{uri}/{INCOMPLETE}"])
    return {path / name: sha256 for name, sha256 in hashed.items()}


class ResumableFolder:
    """A folder of unfinished work, `folder` on this machine. If its location is in S3 it is kept there too.

    If it is not, `push`, `pull` and the like do nothing.
    """

    def __init__(self, location: Location):
        self.uri = location if is_uri(location) else ""
        self.folder = local_copy(location, "work")

    def __truediv__(self, name: str) -> "ResumableFolder":
        below = ResumableFolder(self.folder / name)
        below.uri = self.uri and f"{self.uri}/{name}"
        return below

    def stored_names(self) -> list[str]:
        """The files that S3 has."""
        return [stored.name for stored in self._there()]

    def push(self, paths: Iterable[Path] | Mapping[Path, str]) -> None:
        """Uploads files of the folder; their sha256s may be given with them."""
        if self.uri:
            hashed = paths if isinstance(paths, Mapping) else {path: files.digest_path(path) for path in paths}
            wanted = []
            for path, sha256 in hashed.items():
                wanted.append((path, sha256, f"{self.uri}/{path.relative_to(self.folder).as_posix()}"))
            upload_files(wanted, self.uri)

    def pull(self) -> None:
        """Downloads the files of S3 that this machine does not have, or has differently, each atomically."""
        if not self.uri:
            return
        with lock_mark(files.digest_of([self.uri, str(self.folder)])[:16]):
            incoming = self.folder / ".incoming"
            files.delete_path(incoming)
            incoming.mkdir(parents=True)

            def accept(stored: Object, path: Path) -> None:
                require_sha256(stored, path, stated_sha256(stored))
                (self.folder / stored.name).parent.mkdir(parents=True, exist_ok=True)
                files.flush(path)
                os.replace(path, self.folder / stored.name)

            try:
                missing = [stored for stored in self._there() if not self._has(stored)]
                download([(stored, incoming / stored.mark) for stored in missing], self.uri, accept)
            finally:
                files.delete_path(incoming)

    def drop(self, names: Iterable[str]) -> None:
        """Deletes files from S3."""
        if self.uri:
            delete(f"{self.uri}/{name}" for name in names)

    def delete(self) -> None:
        """Deletes the folder, here and in S3."""
        files.delete_path(self.folder)
        self.drop(self.stored_names())

    def _there(self) -> list[Object]:
        return list_objects(self.uri) if self.uri else []

    def _has(self, stored: Object) -> bool:
        path = self.folder / stored.name
        return (
            path.is_file() and path.stat().st_size == stored.size and files.digest_path(path) == stated_sha256(stored)
        )
