"""Examples and their file format: one JSON object per line.

A document example holds `id, question, answers[], gold[{title, text}], distractors[{title, text}]`;
a key-value example holds `id, question, answers[], key, value, records[[key, value], ...]`, and its gold document and
distractors are taken from the records; a ranked example holds `id, question, answers[], relevance,
passages[{title, text, score, relevant, id}]` in a retriever's order, and its gold documents are the relevant passages.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from posgap.foundation.files import Record


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


# Texts of which a file may write a single one as it is.
Texts = Annotated[list[str], BeforeValidator(_one_or_many), Field(min_length=1)]


class Document(Record):
    """A titled passage; for key-value retrieval, a key and its value."""

    title: str
    text: str


class Example(Record):
    """A question, its accepted answers, its gold documents and its distractors."""

    id: str
    question: str
    answers: list[str]
    gold: list[Document]
    distractors: list[Document]


class KVExample(Record):
    """A question for the value of a key among records; the record of that key is the gold document.

    Documents are made anew each time, since they take several times the memory of their records.
    """

    id: str
    question: str
    answers: list[str]
    key: str
    value: str
    records: list[tuple[str, str]]

    @property
    def gold(self) -> list[Document]:
        return [Document(title=key, text=value) for key, value in self.records if key == self.key]

    @property
    def distractors(self) -> list[Document]:
        return [Document(title=key, text=value) for key, value in self.records if key != self.key]


class Passage(Record):
    """A passage that a retriever returned, with its score where that is known, and whether it is relevant."""

    title: str = ""
    text: str
    score: float | None = None
    relevant: bool = False
    id: str = ""

    @property
    def document(self) -> Document:
        """What of it stands in prompts."""
        return Document(title=self.title, text=self.text)


def documents_of(passages: Iterable[Passage], relevant: bool) -> list[Document]:
    """The documents of those passages that are relevant, or of those that are not, in their order."""
    return [passage.document for passage in passages if passage.relevant == relevant]


class RankedExample(Record):
    """A question with the passages that a retriever returned for it, in its order, the best first.

    `relevance` says by what passages were told to be relevant: their "id", a "label", or an "answer" that they hold.
    """

    id: str
    question: str
    answers: list[str]
    passages: list[Passage]
    relevance: Literal["id", "label", "answer"] = "label"

    @property
    def gold(self) -> list[Document]:
        return documents_of(self.passages, relevant=True)

    @property
    def distractors(self) -> list[Document]:
        return documents_of(self.passages, relevant=False)


AnyExample = Example | KVExample | RankedExample
