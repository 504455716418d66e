"""Whether a server reads prompts whole, or cuts them without a word, as Ollama and gateways do.

It must return codes that stand in the prompt. Its token count is compared with its count for a sample of the same text.
Both are in its own tokens, so no tokenizer is needed.
"""

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_of
from posgap.generation.generator import Completion

log = logging.getLogger(__name__)

MAX_UNCHECKED = 4000  # bytes: no server is known to cut a shorter prompt
SHORT = "Hello"  # what a template adds is counted by this
LONGER = 1.03  # a prompt this many times as long as those that were read whole may be cut all the same
_SAMPLE = 700  # bytes of each of three stretches, which together fit into 2,048 tokens
_LEAST = 0.85  # of the tokens expected by a sample: parts of a text differ by some percent
OFTEN = 8  # lines with the same code, for a model that found no single one
_LINE = 1000  # characters behind the middle within which a line may end
_AT_A_BORDER = 16  # tokens that parting a prompt in halves may add
_PIECES = re.compile(r"[^\W\d_]+|\d+|[^\w\s]+|_+")
_REMEDY = (
    "give it a larger context (Ollama: OLLAMA_CONTEXT_LENGTH; gateways: no shortening, like `transforms: []`), or ask "
    "shorter prompts (--n-docs)"
)


class ReadingRate(NamedTuple):
    """How a server counts tokens: those added to a prompt, and those of a piece of text, a word or a character."""

    added: int
    of_piece: float

    def expected(self, text: str) -> float:
        """About how many tokens it reads of a prompt, if it reads all of it."""
        return self.added + self.of_piece * count_pieces(text)

    def why_cut(self, text: str, told: int | None) -> str:
        """Returns why the prompt must have been truncated, given the server's token count; empty if it was not."""
        expected = self.expected(text)
        if told is None or told >= _LEAST * expected:
            return ""
        return f"it read {told:,} tokens of a prompt of about {expected:,.0f}: it truncates prompts; {_REMEDY}"


