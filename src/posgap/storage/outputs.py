"""An output on this machine: whose it is, who writes it, and what a writer that was killed has left.

What of the output `run/base` is not complete lies beside it in `run/.posgap-base/`, its home:

    lock           held by the process that writes the output; a dead process holds none
    writer.json    which process that is
    partial-base   what is being made
    old-base       the output before it, while the new one takes its place
    work/          what an interrupted run goes on with
    done/          the work of an output that is complete, on its way out
    outbox/        what MLflow has not been told yet of the output's runs

The home is there while the output is being made, and after that only where there is work to go on with, or a run that
MLflow does not have.
"""

import contextlib
import filecmp
import functools
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeVar

from posgap.foundation import files
from posgap.foundation.config import FileConfig
from posgap.foundation.errors import PosgapError
from posgap.foundation.locations import Location, is_uri, with_uris
from posgap.foundation.printing import RESULT, keep
from posgap.storage.cache import MANIFEST
from posgap.storage.folders import publish_file, twin
from posgap.storage.inputs import on_this_machine, source, sources
from posgap.storage.manifests import REFUSAL, listed, read_record, recorded, stranger
from posgap.storage.places import Writing, require_place, whole

log = logging.getLogger(__name__)
LOOKS = 3  # at a folder that seems to be another's
C = TypeVar("C", bound=FileConfig)
WAIT = 1.0  # seconds, for a writer that is just leaving


class Output:
    """A place to write to, which one command has from `claim` to the end of the block.

    What goes to S3 is made at its twin on this machine. `PosgapError` where `config.out` can be no output.
    """

    def __init__(self, config: Writing):
        require_place(config)
        self.out = whole(twin(config.out))
        self.home = files.home(self.out)
        self.partial = self.home / f"partial-{self.out.name}"  # whose ending tells some writers the format
        self._lock: Any = None

    def require_ours(self) -> None:
        """Raises `PosgapError` where what is there is not posgap's to replace."""
        raise NotImplementedError

    def is_made(self) -> bool:
        """Whether `partial` is complete, and only lacks its place."""
        return False

    def claim(self) -> None:
        """Makes this process the writer: takes the lock, and clears away what a killed one left.

        Raises `PosgapError` where another process is the writer, where what is there is somebody else's, and where
        nothing can be written.
        """
        if self._lock is not None:
            return
        self.require_ours()
        try:
            self._lock = _locked(self.home / "lock")
            if self._lock is None:
                raise PosgapError(f"{self}: {self._writer()} is writing it; wait for its end, or write elsewhere")
            self._sweep()
            who = {"process": os.getpid(), "machine": socket.gethostname()}
            since = datetime.now(UTC).isoformat(timespec="seconds")
            files.write_json(self.home / "writer.json", who | {"since": since})
        except OSError as error:
            self._leave()
            where = f" ({error.filename})" if error.filename else ""
            raise PosgapError(f"{self}: cannot be written: {error.strerror or error}{with_uris(where)}") from None

    def clear(self) -> None:
        """Removes what a killed writer left of an output that is complete, unless somebody writes it now."""
        if self.home.exists():
            with contextlib.suppress(PosgapError):
                self.claim()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._leave()

    def __str__(self) -> str:
        return with_uris(str(self.out))

    def _sweep(self) -> None:
        files.remove(self.home / "done")
        if not self.is_made():
            files.remove(self.partial)
        files.sweep(self.home)

    def _leave(self) -> None:
        if self._lock is None:
            return
        try:
            self._sweep()
            (self.home / "writer.json").unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it is not empty, or not there
                files.work_folder(self.out).rmdir()
            (self.home / "lock").unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.home.rmdir()
        finally:
            lock, self._lock = self._lock, None
            lock.release()

    def _writer(self) -> str:
        if not (writer := read_record(self.home / "writer.json")):
            return "another command"
        return f"process {writer.get('process')} on {writer.get('machine')}, since {writer.get('since')},"


class Folder(Output):
    """The folder of a stage: replaced as a whole, and only where that stage made it."""

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
        """Where the output is: in its place, or set aside by a writer that was killed then."""
        return self.old if self.old.exists() and not os.path.lexists(self.out) else self.out

    def place(self) -> None:
        """Puts the complete folder `partial` where the output goes.

        Raises `PosgapError` where somebody has put files there while it was made. Nothing is lost then: the same
        command, given again, does this alone.
        """
        # Before it is in its place: a command that finds it there looks for no work.
        if (work := files.work_folder(self.out)).exists():
            os.replace(work, self.home / "done")
        self._take_place(self.out, MANIFEST)

    def reject(self, record: Mapping[str, Any]) -> None:
        """Puts `partial`, which tells why the input was refused, beside the output, with a record of who wrote it."""
        files.write_json(self.partial / REFUSAL, {**record, "files": recorded(self.partial)})
        self._take_place(self.rejected, REFUSAL)

    def _take_place(self, place: Path, record: str) -> None:
        aside = self._aside(place)
        if place.exists():
            # Set aside first and looked at then: whatever comes later is not in it.
            os.replace(place, aside)
            try:
                self._require_ours(aside, record)
            except PosgapError:
                os.replace(aside, place)
                self._require_ours(place, record)
                raise
        os.replace(self.partial, place)
        files.flush(place.parent, deep=False)
        files.remove(aside)

    def _aside(self, place: Path) -> Path:
        return self.home / f"old-{place.name}"

    def _sweep(self) -> None:
        if self.there() == self.old:
            log.warning("%s: a killed run had set it aside; it is back", self)
            os.replace(self.old, self.out)
            files.flush(self.out.parent, deep=False)
        files.remove(self.old)
        files.remove(self._aside(self.rejected))
        super()._sweep()

    def _require_ours(self, folder: Path, record: str) -> None:
        for look in range(LOOKS):
            reason = _no_folder(folder) or stranger(files.entries(folder), read_record(folder / record), self.stage)
            if not reason:
                return
            if look < LOOKS - 1:
                time.sleep(0.05)  # another writer may have set it aside between the names and the record
        raise _not_ours(folder, reason)


