"""Whether a response copies from its prompt instead of answering: repeats it, or lists candidates.

Texts are compared by their pieces: words, groups of digits or of hex digits, and single signs, without white space. It
needs no tokenizer, so it judges responses of endpoints and of local models alike.
"""

import re
from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from posgap.tasks.metrics import named

MIN_RUN = 24  # pieces beside the answer's: a record of two UUIDs has 23 in all, one of eight digits 7
_PIECES = re.compile(r"\w+|[^\w\s]")


Others = Literal["", "after", "before"]


class Copying(NamedTuple):
    """A response's copies: whether it repeats the prompt at length, and whether it names other candidates beside the
    right answer, the first of them "before" that or "after" it."""

    echo: bool
    others: Others


def find_copying(prompt: Callable[[], str], response: str, answers: Sequence[str]) -> Copying:
    """Returns what a response copies from the prompt, given the right answers. `prompt` makes its text, and is called
    only if the response is long enough for an echo."""
    long_enough = len(pieces(response)) >= MIN_RUN
    said = named(response, answers)
    others: Others = "" if all(said) or not any(said) else "after" if said[0] else "before"
    # An answer is mostly a quotation, but one that continues with other candidates is none.
    return Copying(long_enough and is_echo(prompt(), response, () if others else answers), others)


def pieces(text: str) -> list[str]:
    """The words and signs of a text, in lower case."""
    return _PIECES.findall(text.lower())


def is_echo(prompt: str, response: str, answers: Sequence[str]) -> bool:
    """Whether a response repeats the prompt at length.

    It does if its longest run has at least `MIN_RUN` pieces more than the longest right answer within the run: an
    answer is mostly a quotation, and is no echo.
    """
    said = pieces(response)
    if len(said) < MIN_RUN:
        return False
    run = SequenceMatcher(None, said, pieces(prompt), autojunk=False).find_longest_match()
    quoted = said[run.a : run.a + run.size]
    of_answer = 0
    for answer in map(pieces, answers):
        if any(quoted[at : at + len(answer)] == answer for at in range(run.size - len(answer) + 1)):
            of_answer = max(of_answer, len(answer))
    return run.size - of_answer >= MIN_RUN