def cut_halves(text: str) -> tuple[str, str]:
    """The first half of a text and the second, parted at a space."""
    middle = text.find(" ", len(text) // 2) + 1
    return text[:middle], text[middle:]


def why_not_whole(added: int, whole: int, halves: Sequence[int]) -> str:
    """Returns why the prompt must have been truncated: the server read fewer tokens than of its halves; else empty."""
    expected = sum(halves) - added
    if whole >= expected - _AT_A_BORDER:
        return ""
    return f"it read {whole:,} tokens of a prompt whose halves have {expected:,}: it truncates prompts; {_REMEDY}"


def count_pieces(text: str) -> int:
    """The words, numbers and runs of signs in a text."""
    return sum(1 for _ in _PIECES.finditer(text))


def cut_sample(text: str) -> str:
    """The beginning, middle and end of a text, short enough for any server."""
    size = round(len(text) * _SAMPLE / len(text.encode()))
    middle = (len(text) - size) // 2
    return "\n".join((text[:size], text[middle : middle + size], text[-size:]))


def mark_text(text: str, times: int = 1) -> tuple[str, dict[str, str]]:
    """Plants a line with a marker's code at the start of the text and one in its middle, each this many times; returns
    the text and the codes by marker."""
    digits = digest_of(text)
    codes = {f"marker-{digits[:4]}-{place}": digits[at : at + 8] for place, at in (("one", 8), ("two", 16))}
    first, second = (f'"{marker}": "{code}"\n' * times for marker, code in codes.items())
    half = len(text) // 2
    middle = text.find("\n", half, half + _LINE) + 1 or text.find(" ", half) + 1 or half
    return f"{first}{text[:middle]}\n{second}{text[middle:]}", codes


def marker_question(marked: str, marker: str) -> str:
    """Asks for the code of a marker in a text."""
    return (
        f"{marked}\n\nOne line of the text above gives the code of the key below. Reply with that code alone.\n\n"
        f'Key: "{marker}"\nCorresponding value:'
    )


class TruncationProbe:
    """Finds out whether a server cuts prompts, before the first long one and before each that is longer by 3 percent.

    `ask(prompt, max_tokens)` answers one prompt, and `shown` is the endpoint's address in messages. There are two
    tests. Codes are planted at the start and in the middle of the prompt and requested: a server that truncates cannot
    return them, however it or a gateway counts. The server's token count is also compared with those of a sample and of
    both halves, which works for models too weak to find codes.
    """

    def __init__(self, shown: str, ask: Callable[[str, int], Awaitable[Completion]]):
        self.shown = shown
        self.ask = ask
        self.verified_bytes: float = MAX_UNCHECKED  # of the longest prompt that is known to be read whole
        self.rate: ReadingRate | None = None
        self._checking: asyncio.Lock | None = None

    async def require_whole(self, text: str, limit: int) -> None:
        """Raises `PosgapError` if the server cuts a prompt of this length; answers may take `limit` tokens."""
        if len(text.encode()) <= self.verified_bytes:
            return
        self._checking = self._checking or asyncio.Lock()
        async with self._checking:
            if len(text.encode()) > self.verified_bytes:
                await self._check(text, limit)

    def why_cut(self, text: str, told: int | None) -> str:
        """Says that a prompt was cut, from the token count that the server reports; empty if it was not."""
        return self.rate.why_cut(text, told) if self.rate else ""

    def reopen(self) -> None:
        """Forgets the lock of an event loop that has ended."""
        self._checking = None

    async def _check(self, text: str, limit: int) -> None:
        added = await self._count(SHORT)
        sample = cut_sample(text)
        of_sample = await self._count(sample) if added else 0
        if added < 0 or of_sample < 0:
            return  # the prompts themselves will fail alike, and say so
        found, told = await self._find_codes(text, limit)
        self.verified_bytes = LONGER * len(text.encode())
        counts = bool(added and of_sample > added)
        if counts:
            self.rate = ReadingRate(added, (of_sample - added) / max(1, count_pieces(sample)))
        if all(found):
            return
        if counts and told:
            halves = [await self._count(half) for half in cut_halves(text)]
            of_whole = await self._count(text)
            why_cut = self.why_cut(text, of_whole) or why_not_whole(added, of_whole, halves)
            if why_cut:
                raise PosgapError(f"{self.shown}: {why_cut}")
        in_sample, _ = await self._find_codes(sample, limit)
        if not all(in_sample):
            if not counts:
                log.warning("%s: %s", self.shown, NOBODY_KNOWS)
                self.verified_bytes = math.inf  # nor would a longer prompt tell
            return
        often, _ = await self._find_codes(text, limit, OFTEN)
        if not all(often):
            raise PosgapError(f"{self.shown}: {NO_MARKER}")

    async def _count(self, text: str) -> int:
        """The tokens that the server says it read: 0 if it says nothing, -1 if it fails."""
        completion = await self.ask(text, 16)
        if completion.outcome == "failed":
            return -1
        return (completion.usage.prompt if completion.usage else None) or 0

    async def _find_codes(self, text: str, limit: int, times: int = 1) -> tuple[list[bool], int]:
        """Plants each code this many times. Returns whether the model finds the one at the start and the one in the
        middle, and the token count of the last prompt."""
        marked, codes = mark_text(text, times)
        found = []
        told = 0
        for marker, code in codes.items():
            said = await self.ask(marker_question(marked, marker), limit)
            found.append(code in said.text)
            told = (said.usage.prompt if said.usage else None) or 0
        return found, told


NO_MARKER = (
    "finds no code at the start or in the middle of the longest prompt, though it stands there several times, and does "
    f"in a short one: it truncates prompts, or its model cannot read so long a one; {_REMEDY}"
)
NOBODY_KNOWS = (
    "reports no token counts and finds no code in a short prompt either: unknown whether it truncates prompts"
)
