"""Objects of S3 on this machine: each content once, under its sha256, and trees of links to them.

`objects/` records the sha256 of an object by its ETag, so an object that has not changed is neither downloaded nor
hashed again. Files that an interrupted download had finished are kept.
"""

import logging
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from posgap.foundation import files
from posgap.foundation.errors import NotFound, PosgapError, Unreadable
from posgap.foundation.locations import Location, blobs, cache_folder, in_cache, is_address, is_uri, s3_cache
from posgap.storage.addresses import download_address
from posgap.storage.client import client
from posgap.storage.objects import Object, find, stated_sha256
from posgap.storage.transfer import THREADS, download, require_sha256

log = logging.getLogger(__name__)
MANIFEST = "manifest.json"  # of a stage's folder, uploaded last
INCOMPLETE = ".incomplete"  # stands in a folder until all of it is there


class Source:
    """Something to read. The methods here work for every kind of source, by what `fetch` brings to this machine."""

    location: Location  # its place, or its name

    @property
    def is_incomplete(self) -> bool:
        """Whether its upload is unfinished."""
        return False

    def version(self) -> dict[str, str]:
        """Its version in S3: `etag`, and `version_id` in a bucket that keeps versions."""
        return {}

    def sizes(self) -> dict[str, int]:
        """Bytes of each file of a folder, by its name below it; of a single file, under no name."""
        return {name: path.stat().st_size for name, path in self._files().items()}

    def sha256s(self, names: Collection[str] | None = None) -> dict[str, str]:
        """The sha256 of each file; of these names alone, if they are given."""
        there = self._files().items()
        return {name: files.digest_path(path) for name, path in there if names is None or name in names}

    def digest(self) -> str:
        """sha256 of a file or folder; empty for a source that has only a name."""
        return files.digest_path(Path(self.fetch()))

    def cache_key(self) -> str:
        """Returns a text that changes whenever the content does, without a download; if a source has only a name, that
        name."""
        return self.digest()

    def local_file(self, name: str) -> Path | None:
        """A file of the folder, on this machine; None if there is none of that name."""
        path = Path(self.fetch()) / name
        return path if path.is_file() else None

    def fetch(self) -> Location:
        """The path of all of it on this machine."""
        raise NotImplementedError

    def _files(self) -> dict[str, Path]:
        place = Path(self.fetch())
        if not place.is_dir():
            return {"": place}
        return {name: place / name for name in files.entries(place) if (place / name).is_file()}


@dataclass(frozen=True)
class Snapshot(Source):
    """The objects that a URI named when it was listed."""

    location: str
    objects: tuple[Object, ...]

    @property
    def is_folder(self) -> bool:
        return not (len(self.objects) == 1 and self.objects[0].uri == self.location)

    @property
    def is_incomplete(self) -> bool:
        return any(stored.name == INCOMPLETE for stored in self.objects)

    def version(self) -> dict[str, str]:
        """ETag and version id of an object; of a folder, as its ETag, the sha256 of all names and ETags."""
        if self.is_folder:
            return {"etag": files.digest_of([[stored.name, stored.etag] for stored in self.objects])}
        (stored,) = self.objects
        return {"etag": stored.etag} | ({"version_id": stored.version_id} if stored.version_id else {})

    def sizes(self) -> dict[str, int]:
        return {stored.name if self.is_folder else "": stored.size for stored in self.objects}

    def sha256s(self, names: Collection[str] | None = None) -> dict[str, str]:
        """Downloads only objects without a recorded sha256."""
        hashed = _sha256s(stored for stored in self.objects if names is None or stored.name in names)
        hashed |= _bring(self.location, [stored for stored in hashed if not hashed[stored]])
        return {stored.name if self.is_folder else "": sha256 for stored, sha256 in hashed.items()}

    def digest(self) -> str:
        hashed = self.sha256s()
        return files.digest_of_folder(hashed) if self.is_folder else hashed[""]

    def cache_key(self) -> str:
        """sha256 of the names of a folder's files and of a mark of each one's content: the sha256 that its uploader
        stated, else its ETag, which differs for the same bytes if they were uploaded in other parts."""
        with ThreadPoolExecutor(THREADS) as pool:
            counting = [stored for stored in self.objects if not self.is_folder or files.is_content(stored.name)]
            stated = pool.map(stated_sha256, counting)
            marks = [sha256 or stored.etag for stored, sha256 in zip(counting, stated)]
            names = [stored.name for stored in counting] if self.is_folder else [""]
            return files.digest_of([*zip(names, marks)])

    def local_file(self, name: str) -> Path | None:
        for stored in self.objects:
            if stored.name == name:
                return blobs() / _bring(self.location, [stored])[stored]
        return None

    def fetch(self) -> Path:
        """The file or folder here, as links into the cache; not to be written to."""
        if self.is_incomplete:
            raise Unreadable(
                "incomplete: its upload is still running, or was interrupted; run the command that writes it again",
                at=self.location,
            )
        brought = _bring(self.location, self.objects)
        self._require_named()
        mark = files.digest_of([self.location, *(one.mark for one in self.objects)])[:16]
        tree = in_cache("trees", mark, self.location)
        with lock_mark(mark):
            if not tree.exists():
                with files.atomic(tree, lasting=False) as partial:
                    for one, sha256 in brought.items():
                        link = partial / one.name if self.is_folder else partial
                        link.parent.mkdir(parents=True, exist_ok=True)
                        link.symlink_to(os.path.relpath(blobs() / sha256, link.parent))
        return tree

    def _require_named(self) -> None:
        """Raises `PosgapError` if a stage's manifest names a file that was not listed: lists can come late."""
        manifest = {}
        with suppress(PosgapError):  # of another program
            file = self.local_file(MANIFEST)
            manifest = files.read_object(file) if file else {}
        absent = set(manifest.get("files", ()) if "identity" in manifest else ()) - self.sizes().keys()
        if absent:
            raise Unreadable(
                f"its manifest names {min(absent)}, but S3 does not list it; try again, or make the output again",
                at=self.location,
            )


