"""Readers of the public formats and of a user's own, which yield (line, example).

The gold documents of a two-hop example are [first hop, second hop]. A question that lacks its format's gold documents
is yielded as None, so that the caller can count it.
"""

import html
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AliasChoices, BaseModel, BeforeValidator, Field

from posgap.foundation.errors import Malformed, PosgapError
from posgap.foundation.files import Record, parse_as, read_jsonl, read_rows
from posgap.foundation.python_text import python_value
from posgap.tasks.examples import Document, Example, KVExample, Texts
from posgap.tasks.metrics import contains_answer, holds_answer


class _KeyValues(Record):
    ordered_kv_records: list[tuple[str, str]]
    key: str
    value: str


def read_litm_kv(
    path: Path, key_digits: int = 0, value_digits: int = 0, queries: int = 1, seed: int = 0
) -> Iterator[tuple[int, KVExample]]:
    """Yields (line, example) of the lost-in-the-middle key-value file: `ordered_kv_records, key, value`; of each line
    as `litm_kv_examples` says."""
    for line, row in read_jsonl(path):
        for example in litm_kv_examples(row, f"{path}:{line}", line, key_digits, value_digits, queries, seed):
            yield line, example


def litm_kv_examples(
    row: dict, where: str, line: int, key_digits: int = 0, value_digits: int = 0, queries: int = 1, seed: int = 0
) -> Iterator[KVExample]:
    """Yields the examples of one line of that file; errors name the line as `where`.

    `key_digits` and `value_digits` cut each key and value to its first characters (0: whole). If cut keys are equal,
    only the first of their records is kept, or the queried one if it is among them. `queries` makes that many examples
    of each line: one asks for the line's own key, the others for keys drawn with `seed`.
    """
    item = parse_as(_KeyValues, row, where)
    records = item.ordered_kv_records
    cut = [(key[: key_digits or None], value[: value_digits or None]) for key, value in records]
    if (item.key, item.value) not in records:
        raise Malformed("field `key`: no record holds the queried key with its value", at=where)
    own = [key for key, _ in records].index(item.key)
    others = np.random.default_rng([seed, line]).permutation(np.delete(np.arange(len(records)), own))
    if queries > len(records):
        raise PosgapError(f"{where}: `queries` is {queries}, but there are only {len(records)} records to ask for")
    for q, queried in enumerate([own, *others[: queries - 1]]):
        wanted, value = cut[queried]
        keys = {wanted}
        kept = []
        for i, (k, v) in enumerate(cut):
            if i == queried or k not in keys:
                keys.add(k)
                kept.append((k, v))
        id = f"kv-{line:05d}-{q}"
        yield KVExample(id=id, question=wanted, answers=[value], key=wanted, value=value, records=kept)


def read_litm_qa(path: Path) -> Iterator[tuple[int, Example | None]]:
    """Yields (line, example) of the lost-in-the-middle question-answering file:
    `question, answers, ctxs[{title, text, isgold}]`. A question without a gold document is yielded as None."""
    for line, row in read_jsonl(path):
        item = parse_as(_LitmQuestion, row, f"{path}:{line}")
        gold = [place for place, passage in enumerate(item.ctxs) if passage.isgold]
        yield line, _build_example(f"qa-{line:05d}", item.question, item.answers, _documents(item.ctxs), gold)


class _Passage(BaseModel):
    title: str = ""
    text: str
    isgold: bool = False
    hasanswer: bool = Field(False, validation_alias=AliasChoices("hasanswer", "has_answer"))


class _LitmPassage(_Passage):
    title: str
    isgold: bool


class _LitmQuestion(BaseModel):
    question: str
    answers: list[str]
    ctxs: list[_LitmPassage]


def _printed_list(value: Any) -> Any:
    """The list that a cell has as Python prints it, as in NQ's and TriviaQA's tables."""
    read = python_value(value) if isinstance(value, str) else None
    return read if isinstance(read, list) else value


class _Dpr(BaseModel):
    question: str
    answers: Annotated[list[str], BeforeValidator(_printed_list)]
    ctxs: list[_Passage] | None = None
    positive_ctxs: list[_Passage] | None = None
    hard_negative_ctxs: list[_Passage] = []
    negative_ctxs: list[_Passage] = []

    def passages(self) -> tuple[list[_Passage], list[_Passage]]:
        """Candidates for the gold document, best first, and for distractors."""
        if self.ctxs is None:
            return self.positive_ctxs or [], self.hard_negative_ctxs + self.negative_ctxs
        by_rank = sorted(self.ctxs, key=lambda passage: (not passage.isgold, not passage.hasanswer))
        gold = [passage for passage in by_rank if passage.isgold or passage.hasanswer]
        return gold, [passage for passage in self.ctxs if not passage.isgold]


def read_dpr(path: Path) -> Iterator[tuple[int, Example | None]]:
    """Yields (item, example) of NQ, TriviaQA or WebQ in the format of DPR (Karpukhin et al. 2020).

    The file is a JSON array, or lines, of `question, answers` with `ctxs[{title, text, isgold, hasanswer}]` (retrieved
    passages) or with `positive_ctxs, hard_negative_ctxs, negative_ctxs` (training files). The gold document is the
    first passage marked gold or positive, or else the first that contains an answer. Other passages that contain an
    answer do not become distractors. A question without a gold document is yielded as None.
    """
    for number, row in read_rows(path):
        item = parse_as(_Dpr, row, f"{path}:{number}")
        if item.ctxs is None and item.positive_ctxs is None:
            raise Malformed(
                "the row has neither `ctxs` nor `positive_ctxs`; one must hold the passages",
                at=f"{path}:{number}",
            )
        gold, others = item.passages()
        documents = _documents(gold[:1])
        for passage, document in zip(others, _documents(others)):
            if not (passage.hasanswer or holds_answer(document, item.answers)):
                documents.append(document)
        own = range(len(gold[:1]))
        yield number, _build_example(f"dpr-{number:06d}", item.question, item.answers, documents, own)


