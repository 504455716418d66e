"""JSON that anybody may have written, read within limits: nothing in it can exhaust memory or the stack.

A document is read whole; lines and the items of an array are read one at a time, so that memory stays flat however
long the file is.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pydantic_core

from posgap.foundation import bounds
from posgap.foundation.bounds import BLOCK, MB, Blocks, leaves, open_unpacked, read_bytes
from posgap.foundation.errors import Malformed, TooLarge

DEPTH = 200  # levels of nesting; fixed in pydantic-core's parser
MAX_INTEGER = 2**63 - 1  # of whole numbers, either side of 0
_BOM = b"\xef\xbb\xbf"
# Text that may be a whole number beyond LARGEST, or a number that overflows to infinity; it can also be inside a
# string.
_PERHAPS_TOO_LARGE = re.compile(rb"[0-9]{19}|[0-9.][eE]\+?[0-9]{3}")
# A string, perhaps without its end if the buffer ends there, or a bracket.
_TOKEN = re.compile(rb'"(?>[^"\\]+|\\.?)*(?P<end>"|\Z)|[\[\]{}]', re.DOTALL)
_NAME_END = re.compile(rb'"[ \t\r\n]*:')
_GAP = re.compile(rb"[ \t\r\n]*")
_FILLED = re.compile(rb"\S")


def parse_json(text: bytes | str, where: str) -> Any:
    """Returns the value of a JSON text. Raises `Malformed` at `where`, which says what is wrong.

    It refuses NaN, infinities and numbers too large to differ from them, whole numbers of more than 64 bits, lone
    surrogates, invalid UTF-8, and nesting deeper than `DEPTH`.
    """
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    try:
        value = pydantic_core.from_json(data, allow_inf_nan=False, cache_strings="keys")
    except ValueError as error:
        raise Malformed(f"not JSON: {_why_not_json(error, data)}", at=where) from None
    if _PERHAPS_TOO_LARGE.search(data):
        _require_ordinary_numbers(value, where)
    return value


def require_unique_names(text: bytes, value: Any, where: str) -> None:
    """Raises `Malformed` if an object of a JSON text has a name twice: readers differ in which one counts. `value` is
    what the text was parsed as."""
    # Each name has a match, and a string can have more: if there are no more matches than names, none is there twice.
    if len(_NAME_END.findall(text)) == _count_names(value):
        return

    def check(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            twice = next(name for at, name in enumerate(names) if name in names[:at])
            raise Malformed(f"{twice[:60]!r} is there twice; write the file again", at=where)

    json.loads(text, object_pairs_hook=check)


def _count_names(value: Any) -> int:
    if isinstance(value, dict):
        return len(value) + sum(map(_count_names, value.values()))
    return sum(map(_count_names, value)) if isinstance(value, list) else 0


def _why_not_json(error: ValueError, data: bytes) -> str:
    reason = str(error).replace("at line 1 column", "at column") if b"\n" not in data.rstrip() else str(error)
    if "recursion limit" in reason:
        return f"nested more than {DEPTH} levels deep"
    if "number out of range" in reason:
        return "a number of more than 4300 digits"
    if re.search(rb"NaN|Infinity", data) and re.match("expected value|invalid number", reason):
        return f"{reason} (NaN and Infinity are not JSON)"
    return reason


def _require_ordinary_numbers(value: Any, where: str) -> None:
    for leaf in leaves(value):
        if isinstance(leaf, int) and abs(leaf) > MAX_INTEGER:
            raise Malformed(f"a whole number of {len(str(abs(leaf)))} digits does not fit into 64 bits", at=where)
        if isinstance(leaf, float) and abs(leaf) == float("inf"):
            raise Malformed("a number too large for a float", at=where)


def read_document(path: Path) -> bytes:
    """Returns a file's bytes, at most `DOCUMENT` of them, without a byte order mark."""
    return read_bytes(path).removeprefix(_BOM)


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields (number from 1, line) of a file's lines that are not blank."""
    with open_unpacked(path) as file:
        blocks = Blocks(file, path)
        for block in blocks:
            number = blocks.n_lines
            at = 0
            if not number:
                block = block.removeprefix(_BOM)
            while filled := _FILLED.search(block, at):
                start = block.rfind(b"\n", at, filled.start()) + 1 or at
                end = block.find(b"\n", filled.start()) + 1 or len(block)
                number += block.count(b"\n", at, start) + 1
                yield number, block[start:end]
                at = end


def items(path: Path) -> Iterator[tuple[int, Any]]:
    """Yields (number from 1, item) of a file that is a JSON array of objects or arrays, of any length."""
    with open_unpacked(path) as file:
        buffer = _Buffer(file, path)
        if buffer.next_byte() != b"[":
            raise Malformed("expected a JSON array of objects; name a file of lines .jsonl", at=str(path))
        buffer.at += 1
        number = 0
        separator = buffer.next_byte()
        while separator != b"]":
            if number:
                if separator != b",":
                    raise Malformed(f"not JSON: no comma after item {number}", at=str(path))
                buffer.at += 1
            number += 1
            yield number, parse_json(buffer.item(number), f"{path}:{number}")
            separator = buffer.next_byte()
        buffer.at += 1
        if buffer.next_byte():
            raise Malformed("not JSON: text after the end of the array", at=str(path))


def is_array(path: Path) -> bool:
    """Whether a file begins as a JSON array, rather than as lines or one object."""
    with open_unpacked(path) as file:
        return _Buffer(file, path).next_byte() == b"["


class _Buffer:
    """The part of an array that was read and not taken yet: `data` from `at` on."""

    def __init__(self, file: BinaryIO, path: Path):
        self.file = file
        self.path = path
        self.data = file.read(BLOCK).removeprefix(_BOM)
        self.at = 0

    def more(self) -> bool:
        """Drops what has been taken and reads on; whether there was anything."""
        block = self.file.read(BLOCK)
        self.data = self.data[self.at :] + block
        self.at = 0
        return bool(block)

    def next_byte(self) -> bytes:
        """Returns the next byte that is no white space, without taking it; empty at the end of the file."""
        while True:
            gap = _GAP.match(self.data, self.at)
            assert gap
            self.at = gap.end()
            if self.at < len(self.data) or not self.more():
                return self.data[self.at : self.at + 1]

    def item(self, number: int) -> bytes:
        """Takes the next object or array."""
        if self.next_byte() not in (b"{", b"["):
            raise Malformed(f"expected a JSON object, found {self.data[self.at :][:40]!r}", at=f"{self.path}:{number}")
        depth = 0
        searched = 0  # `searched` bytes of the item have been looked through
        while True:
            for token in _TOKEN.finditer(self.data, self.at + searched):
                if token["end"] == b"":
                    break  # a string whose end has not been read
                searched = token.end() - self.at
                depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(token[0], 0)
                if not depth:
                    item = self.data[self.at : token.end()]
                    self.at = token.end()
                    return item
            if len(self.data) - self.at > bounds.RECORD:
                raise TooLarge(f"an item of more than {bounds.RECORD // MB} MB", at=f"{self.path}:{number}")
            if not self.more():
                raise Malformed("not JSON: the file ends within this item", at=f"{self.path}:{number}")