class RunFolder(Output):
    """The folder of a verb that runs several stages: added to by that verb, and never replaced."""

    def __init__(self, config: Writing, verb: str):
        super().__init__(config)
        self.verb = verb

    def __enter__(self) -> Self:
        self.claim()
        self._made = not self.out.exists()
        self.out.mkdir(exist_ok=True)
        if not (self.out / MANIFEST).exists():
            self.record(())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error and os.listdir(self.out) == [MANIFEST]:  # the command was refused, and leaves what it met
            (self.out / MANIFEST).unlink()
            if self._made:
                self.out.rmdir()
        super().__exit__(kind, error, at)

    def require_ours(self) -> None:
        reason = _no_folder(self.out)
        if not reason and read_record(self.out / MANIFEST).get("stage") != self.verb:
            reason = stranger(files.entries(self.out), read_record(self.out / MANIFEST), self.verb)
        if reason:
            raise _not_ours(self.out, reason)

    def record(self, names: Iterable[str], outputs: Mapping[str, Location] = MappingProxyType({})) -> None:
        """Writes the folder's manifest: those of its files that no stage wrote, and the outputs that these rest on."""
        manifest = {"stage": self.verb, "identity": "", "files": recorded(self.out, names)}
        files.write_json(
            self.out / MANIFEST, manifest | {"inputs": {n: _as_input(each) for n, each in outputs.items()}}
        )


class File(Output):
    """A single file: one that is there is replaced where the command may, and left where it is the same.

    `may_replace` says so of the file; `--force` does of every one.
    """

    def __init__(self, config: Writing, force: bool, may_replace: Callable[[Path], bool] = lambda file: False):
        super().__init__(config)
        self.force, self.may_replace = force, may_replace

    def __enter__(self) -> Self:
        self.claim()
        return self

    def require_ours(self) -> None:
        if os.path.lexists(self.out) and (self.out.is_symlink() or not self.out.is_file()):
            raise _not_ours(self.out, "it is no plain file")

    def place(self) -> None:
        """Puts the complete file `partial` where the output goes; `PosgapError` where another one must not be lost."""
        self.require_ours()
        if self.out.exists() and not self.force and not self.may_replace(self.out):
            if filecmp.cmp(self.partial, self.out, shallow=False):
                return
            raise PosgapError(f"{self}: is there, and not what this command writes; --force replaces it")
        files.flush(self.partial)
        os.replace(self.partial, self.out)
        files.flush(self.out.parent, deep=False)


def _as_input(output: Location) -> dict[str, str]:
    """What a manifest says of an output that was made just now: its sha256 is that of its own manifest's files."""
    hashed = {name: each["sha256"] for name, each in listed(read_record(source(output).read(MANIFEST))).items()}
    return {"path": str(output), "sha256": files.digest_of_folder(hashed)}


def _locked(path: Path) -> Any:
    """The lock, held; None where other processes have it."""
    from filelock import FileLock, Timeout

    lock, end = FileLock(path), time.monotonic() + WAIT
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
    """Why there is neither a folder that can be replaced nor nothing; empty where there is."""
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
    return PosgapError(f"{with_uris(str(place))}: is not replaced: {reason}; move it away, or write elsewhere")


def writes_file(work: Callable[[C, Path], str]) -> Callable[[C], Location]:
    """Turns `work(config, file)`, which writes a file and returns what it did, into a verb that writes `config.out`.

    Inputs in S3 are fetched, and an output there is uploaded. The file is there at once or not at all; another one is
    replaced with `config.force` alone.
    """

    @functools.wraps(work)
    def run(config: C) -> Location:
        with File(config, config.force) as output:
            done = work(on_this_machine(config, sources(config)), output.partial)
            if is_uri(config.out):
                publish_file(output.partial, config.out, config.force)
            else:
                output.place()
        log.log(RESULT, "%s to %s", done, config.out)
        keep({"done": done, "out": str(config.out)})
        return config.out

    return run
