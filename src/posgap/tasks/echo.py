"""Whether a response copies from its prompt instead of answering: repeats it, or lists candidates.

Texts are compared by their pieces: words, groups of digits or of hex digits, and single signs, without white space. A
tokenizer is not needed, so responses of endpoints are judged like those of a model on this machine.
"""

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from posgap.tasks.metrics import named

MIN_RUN = 24  # pieces beside the answer's: a record of two UUIDs has 23 in all, one of eight digits 7
_PIECES = re.compile(r"\w+|[^\w\s]")


Others = Literal["", "after", "before"]


class Copying(NamedTuple):
    """What a response copies: whether it repeats the prompt at length, and whether it names other candidates beside the
    right answer, the first of them "before" that or "after" it."""

    echo: bool
    others: Others


def find_copying(prompt: Callable[[], str], response: str, answers: Sequence[str]) -> Copying:
    """What a response copies of the prompt, where these answers are right. `prompt` makes its text, and is called only
    where the response is long enough for an echo."""
    long_enough = len(pieces(response)) >= MIN_RUN
    said = named(response, answers)
    others: Others = "" if all(said) or not any(said) else "after" if said[0] else "before"
    # An answer is mostly a quotation, but one that goes on to other candidates is none.
    return Copying(long_enough and is_echo(prompt(), response, () if others else answers), others)


class SharedRun(NamedTuple):
    """Pieces of a response, from `start` on, that stand in the prompt one after the other in the same order."""

    start: int
    length: int


def pieces(text: str) -> list[str]:
    """The words and signs of a text, in lower case."""
    return _PIECES.findall(text.lower())


def longest_run(prompt: Sequence[str], response: Sequence[str]) -> SharedRun:
    """The longest run of the response's pieces that the prompt has too; of equally long ones the first. Its length is 0
    where they have no piece in common."""
    places: dict[str, list[int]] = {}
    for at, piece in enumerate(prompt):
        places.setdefault(piece, []).append(at)
    best, ending = SharedRun(0, 0), dict[int, int]()  # the length of the run that ends at a place of the prompt
    for at, piece in enumerate(response):
        ending = {place: ending.get(place - 1, 0) + 1 for place in places.get(piece, ())}
        length = max(ending.values(), default=0)
        if length > best.length:
            best = SharedRun(at + 1 - length, length)
    return best


def is_echo(prompt: str, response: str, answers: Sequence[str]) -> bool:
    """Whether a response repeats the prompt at length.

    That is where its longest run has at least `MIN_RUN` pieces more than the longest of the right answers that stand in
    it: an answer is mostly a quotation, and is no echo.
    """
    said = pieces(response)
    if len(said) < MIN_RUN:
        return False
    run = longest_run(pieces(prompt), said)
    quoted = said[run.start : run.start + run.length]
    of_answer = max((len(answer) for answer in map(pieces, answers) if _holds(quoted, answer)), default=0)
    return run.length - of_answer >= MIN_RUN


def _holds(quoted: Sequence[str], answer: Sequence[str]) -> bool:
    return any(list(quoted[at : at + len(answer)]) == list(answer) for at in range(len(quoted) - len(answer) + 1))
