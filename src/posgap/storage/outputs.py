"""Manages a local output: its maker, its current writer, and what a killed writer has left.

Everything unfinished of the output `run/base` lies beside it in `run/.posgap-base/`, its home:

    lock           held by the process that writes the output; a dead process holds none
    writer.json    which process that is
    partial-base   the output that is being made
    old-base       the previous output, while the new one takes its place
    work/          what an interrupted run continues from
    done/          the work of a complete output, which is being deleted
    unlogged/      the output's runs that MLflow does not have whole (tracking/runs.py)

The home exists while the output is being made. After that it stays only if there is work to resume, or a run that
MLflow does not have.
"""

import contextlib
import filecmp
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self

from posgap.foundation import files
from posgap.foundation.errors import BadOutput, PosgapError
from posgap.foundation.locations import Location, with_uris
from posgap.storage.cache import MANIFEST
from posgap.storage.folders import local_copy
from posgap.storage.inputs import source
from posgap.storage.manifests import REFUSAL, file_records, hash_files, read_record, why_not_ours
from posgap.storage.places import Writing, require_place, resolve_place

log = logging.getLogger(__name__)
LOOKS = 3  # at a folder that seems to belong to others
WAIT = 1.0  # seconds, for a writer that is just leaving


class Output:
    """A place to write to, which one command holds from `claim` to the end of the block.

    `RunFolder` and `File` claim it as the block begins; a stage claims its `Folder` itself, once there is work to do.
    An output in S3 is made at its twin on this machine (`local_copy`). `PosgapError` if `config.out` cannot be an
    output.
    """

    def __init__(self, config: Writing):
        require_place(config)
        self.out = resolve_place(local_copy(config.out))
        self.home = files.workspace(self.out)
        self.partial = self.home / f"partial-{self.out.name}"  # with the suffix that some writers read
        self._lock: Any = None

    def require_ours(self) -> None:
        """Raises `PosgapError` if posgap must not replace the present content."""
        raise NotImplementedError

    def is_made(self) -> bool:
        """Whether `partial` is complete, and only lacks its place."""
        return False

    def claim(self) -> None:
        """Makes this process the writer: takes the lock, and removes what a killed writer left.

        Raises `PosgapError` if another process is the writer, if the place holds others' files, and if nothing can be
        written.
        """
        if self._lock is not None:
            return
        self.require_ours()
        try:
            self._lock = _acquire_lock(self.home / "lock")
            if self._lock is None:
                raise BadOutput(f"{self._writer()} is writing it; wait for its end, or write elsewhere", at=str(self))
            self._clean_up()
            who = {"process": os.getpid(), "machine": socket.gethostname()}
            since = datetime.now(UTC).isoformat(timespec="seconds")
            files.write_json(self.home / "writer.json", who | {"since": since})
        except OSError as error:
            self._leave()
            where = f" ({error.filename})" if error.filename else ""
            raise BadOutput(f"cannot be written: {error.strerror or error}{with_uris(where)}", at=str(self)) from None

    def clear(self) -> bool:
        """Claims a complete output with leftovers beside it, and removes what a killed writer left. Returns whether it
        did: there may be nothing, or another process may be writing it."""
        if self.home.exists():
            with contextlib.suppress(PosgapError):
                self.claim()
        return self._lock is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leave()

    def __str__(self) -> str:
        return with_uris(str(self.out))

    def _clean_up(self) -> None:
        files.delete_path(self.home / "done")
        if not self.is_made():
            files.delete_path(self.partial)
        files.remove_leftovers(self.home)

    def _leave(self) -> None:
        if self._lock is None:
            return
        try:
            self._clean_up()
            (self.home / "writer.json").unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it is not empty, or does not exist
                files.work_folder(self.out).rmdir()
            (self.home / "lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.home.rmdir()
        finally:
            lock = self._lock
            self._lock = None
            lock.release()

    def _writer(self) -> str:
        writer = read_record(self.home / "writer.json")
        if not writer:
            return "another command"
        return f"process {writer.get('process')} on {writer.get('machine')}, since {writer.get('since')},"


class Folder(Output):
    """The folder of a stage, which is replaced as a whole, and only if that stage made it."""

    def __init__(self, config: Writing, stage: str):
        super().__init__(config)
        self.stage = stage
        self.rejected = self.out.with_name(f"{self.out.name}.rejected")
        self.old = self._aside(self.out)

    def require_ours(self) -> None:
        self._require_ours(self.out, MANIFEST)
        self._require_ours(self.rejected, REFUSAL)

    def is_made(self) -> bool:
        return (self.partial / MANIFEST).is_file()

    def there(self) -> Path:
        """Returns where the output is: in its place, or where a writer had set it aside before it was killed."""
        return self.old if self.old.exists() and not os.path.lexists(self.out) else self.out

    def take_place(self) -> None:
        """Moves the complete folder `partial` to the output's place.

        Raises `PosgapError` if others have put files there while it was made. Nothing is lost then: the same command,
        given again, only moves it.
        """
        # Before the output is in its place: a command that finds it there does not look for work.
        work = files.work_folder(self.out)
        if work.exists():
            os.replace(work, self.home / "done")
        self._take_place(self.out, MANIFEST)

    def reject(self, record: Mapping[str, Any]) -> None:
        """Puts `partial`, which explains why the input was refused, beside the output, with a record of its writer."""
        files.write_json(self.partial / REFUSAL, {**record, "files": hash_files(self.partial)})
        self._take_place(self.rejected, REFUSAL)

    def _take_place(self, place: Path, record: str) -> None:
        aside = self._aside(place)
        if place.exists():
            # Set aside first and then checked, so that nobody can add files in between.
            os.replace(place, aside)
            try:
                self._require_ours(aside, record)
            except PosgapError:
                os.replace(aside, place)
                self._require_ours(place, record)
                raise
        os.replace(self.partial, place)
        files.flush(place.parent, deep=False)
        files.delete_path(aside)

    def _aside(self, place: Path) -> Path:
        return self.home / f"old-{place.name}"

    def _clean_up(self) -> None:
        if self.there() == self.old:
            log.warning("%s: restored; a killed run had moved it away", self)
            os.replace(self.old, self.out)
            files.flush(self.out.parent, deep=False)
        files.delete_path(self.old)
        files.delete_path(self._aside(self.rejected))
        super()._clean_up()

    def _require_ours(self, folder: Path, record: str) -> None:
        for look in range(LOOKS):
            reason = _no_folder(folder) or why_not_ours(files.entries(folder), read_record(folder / record), self.stage)
            if not reason:
                return
            if look < LOOKS - 1:
                time.sleep(0.05)  # another writer may have set it aside between the names and the record
        raise _not_ours(folder, reason)


class RunFolder(Output):
    """The folder of a verb that runs several stages, which adds to it and never replaces it."""

    def __init__(self, config: Writing, verb: str):
        super().__init__(config)
        self.verb = verb

    def __enter__(self) -> Self:
        self.claim()
        self._made = not self.out.exists()
        self.out.mkdir(exist_ok=True)
        if not (self.out / MANIFEST).exists():
            self.write_manifest(())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error and os.listdir(self.out) == [MANIFEST]:  # the command was refused, and leaves the place unchanged
            (self.out / MANIFEST).unlink()
            if self._made:
                self.out.rmdir()
        super().__exit__(kind, error, at)

    def require_ours(self) -> None:
        reason = _no_folder(self.out)
        if not reason and read_record(self.out / MANIFEST).get("stage") != self.verb:
            reason = why_not_ours(files.entries(self.out), read_record(self.out / MANIFEST), self.verb)
        if reason:
            raise _not_ours(self.out, reason)

    def write_manifest(self, names: Iterable[str], outputs: Mapping[str, Location] = MappingProxyType({})) -> None:
        """Writes the folder's manifest: its files that no stage wrote, and the outputs that they are based on."""
        inputs = {name: _as_input(output) for name, output in outputs.items()}
        manifest = {"stage": self.verb, "identity": "", "files": hash_files(self.out, names), "inputs": inputs}
        files.write_json(self.out / MANIFEST, manifest)


class File(Output):
    """A single file. An existing one stays if it is equal, and is replaced if `may_replace` says so of it, or with
    `--force`.
    """

    def __init__(self, config: Writing, force: bool, may_replace: Callable[[Path], bool] = lambda file: False):
        super().__init__(config)
        self.force = force
        self.may_replace = may_replace

    def __enter__(self) -> Self:
        self.claim()
        return self

    def require_ours(self) -> None:
        if os.path.lexists(self.out) and (self.out.is_symlink() or not self.out.is_file()):
            raise _not_ours(self.out, "it is not a plain file")

    def require_replaceable(self) -> None:
        """Raises `PosgapError` if a file is there that another one must not replace."""
        if self.out.exists() and not self.force and not self.may_replace(self.out):
            raise BadOutput("was not written by this command; --force replaces it", at=str(self))

    def take_place(self) -> None:
        """Moves the complete file `partial` to the output's place; `PosgapError` if another file must not be lost."""
        self.require_ours()
        if self.out.exists() and filecmp.cmp(self.partial, self.out, shallow=False):
            return
        self.require_replaceable()
        files.flush(self.partial)
        os.replace(self.partial, self.out)
        files.flush(self.out.parent, deep=False)


def _as_input(output: Location) -> dict[str, str]:
    """The manifest's record of an output that was just made; its sha256 follows from its own manifest."""
    hashed = {
        name: each["sha256"] for name, each in file_records(read_record(source(output).local_file(MANIFEST))).items()
    }
    return {"path": str(output), "sha256": files.digest_of_folder(hashed)}


def _acquire_lock(path: Path) -> Any:
    """Returns the held lock; None if another process has it."""
    from filelock import FileLock, Timeout

    lock = FileLock(path)
    end = time.monotonic() + WAIT
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=max(0.0, end - time.monotonic()))
            return lock
        except Timeout:
            return None
        except FileNotFoundError:  # a writer left, and took the home along
            if time.monotonic() > end:
                return None


def _no_folder(folder: Path) -> str:
    """Says why the present content is no folder that can be replaced; empty if it is one, or if there is none."""
    if folder.is_symlink():
        return "it is a symbolic link"
    if not folder.exists():
        return ""
    if not folder.is_dir():
        return "it is a file, and this writes a folder"
    if os.path.ismount(folder):
        return "a disk is mounted there; name a folder in it"
    return "" if os.access(folder, os.R_OK | os.W_OK | os.X_OK) else "it may not be read and written"


def _not_ours(place: Path, reason: str) -> PosgapError:
    return BadOutput(f"is not replaced: {reason}; move it away, or write elsewhere", at=with_uris(str(place)))