def take_snapshot(uri: str, must_exist: bool = True) -> Snapshot:
    """The objects that `uri` names now; `PosgapError` if there are none, unless it need not exist."""
    objects = find(uri)
    if must_exist and not objects:
        raise NotFound("no such object or folder in S3", at=uri)
    return Snapshot(uri, tuple(objects))


def fetch_location(location: Location) -> Path:
    """The file or folder at a location, on this machine."""
    if is_address(location):
        return download_address(location)
    return take_snapshot(location).fetch() if is_uri(location) else Path(location)


def make_once(folder: Path, mark: str, make: Callable[[Path], Path]) -> Path:
    """A folder in the cache, which is made if it is missing. `make` gets an empty folder to work in, and returns the
    path there that becomes `folder`. Only one process at a time makes what has this mark; leftovers of killed ones are
    removed."""
    with lock_mark(mark):
        if not folder.is_dir():
            incoming = cache_folder().absolute() / "incoming"
            place = incoming / mark
            files.delete_path(place)
            place.mkdir(parents=True)
            for left in incoming.iterdir():
                if left != place:
                    with suppress(TimeoutError), lock_mark(left.name, wait=False):
                        files.delete_path(left)
            try:
                made = make(place)
                folder.parent.mkdir(parents=True, exist_ok=True)
                made.rename(folder)
            finally:
                files.delete_path(place)
    return folder


def move_into_cache(path: Path, sha256: str) -> None:
    """Moves a file of known content into the cache."""
    blobs().mkdir(parents=True, exist_ok=True)
    files.flush(path.resolve())
    os.replace(path.resolve(), blobs() / sha256)


@contextmanager
def lock_mark(mark: str, wait: bool = True) -> Iterator[None]:
    """Holds the lock of this name until the block ends, against other processes of this machine and of all that share
    the cache. The `mark` identifies what is read or made, mostly by the beginning of a digest.

    Raises `TimeoutError` if another process has it and this one must not `wait`.
    """
    from filelock import FileLock

    folder = s3_cache() / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / mark, timeout=-1 if wait else 0):
        yield


def _bring(uri: str, objects: Iterable[Object]) -> dict[Object, str]:
    """Downloads the objects that are not among the blobs; returns the sha256s of all."""
    objects = list(objects)
    hashed = _sha256s(objects)

    def missing() -> list[Object]:
        return [stored for stored in objects if not hashed[stored] or not (blobs() / hashed[stored]).exists()]

    if not missing():
        return hashed
    # Only one of several processes downloads the same objects. Once it has the lock, it reads what the previous one
    # recorded, and deletes what that one left unfinished.
    mark = files.digest_of(["incoming", *(stored.mark for stored in objects)])[:16]
    with lock_mark(mark):
        hashed |= _sha256s(stored for stored in objects if not hashed[stored])
        incoming = s3_cache() / "incoming" / mark
        files.delete_path(incoming)
        incoming.mkdir(parents=True)

        def accept(stored: Object, path: Path) -> None:
            sha256 = require_sha256(stored, path, hashed[stored])
            move_into_cache(path, sha256)
            hashed[stored] = _remember(stored, sha256)

        try:
            download([(stored, incoming / stored.mark) for stored in missing()], uri, accept)
        finally:
            files.delete_path(incoming)
    return hashed


def _sha256s(objects: Iterable[Object]) -> dict[Object, str]:
    """Each object's sha256: the recorded one, else the one that its uploader stated; empty if there is neither."""

    def sha256_of(stored: Object) -> str:
        remembered = s3_cache() / "objects" / stored.mark
        if remembered.is_file():
            return remembered.read_text()
        stated = stated_sha256(stored)
        return _remember(stored, stated) if stated else ""

    objects = list(objects)
    client()  # before threads race to make one
    with ThreadPoolExecutor(THREADS) as pool:
        return dict(zip(objects, pool.map(sha256_of, objects)))


def _remember(stored: Object, sha256: str) -> str:
    files.write_text(s3_cache() / "objects" / stored.mark, sha256, lasting=False)
    return sha256
