"""Keeps the unfinished work of a KFP step in S3 beside its output, so that a retry of the step resumes it.

An evicted or interrupted try loses its disk. KFP 2.17 makes a step's output address once, for all tries
(`argocompiler/container.go`: the driver is a task before the retried one). So files beside that address are found by
the next try, and by no other step.

At SIGTERM all is uploaded once more, as far as there is time. On KFP there is none: the step's program runs below KFP's
launcher, which ends at SIGTERM (2.17 has no handler), and the container with it. There the upload of each minute
counts.
"""

import logging
import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import HOME_PREFIX, digest_path
from posgap.foundation.interruption import raising_on_termination
from posgap.foundation.locations import is_uri
from posgap.storage.folders import ResumableFolder
from posgap.storage.transfer import upload_files

log = logging.getLogger(__name__)
SUFFIX = ".work"  # of the address, beside the output's
SECONDS = 60.0  # between two uploads of changes: the most work that an interruption loses


@contextmanager
def keep_work(out: Any, below: Path | None = None) -> Iterator[str]:
    """Keeps the unfinished work of the artifact `out` in S3 within the block; gives the address, or "" if it is not.

    It first downloads what an earlier try left. Stages keep their unfinished work beside their outputs, in the folder
    `below`, by default that of `out`. The block's success removes it from S3. A pipeline root outside S3 keeps nothing,
    and S3's refusals only cause a warning: the step can do its work without.
    """
    place = f"{out.uri}{SUFFIX}" if is_uri(out.uri) else ""
    if not place:
        yield ""
        return
    mirror = _Mirror(below or Path(out.path).parent, place)
    mirror.pull()
    with raising_on_termination():
        try:
            with mirror.pushing():
                yield place
        except BaseException:
            mirror.push()
            raise
    mirror.remove_copy()


class _Mirror:
    """The unfinished work below a folder, and its copy at an address in S3."""

    def __init__(self, folder: Path, place: str):
        self.folder = folder
        self.place = place
        self.there = ResumableFolder(folder)
        self.there.uri = place
        self._sent: dict[Path, tuple[int, int]] = {}

    def pull(self) -> None:
        """Brings what an earlier try left."""
        with self._forgiving():
            names = self.there.stored_names()
            if names:
                log.info("resuming from an earlier try: %d files of %s", len(names), self.place)
                self.there.pull()

    def push(self) -> None:
        """Uploads the files that have changed."""
        changed = {}
        for path in self.folder.glob(f"**/{HOME_PREFIX}*/work/**/*"):
            with suppress(FileNotFoundError):  # it has just been removed
                found = path.stat()
                version = found.st_mtime_ns, found.st_size
                if path.is_file() and self._sent.get(path) != version:
                    changed[path] = version
        if not changed:
            return
        with self._forgiving(), tempfile.TemporaryDirectory() as copies:
            # From copies, since a stage keeps writing to its files while they are read.
            sent = []
            for number, path in enumerate(changed):
                copy = Path(shutil.copyfile(path, Path(copies, str(number))))
                sent.append((copy, digest_path(copy), f"{self.place}/{path.relative_to(self.folder).as_posix()}"))
            upload_files(sent, self.place)
            self._sent |= changed

    @contextmanager
    def pushing(self) -> Iterator[None]:
        """Uploads what has changed from time to time, beside the work."""
        over = threading.Event()

        def push_until_over() -> None:
            while not over.wait(SECONDS):
                self.push()

        beside = threading.Thread(target=push_until_over, daemon=True)
        beside.start()
        try:
            yield
        finally:
            over.set()
            beside.join()

    def remove_copy(self) -> None:
        """Removes the copy."""
        with self._forgiving():
            self.there.drop(self.there.stored_names())

    @contextmanager
    def _forgiving(self) -> Iterator[None]:
        try:
            yield
        except (PosgapError, OSError) as error:
            log.warning("%s: unfinished work is not kept there: %s", self.place, error)
