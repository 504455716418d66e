"""Reads questions about documents of one's own, and cuts each document into parts that a sweep can turn as a ring."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

from pydantic import AliasChoices, BaseModel, Field

from posgap.foundation.bounds import read_text
from posgap.foundation.errors import Malformed, PosgapError, shorten
from posgap.foundation.files import parse_as, read_rows
from posgap.tasks.examples import Document, Example, Texts

PARTS = 20  # of a document, by default as many as a prompt has documents
# Where a text may be cut, the best place first: between paragraphs, sentences and words.
_BORDERS = (r"\n\s*\n", r"(?<=[.!?])\s+", r"\s+")


class _QuotedQuestion(BaseModel):
    id: str = ""
    question: str = Field(min_length=1)
    answers: Texts = Field(validation_alias=AliasChoices("answers", "answer"))
    file: str = Field(min_length=1)
    quote: str = Field(min_length=1, pattern=r"\S")


def read_documents(path: Path) -> Iterator[tuple[int, Example]]:
    """Yields (row, example) of a table with `question, answer, file, quote`, in the same folder as its files.

    A file is text or Markdown in UTF-8. It is cut into about 20 parts of equal length, but never within the quote; the
    quote's part is the gold document. The distractors are the parts after it, and then those before it: rotated, they
    are the text in its own order. Raises `PosgapError`, which names the row and its fault.
    """
    folder = path.parent.resolve()

    @cache
    def text_of(name: str) -> str:
        file = (folder / name).resolve()
        if not file.is_relative_to(folder):
            raise PosgapError(f"field `file`: {name} is not in the table's folder")
        try:
            return read_text(file)
        except PosgapError as error:
            raise PosgapError(f"field `file`: {error}") from None

    for number, row in read_rows(path):
        item = parse_as(_QuotedQuestion, row, f"{path}:{number}")
        try:
            parts, at = split_around(text_of(item.file), item.quote)
        except PosgapError as error:
            raise Malformed(str(error), at=f"{path}:{number}") from None
        gold, *others = (Document(title="", text=part) for part in [*parts[at:], *parts[:at]])
        name = item.id or f"document-{number:06d}"
        yield number, Example(id=name, question=item.question, answers=item.answers, gold=[gold], distractors=others)


def split_around(text: str, quote: str) -> tuple[list[str], int]:
    """Returns the parts of a text, in its order, and the index of the part with the quote.

    White space in the quote may differ from the text's. Raises `PosgapError` if the text does not contain the quote, or
    more than once, or if there are no two parts.
    """
    pattern = r"\s+".join(re.escape(word) for word in quote.split())
    found = [match.span() for match in re.finditer(pattern, text)]
    if len(found) != 1:
        where = f"{len(found)} times in the file; give a longer one" if found else "nowhere in the file"
        raise PosgapError(f"field `quote`: {shorten(repr(quote))} stands {where}")
    ((first, last),) = found
    width = len(text) / PARTS
    cuts = {0, len(text)}
    borders = []
    for border in _BORDERS:
        found_ends = map(re.Match.end, re.finditer(border, text))
        borders.append([end for end in found_ends if not first < end < last])
    for number in range(1, PARTS):
        for ends in borders:
            after = bisect_left(ends, number * width)
            at = min(ends[max(0, after - 1) : after + 1], key=lambda end: abs(end - number * width), default=0)
            # A better kind of border is worth a quarter of a part; between words any will do.
            if abs(at - number * width) <= width / 4:
                break
        cuts.add(at)
    parts: list[str] = []
    of_quote = 0
    for start, end in pairwise(sorted(cuts)):
        part = text[start:end].strip()
        if part:
            of_quote = len(parts) if start <= first else of_quote
            parts.append(part)
    if len(parts) < 2:
        raise PosgapError("field `file`: the document is only the quote")
    return parts, of_quote
