"""Examples and their file format: one JSON object per line.

A document example holds `id, question, answers[], gold[{title, text}], distractors[{title, text}]`;
a key-value example holds `id, question, answers[], key, value, records[[key, value], ...]`, and its gold document and
distractors are taken from the records; a ranked example holds `id, question, answers[], relevance,
passages[{title, text, score, relevant, id}]` in a retriever's order, and its gold documents are the relevant passages.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, TypeAdapter

from posgap.foundation.files import Record


def _one_or_many(value: object) -> object:
    return [value] if isinstance(value, str) else value


# Texts that a file may write alone instead of in a list.
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

    Documents take several times the memory of their records, so only the last example's are kept.
    """

    id: str
    question: str
    answers: list[str]
    key: str
    value: str
    records: list[tuple[str, str]]

    @property
    def gold(self) -> list[Document]:
        return _DOCUMENTS.of(self, gold=True)

    @property
    def distractors(self) -> list[Document]:
        return _DOCUMENTS.of(self, gold=False)


class _LastDocuments:
    """The documents of the key-value example that was asked for last: its placements follow one another."""

    def __init__(self) -> None:
        self._last: tuple[KVExample | None, dict[bool, list[Document]]] = (None, {})

    def of(self, example: KVExample, gold: bool) -> list[Document]:
        """The example's gold documents, or its distractors."""
        owner, documents = self._last  # read and written whole, since threads share it
        if owner is not example:
            documents = {True: [], False: []}
            for key, value in example.records:
                documents[key == example.key].append(Document(title=key, text=value))
            self._last = example, documents
        return list(documents[gold])


_DOCUMENTS = _LastDocuments()


class Passage(Record):
    """A passage that a retriever returned, with its score, if known, and whether it is relevant."""

    title: str = ""
    text: str
    score: float | None = None
    relevant: bool = False
    id: str = ""

    @property
    def document(self) -> Document:
        """The part of it that prompts show."""
        return Document(title=self.title, text=self.text)


def documents_of(passages: Iterable[Passage], relevant: bool) -> list[Document]:
    """Returns the documents of the relevant passages, or of the others, in their order."""
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
EXAMPLE: TypeAdapter[AnyExample] = TypeAdapter(AnyExample)


def gold_texts(example: AnyExample) -> list[tuple[str, str]]:
    """Returns title and text of each gold document, without building a key-value example's documents."""
    if isinstance(example, KVExample):
        return [record for record in example.records if record[0] == example.key]
    return [(document.title, document.text) for document in example.gold]


def distractor_texts(example: AnyExample) -> list[tuple[str, str]]:
    """The title and the text of each distractor, likewise."""
    if isinstance(example, KVExample):
        return [record for record in example.records if record[0] != example.key]
    return [(document.title, document.text) for document in example.distractors]
