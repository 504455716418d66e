"""Readers of the public two-hop formats, which yield examples.

The gold documents of an example are [first hop, second hop]. A question that does not rest on exactly two paragraphs
is yielded as None, so that the caller can count it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import AliasChoices, BaseModel, BeforeValidator, Field

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import parsed, read_rows
from posgap.tasks.examples import Document, Example
from posgap.tasks.metrics import sub_exact_match


def _in_pairs(left: str, right: str) -> BeforeValidator:
    """Accepts a dict of two lists, as some copies of the files have it, in place of a list of pairs."""

    def pairs(value: Any) -> Any:
        if not (isinstance(value, dict) and all(isinstance(value.get(name), list) for name in (left, right))):
            return value
        if len(value[left]) != len(value[right]):
            raise ValueError(f"`{left}` and `{right}` differ in length")
        return list(zip(value[left], value[right]))

    return BeforeValidator(pairs)


class _Hotpot(BaseModel):
    id: str = Field("", validation_alias=AliasChoices("_id", "id"))
    question: str
    answer: str
    type: str
    supporting_facts: Annotated[list[tuple[str, int]], _in_pairs("title", "sent_id")]
    context: Annotated[list[tuple[str, list[str]]], _in_pairs("title", "sentences")]


class _Paragraph(BaseModel):
    idx: int
    title: str
    paragraph_text: str
    is_supporting: bool


class _Hop(BaseModel):
    paragraph_support_idx: int | None


class _Musique(BaseModel):
    id: str
    question: str
    answer: str
    answer_aliases: list[str]
    paragraphs: list[_Paragraph]
    question_decomposition: list[_Hop]


def read_hotpotqa(path: Path) -> Iterator[tuple[int, Example | None]]:
    """Yields (item, example) of HotpotQA's distractor file, or of 2WikiMultiHopQA's.

    The file is a JSON array, or lines, of `question, answer, type, supporting_facts[[title, sentence]],
    context[[title, [sentence]]]`; the last two may be dicts of lists. The second hop of a chain is the gold paragraph
    that holds the answer, if only one of the two does. Otherwise, and in comparisons, the hops are in the order of
    the supporting facts. Raises `PosgapError` that names line and field if the schema is wrong.
    """
    for number, row in read_rows(path):
        item = parsed(_Hotpot, row, f"{path}:{number}")
        documents = [Document(title=t, text=" ".join(s.strip() for s in sentences)) for t, sentences in item.context]
        first = {document.title: i for i, document in reversed(list(enumerate(documents)))}
        titles = list(dict.fromkeys(title for title, _ in item.supporting_facts))
        if missing := [title for title in titles if title not in first]:
            raise PosgapError(f"{path}:{number}: field `supporting_facts`: no paragraph is titled {missing[0]!r}")
        hops = [first[title] for title in titles]
        holds = [sub_exact_match(f"{documents[i].title} {documents[i].text}", [item.answer]) for i in hops]
        if "comparison" not in item.type and holds == [True, False]:
            hops.reverse()
        yield number, _example(item.id or f"hotpot-{number:05d}", item.question, [item.answer], documents, hops)


def read_musique(path: Path) -> Iterator[tuple[int, Example | None]]:
    """Yields (line, example) of MuSiQue's file.

    Its lines hold `id, question, answer, answer_aliases, paragraphs[{idx, title, paragraph_text, is_supporting}],
    question_decomposition[{paragraph_support_idx}]`. The decomposition gives the order of the hops.
    """
    for number, row in read_rows(path):
        item = parsed(_Musique, row, f"{path}:{number}")
        place = {paragraph.idx: i for i, paragraph in enumerate(item.paragraphs)}
        support = [hop.paragraph_support_idx for hop in item.question_decomposition]
        if missing := [idx for idx in support if idx is not None and idx not in place]:
            raise PosgapError(f"{path}:{number}: field `question_decomposition`: no paragraph has idx {missing[0]}")
        hops = [place[idx] for idx in support if idx is not None]
        documents = [Document(title=p.title, text=p.paragraph_text) for p in item.paragraphs]
        if len(support) != 2 or not all(item.paragraphs[i].is_supporting for i in hops):
            hops = []
        yield number, _example(item.id, item.question, [item.answer, *item.answer_aliases], documents, hops)


def _example(
    name: str, question: str, answers: list[str], documents: list[Document], hops: list[int]
) -> Example | None:
    if len(set(hops)) != 2:
        return None
    others = [document for i, document in enumerate(documents) if i not in hops]
    return Example(id=name, question=question, answers=answers, gold=[documents[i] for i in hops], distractors=others)
