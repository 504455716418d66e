"""Readers of files of questions with marked passages: DPR's, and a user's own."""

from collections.abc import Iterator
from pathlib import Path

from pydantic import AliasChoices, BaseModel, Field

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import parsed, read_rows
from posgap.tasks.examples import Document, Example, Texts
from posgap.tasks.metrics import holds_answer


class _Passage(BaseModel):
    title: str = ""
    text: str
    isgold: bool = False
    hasanswer: bool = Field(False, validation_alias=AliasChoices("hasanswer", "has_answer"))


class _Dpr(BaseModel):
    question: str
    answers: list[str]
    ctxs: list[_Passage] | None = None
    positive_ctxs: list[_Passage] | None = None
    hard_negative_ctxs: list[_Passage] = []
    negative_ctxs: list[_Passage] = []

    def passages(self) -> tuple[list[_Passage], list[_Passage]]:
        """Candidates for the gold document, best first, and for distractors."""
        if self.ctxs is None:
            return self.positive_ctxs or [], self.hard_negative_ctxs + self.negative_ctxs
        marked = [p for p in self.ctxs if p.isgold]
        return marked or [p for p in self.ctxs if p.hasanswer], [p for p in self.ctxs if not p.isgold]


def read_dpr(path: Path) -> Iterator[tuple[int, Example | None]]:
    """Yields (item, example) of NQ, TriviaQA or WebQ in the format of DPR (Karpukhin et al. 2020).

    The file is a JSON array, or lines, of `question, answers` with `ctxs[{title, text, isgold, hasanswer}]` (retrieved
    passages) or with `positive_ctxs, hard_negative_ctxs, negative_ctxs` (training files). The gold document is the
    first passage marked gold or positive, or else the first that contains an answer. Other passages that contain an
    answer do not become distractors. A question without a gold document is yielded as None.
    """
    for number, row in read_rows(path):
        item = parsed(_Dpr, row, f"{path}:{number}")
        if item.ctxs is None and item.positive_ctxs is None:
            raise PosgapError(
                f"{path}:{number}: field `ctxs`: missing, and so is `positive_ctxs`; one of them must hold the passages"
            )
        gold, others = item.passages()
        kept = [p for p in others if not (p.hasanswer or holds_answer(_document(p), item.answers))]
        yield (
            number,
            Example(
                id=f"dpr-{number:06d}",
                question=item.question,
                answers=item.answers,
                gold=[_document(gold[0])],
                distractors=[_document(p) for p in kept],
            )
            if gold
            else None,
        )


def _document(passage: _Passage) -> Document:
    return Document(title=passage.title, text=passage.text)


class _OwnDocument(BaseModel):
    text: str
    title: str = ""
    gold: int = Field(0, ge=0, le=2)  # `true` is 1


class _Own(BaseModel):
    id: str = ""
    question: str = Field(min_length=1)
    answers: Texts
    documents: list[_OwnDocument]


def read_own(path: Path) -> Iterator[tuple[int, Example]]:
    """Yields (line, example) of a user's file: `question, answers, documents[{text, title, gold}]`.

    `gold` is true on the gold document, or 1 and 2 on those of the first and second hop; `title` and the line's `id`
    may be left out. docs/formats.md describes the format.
    """
    for number, row in read_rows(path):
        item = parsed(_Own, row, f"{path}:{number}")
        hops = [i for i, document in enumerate(item.documents) if document.gold]
        hops.sort(key=lambda i: item.documents[i].gold)
        if [item.documents[i].gold for i in hops] not in ([1], [1, 2]):
            raise PosgapError(
                f"{path}:{number}: field `documents`: mark one with `gold: true`, or two with `gold: 1` and "
                f"`gold: 2`; {len(hops)} are marked"
            )
        documents = [Document(title=d.title, text=d.text) for d in item.documents]
        yield (
            number,
            Example(
                id=item.id or f"own-{number:06d}",
                question=item.question,
                answers=item.answers,
                gold=[documents[i] for i in hops],
                distractors=[document for i, document in enumerate(documents) if i not in hops],
            ),
        )
