"""JSON that anybody may have written, read within limits: nothing in it can exhaust memory or the stack.

A document is read whole; lines and the items of an array are read one at a time, so that memory stays flat however
long the file is.
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pydantic_core

from posgap.foundation.errors import PosgapError, first_line

MB = 1 << 20
DOCUMENT = 64 * MB  # bytes of a document
RECORD = 32 * MB  # bytes of a line, or of an array's item: a text of some eight million tokens
EXPANSION, FREE = 100, 64 * MB  # a gzipped file may hold this many times its own bytes, or this many bytes if more
DEPTH = 200  # levels of nesting; fixed in pydantic-core's parser
MAX_INTEGER = 2**63 - 1  # of whole numbers, either side of 0
_BLOCK = MB
_BOM = b"\xef\xbb\xbf"
# What can be a whole number beyond LARGEST, or one that overflows to infinity; it can be text too.
_PERHAPS_TOO_LARGE = re.compile(rb"[0-9]{19}|[0-9.][eE]\+?[0-9]{3}")
# A string, which may lack its end where the buffer ends, or a bracket.
_TOKEN = re.compile(rb'"(?>[^"\\]+|\\.?)*(?P<end>"|\Z)|[\[\]{}]', re.DOTALL)
_GAP = re.compile(rb"[ \t\r\n]*")


def parse_json(text: bytes | str, where: str) -> Any:
    """The value of a JSON text; `PosgapError` begins with `where` and says what is wrong.

    Refused are NaN, infinities and numbers that are too large to be told from them, whole numbers of more than 64
    bits, lone surrogates, what is not UTF-8, and nesting deeper than `DEPTH`.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    try:
        value = pydantic_core.from_json(data, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise PosgapError(f"{where}: not JSON: {_why_not_json(error, data)}") from None
    if _PERHAPS_TOO_LARGE.search(data):
        _require_ordinary_numbers(value, where)
    return value


def _why_not_json(error: ValueError, data: bytes) -> str:
    reason = str(error).replace("at line 1 column", "at column") if b"\n" not in data.rstrip() else str(error)
    if "recursion limit" in reason:
        return f"nested more than {DEPTH} levels deep"
    if "number out of range" in reason:
        return "a number of more than 4300 digits"
    if re.search(rb"NaN|Infinity", data) and re.match("expected value|invalid number", reason):
        return f"{reason} (NaN and Infinity are no JSON)"
    return reason


def _require_ordinary_numbers(value: Any, where: str) -> None:
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += each.values()
        elif isinstance(each, list):
            waiting += each
        elif isinstance(each, int) and abs(each) > MAX_INTEGER:
            raise PosgapError(f"{where}: a whole number of {len(str(abs(each)))} digits, more than 64 bits hold")
        elif isinstance(each, float) and abs(each) == float("inf"):
            raise PosgapError(f"{where}: a number too large for a float")


def read_document(path: Path) -> bytes:
    """A file's bytes, at most `DOCUMENT` when they are unpacked; `PosgapError` where it cannot be read or has more."""
    with open_unpacked(path) as file:
        data = file.read(DOCUMENT + 1)
    if len(data) > DOCUMENT:
        raise PosgapError(f"{path}: more than {DOCUMENT // MB} MB, too large for a JSON document that is read whole")
    return data.removeprefix(_BOM)


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields (number from 1, line) of a file's lines that are not blank."""
    with open_unpacked(path) as file:
        number = 0
        try:
            while line := file.readline(RECORD + 1):
                number += 1
                if len(line) > RECORD:
                    raise PosgapError(f"{path}:{number}: a line of more than {RECORD // MB} MB")
                if line.strip():
                    yield number, line.removeprefix(_BOM) if number == 1 else line
        except _UNREADABLE as error:
            raise PosgapError(f"{path}: cannot be read after line {number}: {first_line(error)}") from None


def items(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields (number from 1, item) of a file that is a JSON array of objects or arrays, of any length."""
    with open_unpacked(path) as file:
        buffer = _Buffer(file, path)
        if buffer.next_byte() != b"[":
            raise PosgapError(f"{path}: expected a JSON array of objects; name a file of lines .jsonl")
        buffer.at += 1
        number, separator = 0, buffer.next_byte()
        while separator != b"]":
            if number:
                if separator != b",":
                    raise PosgapError(f"{path}: not JSON: no comma after item {number}")
                buffer.at += 1
            number += 1
            yield number, parse_json(buffer.item(number), f"{path}:{number}")
            separator = buffer.next_byte()
        buffer.at += 1
        if buffer.next_byte():
            raise PosgapError(f"{path}: not JSON: more stands after the array's end")


def is_array(path: Path) -> bool:
    """Whether a file begins as a JSON array, rather than as lines or one object."""
    with open_unpacked(path) as file:
        return _Buffer(file, path).next_byte() == b"["


class _Buffer:
    """The part of an array that was read and not taken yet: `data` from `at` on."""

    def __init__(self, file: BinaryIO, path: Path):
        self.file, self.path, self.data, self.at = file, path, file.read(_BLOCK).removeprefix(_BOM), 0

    def more(self) -> bool:
        """Drops what has been taken and reads on; whether there was anything."""
        block = self.file.read(_BLOCK)
        self.data, self.at = self.data[self.at :] + block, 0
        return bool(block)

    def next_byte(self) -> bytes:
        """The next byte that is no white space, which is not taken; empty at the end of the file."""
        while True:
            gap = _GAP.match(self.data, self.at)
            assert gap
            self.at = gap.end()
            if self.at < len(self.data) or not self.more():
                return self.data[self.at : self.at + 1]

    def item(self, number: int) -> bytes:
        """Takes the next object or array."""
        if self.next_byte() not in (b"{", b"["):
            raise PosgapError(f"{self.path}:{number}: expected a JSON object, found {self.data[self.at :][:40]!r}")
        depth, searched = 0, 0  # `searched` bytes of the item have been looked through
        while True:
            for token in _TOKEN.finditer(self.data, self.at + searched):
                if token["end"] == b"":
                    break  # of a string whose end has not been read
                searched = token.end() - self.at
                depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(token[0], 0)
                if not depth:
                    item = self.data[self.at : token.end()]
                    self.at = token.end()
                    return item
            if len(self.data) - self.at > RECORD:
                raise PosgapError(f"{self.path}:{number}: an item of more than {RECORD // MB} MB")
            if not self.more():
                raise PosgapError(f"{self.path}:{number}: not JSON: the file ends within this item")


@contextmanager
def open_unpacked(path: Path) -> Iterator[BinaryIO]:
    """A file to read, unpacked where its name ends in `.gz`. `PosgapError` where it is missing, cannot be read, is
    corrupt, or unpacks to suspiciously much."""
    try:
        with open(path, "rb") as raw:
            yield _BoundedGzipFile(raw, path) if Path(path).suffix == ".gz" else raw  # type: ignore[misc]
    except FileNotFoundError:
        raise PosgapError(f"{path}: no such file") from None
    except _UNREADABLE as error:
        raise PosgapError(f"{path}: cannot be read: {first_line(error)}") from None


_UNREADABLE = (OSError, EOFError, zlib.error)


class _BoundedGzipFile(gzip.GzipFile):
    """A gzipped file that is not read on when it has given too much for its size."""

    def __init__(self, packed: BinaryIO, path: Path):
        super().__init__(fileobj=packed, mode="rb")
        self.packed, self.path = packed, path

    def _require_bounded(self, data: bytes) -> bytes:
        if self.tell() > max(FREE, EXPANSION * self.packed.tell()):
            raise PosgapError(
                f"{self.path}: unpacks to more than {EXPANSION} times its size, as no data do; unpack it yourself"
            )
        return data

    def read(self, size: int | None = -1) -> bytes:
        return self._require_bounded(super().read(size))

    def readline(self, size: int | None = -1) -> bytes:
        return self._require_bounded(super().readline(size))