def _documents(passages: Iterable["_Passage | _OwnDocument | _Paragraph"]) -> list[Document]:
    """Returns the passages that prompts show."""
    return [Document(title=passage.title, text=passage.text) for passage in passages]


class _OwnDocument(BaseModel):
    text: str
    title: str = ""
    gold: int = Field(0, ge=0, le=2)  # `true` is 1


class _Own(BaseModel):
    id: str = ""
    question: str = Field(min_length=1)
    answers: Texts
    documents: list[_OwnDocument]


def read_own(path: Path) -> Iterator[tuple[int, Example | None]]:
    """Yields (line, example) of a user's file: `question, answers, documents[{text, title, gold}]`.

    `gold` is true on the gold document, or 1 and 2 on those of the first and second hop; `title` and the line's `id`
    are optional. docs/formats.md describes the format.
    """
    for number, row in read_rows(path):
        item = parse_as(_Own, row, f"{path}:{number}")
        marks = [document.gold for document in item.documents]
        hops = sorted((place for place, mark in enumerate(marks) if mark), key=lambda place: marks[place])
        if sorted(filter(None, marks)) not in ([1], [1, 2]):
            raise Malformed(
                "field `documents`: mark one document with `gold: true`, or two with `gold: 1` and `gold: 2`; "
                f"{len(hops)} are marked",
                at=f"{path}:{number}",
            )
        name = item.id or f"own-{number:06d}"
        yield number, _build_example(name, item.question, item.answers, _documents(item.documents), hops)


def _in_pairs(left: str, right: str) -> BeforeValidator:
    """Accepts a dict of two lists, as in some copies of the files, instead of a list of pairs."""

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
    text: str = Field(validation_alias="paragraph_text")
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

    The file is a JSON array, or lines, of `question, answer, type, supporting_facts[[title, sentence]], context[[title,
    [sentence]]]`; the last two may be dicts of lists. The second hop of a chain is the gold paragraph that holds the
    answer, if only one of the two does. Otherwise, and in comparisons, the hops are in the order of the supporting
    facts. A question is yielded as None if one of its gold paragraphs is missing, as in the fullwiki file, or shares
    its title with others. Raises `PosgapError` that names line and field if the schema is wrong.
    """
    for number, row in read_rows(path):
        item = parse_as(_Hotpot, row, f"{path}:{number}")
        documents: list[Document] = []
        titled: dict[str, list[int]] = {}  # the paragraphs of each title
        for title, sentences in item.context:
            titled.setdefault(_plain_title(title), []).append(len(documents))
            documents.append(Document(title=title, text=" ".join(map(str.strip, sentences))))
        hops = list[int]()
        holds = list[bool]()
        titles, _ = zip(*item.supporting_facts) if item.supporting_facts else ((), ())
        for title in dict.fromkeys(map(_plain_title, titles)):
            places = titled.get(title, [])
            holding = [place for place in places if contains_answer(f"{title} {documents[place].text}", [item.answer])]
            # If several paragraphs share a title, the one that holds the answer, if only one does.
            of_title = holding if len(places) > 1 and len(holding) == 1 else places
            if len(of_title) != 1:
                hops = []
                break
            hops += of_title
            holds.append(bool(holding))
        if "comparison" not in item.type and holds == [True, False]:
            hops.reverse()
        name = item.id or f"hotpot-{number:05d}"
        hops = hops if len(hops) == 2 else []
        yield number, _build_example(name, item.question, [item.answer], documents, hops)


def _plain_title(title: str) -> str:
    return unicodedata.normalize("NFKC", html.unescape(title)).strip()


def read_musique(path: Path) -> Iterator[tuple[int, Example | None]]:
    """Yields (line, example) of MuSiQue's file.

    Its lines hold `id, question, answer, answer_aliases, paragraphs[{idx, title, paragraph_text, is_supporting}],
    question_decomposition[{paragraph_support_idx}]`. The decomposition gives the order of the hops.
    """
    for number, row in read_rows(path):
        item = parse_as(_Musique, row, f"{path}:{number}")
        place = {paragraph.idx: at for at, paragraph in enumerate(item.paragraphs)}
        hops: list[int] = []
        for hop in item.question_decomposition:
            idx = hop.paragraph_support_idx
            if idx is not None and idx not in place:
                raise Malformed(f"field `question_decomposition`: no paragraph has idx {idx}", at=f"{path}:{number}")
            if idx is not None and item.paragraphs[place[idx]].is_supporting:
                hops.append(place[idx])
        hops = hops if len(item.question_decomposition) == len(set(hops)) == 2 else []
        answers = [item.answer, *item.answer_aliases]
        documents = _documents(item.paragraphs)
        yield number, _build_example(item.id, item.question, answers, documents, hops)


def _build_example(
    name: str, question: str, answers: list[str], documents: list[Document], gold: Sequence[int]
) -> Example | None:
    """Builds the example with the gold documents at these indices, in the order of reasoning; None without any."""
    if not gold:
        return None
    others = [document for i, document in enumerate(documents) if i not in gold]
    return Example(id=name, question=question, answers=answers, gold=[documents[i] for i in gold], distractors=others)
