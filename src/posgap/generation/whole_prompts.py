"""Whether a server reads prompts whole, or cuts them without a word, as Ollama and gateways do.

What it says it read of a long prompt is held against what it says of a sample of the same text: in its own tokens, so
that no tokenizer is needed. Where it tells no tokens, it is asked for markers that stand in the prompt.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from posgap.foundation.files import digest_of

LONG = 4000  # bytes: no server is known to cut a shorter prompt
SHORT = "Hello"  # what a template adds is counted by this
LONGER = 1.03  # a prompt this many times as long as those that were read whole may be cut all the same
_SAMPLE = 700  # bytes of each of three stretches, which together fit into 2,048 tokens
_LEAST = 0.85  # of the tokens expected by a sample: parts of a text differ by some percent
_AT_A_BORDER = 16  # tokens that parting a prompt in halves may add
_PIECES = re.compile(r"[^\W\d_]+|\d+|[^\w\s]+|_+")
_REMEDY = (
    "give it a larger context (Ollama: OLLAMA_CONTEXT_LENGTH; gateways: no shortening, like `transforms: []`), or ask "
    "shorter prompts (--n-docs)"
)


class ReadingRate(NamedTuple):
    """How a server counts tokens: those that it adds to a prompt, and those of a piece of text, a word or a sign."""

    added: int
    of_piece: float

    def expected(self, text: str) -> float:
        """About how many tokens it reads of a prompt, if it reads all of it."""
        return self.added + self.of_piece * count_pieces(text)

    def why_cut(self, text: str, told: int | None) -> str:
        """Says that a prompt was cut of which the server says that it read so many tokens; empty where it was not."""
        expected = self.expected(text)
        if told is None or told >= _LEAST * expected:
            return ""
        return f"it read {told:,} tokens of a prompt of about {expected:,.0f}: it cuts prompts; {_REMEDY}"


def cut_halves(text: str) -> tuple[str, str]:
    """The first half of a text and the second, parted at a space."""
    middle = text.find(" ", len(text) // 2) + 1
    return text[:middle], text[middle:]


def why_not_whole(added: int, whole: int, halves: Sequence[int]) -> str:
    """Says that a prompt was cut of which a server read fewer tokens than of its halves; empty where it was not."""
    expected = sum(halves) - added
    if whole >= expected - _AT_A_BORDER:
        return ""
    return f"it read {whole:,} tokens of a prompt whose halves have {expected:,}: it cuts prompts; {_REMEDY}"


def count_pieces(text: str) -> int:
    """The words, numbers and runs of signs in a text."""
    return sum(1 for _ in _PIECES.finditer(text))


def cut_sample(text: str) -> str:
    """The beginning, middle and end of a text, short enough for any server."""
    size = round(len(text) * _SAMPLE / len(text.encode()))
    middle = (len(text) - size) // 2
    return "\n".join((text[:size], text[middle : middle + size], text[-size:]))


def mark_text(text: str) -> tuple[str, dict[str, str]]:
    """The text with a line at its start and in its middle that give a marker's code each; and the codes by marker."""
    digits = digest_of(text)
    codes = {f"marker-{digits[:4]}-{place}": digits[at : at + 8] for place, at in (("one", 8), ("two", 16))}
    first, second = (f'"{marker}": "{code}"\n' for marker, code in codes.items())
    middle = text.find("\n", len(text) // 2) + 1
    if not middle:
        middle = text.find(" ", len(text) // 2) + 1
    return f"{first}{text[:middle]}\n{second}{text[middle:]}", codes


def marker_question(marked: str, marker: str) -> str:
    """Asks for the code of a marker in a text."""
    return (
        f"{marked}\n\nOne line of the text above gives the code of the key below. Reply with that code alone.\n\n"
        f'Key: "{marker}"\nCorresponding value:'
    )


NO_MARKER = (
    "tells no number of tokens, and does not find a marker at the start or in the middle of the longest prompt, which "
    f"it finds in a short one: it cuts prompts; {_REMEDY}"
)
NOBODY_KNOWS = "tells no number of tokens, and finds no marker in a short prompt either: nobody knows if it cuts them"
