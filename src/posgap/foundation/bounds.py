"""Files that anybody may have made, read within bounds: no file, however small, can exhaust memory or time.

Every reader of this package gets its bytes from here. A file must lie on a disk, since a device or a pipe has no end.
The unpacked size of a gzipped file, a line and a row are each bounded in bytes.
"""

import errno
import gzip
import io
import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from posgap.foundation.errors import Malformed, NotFound, TooLarge, Unreadable, first_line

MB = 1 << 20
DOCUMENT = 64 * MB  # bytes of a file that is read whole
RECORD = 32 * MB  # bytes of a line, a row, or an array's item: a text of some eight million tokens
EXPANSION = 100
FREE = 64 * MB  # a packed file may hold this many times its own bytes, or this many bytes if more
BLOCK = MB // 2  # bytes that are read at once
UNREADABLE = (OSError, EOFError, zlib.error)


def open_plain(path: Path) -> io.BufferedReader:
    """Opens a file to read. Raises `Unreadable` for a device or a pipe, and `OSError` as `open` does."""
    # Without O_NONBLOCK this would wait for ever for a pipe without a writer.
    opened = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(opened).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(opened, "rb")
    os.close(opened)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise Unreadable("is a device or a pipe and may never end; write its content to a file first", at=str(path))


@contextmanager
def open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """Opens a file to read, unpacked if its name ends in `.gz`.

    Raises `NotFound` if it is missing, `Unreadable` if it cannot be read, and `TooLarge` if it unpacks to suspiciously
    much.
    """
    try:
        with open_plain(path) as raw:
            yield io.BufferedReader(_Unpacked(raw, path)) if Path(path).suffix == ".gz" else raw
    except FileNotFoundError:
        raise NotFound("no such file", at=str(path)) from None
    except UNREADABLE as error:
        raise Unreadable(f"cannot be read: {first_line(error)}", at=str(path)) from None


class _Unpacked(io.RawIOBase):
    """The bytes of a gzipped file, which ends in `TooLarge` when it has given too many for its size."""

    def __init__(self, packed: BinaryIO, path: Path):
        self._packed = packed
        self._path = path
        self._file = gzip.GzipFile(fileobj=packed, mode="rb")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read = self._file.readinto(buffer)
        if self._file.tell() > max(FREE, EXPANSION * self._packed.tell()):
            problem = f"unpacks to more than {EXPANSION} times its size, which real data never does; unpack it yourself"
            raise TooLarge(problem, at=str(self._path))
        return read


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Returns a file's bytes, unpacked; `TooLarge` if there are more than `most` (default: `DOCUMENT`)."""
    most = DOCUMENT if most is None else most
    with open_unpacked(path) as file:
        data = file.read(most + 1)
    if len(data) > most:
        size = f"{most // MB} MB" if most >= MB else f"{most} bytes"
        raise TooLarge(f"more than {size}, the limit for a file that is read whole", at=str(path))
    return data


def read_text(path: Path, most: int | None = None) -> str:
    """Returns a file's text, in UTF-8; see `read_bytes`."""
    try:
        return read_bytes(path, most).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Malformed("is not UTF-8 text", at=str(path)) from None


class Blocks:
    """A file in blocks of whole lines: as many as `BLOCK` bytes hold, or one that is longer.

    A caller with rows of several lines sets `row_began` to `n_read` when a row ends. Then a row is bounded too, with
    the blank lines before it.
    """

    def __init__(self, file: BinaryIO, path: Path):
        self.file = file
        self.path = path
        self.n_read = 0  # bytes that were read
        self.n_lines = 0  # lines of the blocks before the present one
        self.row_began: int | None = None

    def __iter__(self) -> Iterator[bytes]:
        rest = b""
        try:
            while block := self.file.read(BLOCK):
                self.n_read += len(block)
                block = rest + block
                end = block.rfind(b"\n") + 1
                if block.find(b"\n") > RECORD or len(block) - end > RECORD:
                    self._refuse("a line")
                if self.row_began is not None and self.n_read - self.row_began > RECORD + BLOCK:
                    self._refuse("a row")
                rest = block[end:]
                if end:
                    yield block[:end]
                    self.n_lines += block.count(b"\n")
        except UNREADABLE as error:
            problem = f"cannot be read after line {self.n_lines}: {first_line(error)}"
            raise Unreadable(problem, at=str(self.path)) from None
        if rest:
            yield rest

    def _refuse(self, what: str) -> None:
        raise TooLarge(f"{what} of more than {RECORD // MB} MB", at=f"{self.path}:{self.n_lines + 1}")


def leaves(value: Any) -> Iterator[Any]:
    """Yields what a nested value of mappings and lists holds that is neither, without recursion."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list | tuple):
            waiting += each
        else:
            yield each


def require_bounded_row(row: Any, where: str) -> int:
    """Returns how many characters the texts of a row have together; `TooLarge` if there are more than `RECORD`."""
    size = 0
    for leaf in leaves(row):
        if isinstance(leaf, str | bytes):
            size += len(leaf)
        if size > RECORD:
            raise TooLarge(f"a row of more than {RECORD // MB} MB", at=where)
    return size
