"""Turns what retrievers and chains around them write down into ranked examples: logs, evaluation sets and traces.

`log_layouts` reads rows, and `log_fields` their fields. Here it is decided for the whole log what its words mean. If
two readings give different orders or relevant passages, both are said and an option decides. What cannot be asked is
left out and counted.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from posgap.data.import_report import ImportReport
from posgap.data.log_cells import MAX_GRADE, ask, fold
from posgap.data.log_fields import NUMBERS, LogFields, LoggedPassage
from posgap.data.log_layouts import LogEntry, LogRows, is_trace
from posgap.foundation.errors import BadOption, Malformed, PosgapError, shorten
from posgap.foundation.files import read_rows
from posgap.foundation.printing import format_count
from posgap.tasks.examples import Passage, RankedExample
from posgap.tasks.metrics import contains_answer, is_sentence, normalize

log = logging.getLogger(__name__)
Relevance = Literal["id", "label", "answer"]
_UNSURE = ("score", "scores")  # which are distances in some stores


Labels = tuple[list[str], list[str] | None]  # the accepted answers to a question, and the ids of relevant passages


class _Reading(NamedTuple):
    """A number of a log's passages, of a kind of `NUMBERS`, whose `lowest` or highest is first by its name, if that
    `is_sure`; in how many questions passages come `against` it, whether they are `turned` round in all, and whether it
    numbers each list without a gap (`is_exact`)."""

    name: str
    kind: str
    lowest: bool
    is_sure: bool
    is_exact: bool
    against: int
    turned: bool

    def place(self, passage: LoggedPassage) -> tuple[bool, float]:
        """By what passages are sorted: the number, those without it behind."""
        number = passage.numbers.get(self.name, 0)
        return self.name not in passage.numbers, number if self.lowest else -number


class _LeftOutError(Exception):
    """Why a question cannot be asked, as it follows "left out 3"."""


def is_log(row: Any, table: bool = False) -> bool:
    """Whether a row is of a log or a trace, or an object or array around rows, rather than an example in posgap's own
    format, which has fields of its own. Of these a `table` may have `gold` as the label of a passage."""
    if not isinstance(row, Mapping) or {"passages", "relevance"} <= set(row):
        return isinstance(row, list)
    own = {"records", "gold", "distractors", "ordered_kv_records"} & set(row)
    return is_trace(row) or (table and own == {"gold"}) or bool(row and not own)


@dataclass(frozen=True)
class RetrievalLog:
    """A retrieval log or a trace that `name` names, and what somebody says of it.

    `labels` are answers and relevant ids by question, which override the rows' own. `relevance` chooses what marks
    passages as relevant; by default the first of relevant ids, labels and answers that a row has. `order` is "listed",
    or the number that sorts the passages, as "score:highest". `columns` maps fields to columns.
    """

    name: str
    labels: Mapping[str, Labels] = field(default_factory=dict)
    relevance: Relevance | str = ""
    order: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)

    def labelled_by(self, path: Path) -> "RetrievalLog":
        """The same log with the labels of a file of `question`, `answers` and, if relevance goes by them,
        `relevant_ids`, in any format of `posgap.foundation.files.read_rows`. Traces have none of their own."""
        labels: dict[str, Labels] = {}
        read = LogRows(str(path), LogFields(self.columns))
        for row in read.rows(read_rows(path)):
            entry = read.entry(row, row.fields, [])
            answers, ids = labels.get(fold(entry.question), ([], None))
            ids = ids if entry.relevant_ids is None else [*(ids or []), *entry.relevant_ids]
            labels[fold(entry.question)] = list(dict.fromkeys([*answers, *entry.answers])), ids
        read.require_no_faults()
        return replace(self, labels=labels)

    def examples(
        self, rows: Iterable[tuple[int, Any]], report: ImportReport | None = None
    ) -> Iterator[tuple[int, RankedExample]]:
        """Yields (number, example) of the log's (number, row), with the passages in the retriever's order. One that
        comes twice counts once. Of a trace the first retrieval for a question counts.

        What cannot be asked is left out and counted in `report`. Without a `report` that is logged, and it is an error
        if it was all. Raises `PosgapError` with rows and fields that are wrong, and `Ambiguous` for two readings.
        """
        counted = ImportReport() if report is None else report
        read = LogRows(self.name, LogFields(self.columns))
        entries = read.entries(rows)
        for entry in entries:
            own = entry.answers, entry.relevant_ids
            entry.answers, entry.relevant_ids = self.labels.get(fold(entry.question), own)
        _plain_questions(entries, self.name)
        for given, name in read.fields.named.items():
            if entries and not any(name == taken for _, taken in read.fields.taken) and given not in ("id", *NUMBERS):
                raise BadOption(f"{self.name}: columns: no row has `{name}`, which --columns names for {given}")
        self._decide_labels(entries, counted)
        id_name = self._decide_ids(entries)
        order = self._decide_order(entries, read.fields, counted)
        counted.taken_for += _describe(read, entries, order, id_name)
        for entry in entries:
            try:
                example = self._example(entry)
            except _LeftOutError as reason:
                counted.left_out[str(reason)] += 1
                continue
            counted.count_example(example)
            yield entry.number, example
        if report is None:
            if not counted.relevant:
                why = "; ".join(counted.summary_lines()) or "there is none"
                raise PosgapError(f"{self.name}: no question can be asked: {why}")
            counted.log_summary(self.name)

    def _decide_labels(self, entries: Sequence[LogEntry], report: ImportReport) -> None:
        """Leaves each passage one label. If any label is a share or a percent instead of a grade, all are scores."""
        passages = [passage for entry in entries for passage in entry.passages]
        labels = [label for each in passages for label in each.labels.items()]
        shares = {name for name, grade in labels if self.relevance != "label" and (grade % 1 or grade > MAX_GRADE)}
        for passage in passages:
            for name in shares & set(passage.labels):
                passage.numbers.setdefault(name, passage.labels.pop(name))
            relevances = {name: grade > 0 for name, grade in passage.labels.items()}
            if len(set(relevances.values())) > 1:
                what = f"{' and '.join(f'`{name}`' for name in relevances)} call different passages relevant"
                ask(what, *(f"--columns label={name}" for name in relevances), where=self.name)
        if shares:
            what = "labels are not whole numbers, so they are scores; import them as grades by --relevant label"
            report.left_open[what] = len(entries)
        scores = [passage.numbers.get("score") for entry in entries for passage in entry.readable]
        grades = {score for score in scores if score is not None and score % 1 == 0 and 0 <= score <= MAX_GRADE}
        is_told = self.order or self.relevance or any(entry.relevant_ids is not None for entry in entries)
        is_told = is_told or any(each.labels or each.is_listed for each in passages)
        if {0.0} < grades and grades == set(scores) and not is_told:
            what = f"`score` is a whole number from 0 to {max(grades):g} everywhere: a grade of relevance, or a score"
            ask(what, "--columns label=score", "--order score:highest", "--order listed", where=self.name)

    def _decide_ids(self, entries: Sequence[LogEntry]) -> str:
        """Leaves each passage the one of its ids that the log's relevant ids are of, and returns the name of that."""
        names = dict.fromkeys(name for entry in entries for each in entry.passages for name in each.ids)
        places = {name: [_relevant_by(name, entry) for entry in entries] for name in names}
        found = {name: own for name, own in places.items() if any(own)}
        first = next(iter(found), "")
        if any(own != found[first] for own in found.values()):
            kinds = [f"`{name}` in {format_count(sum(map(bool, each)), 'question')}" for name, each in found.items()]
            what = f"the ids of relevant passages fit {' and '.join(kinds)}, which mark different passages"
            ask(what, *(f"--columns id={name}" for name in found), where=self.name)
        for entry, relevant in zip(entries, found.get(first, ())):
            for place, passage in enumerate(entry.passages):
                passage.is_named = place in relevant
                passage.ids = {name: id for name, id in passage.ids.items() if name == first}
        return first

    def _decide_order(self, entries: Sequence[LogEntry], fields: LogFields, report: ImportReport) -> str:
        """Puts the passages of all questions in the retriever's order, and returns in words which that is.

        It is as they come, if every number has them so too; a reranker's replaces the first stage's. In a store's
        response, or beside a number that agrees, a score that rises is a distance. The rows of a table have no order of
        their own, so ranks and numbers whose name says what comes first decide; and so do ranks from a list's end.
        """
        readings = _read_numbers(entries, fields)
        ends = {"highest": False, "lowest": True}
        ways = {f"{each.name}:{end}": each._replace(lowest=low) for each in readings for end, low in ends.items()}
        if chosen := self.order or next(iter(fields.orders), ""):
            if chosen not in ("listed", *ways):
                raise BadOption(f"{self.name}: order: {chosen!r} is none of {', '.join(['listed', *ways])}")
            if chosen in ways:
                _sort(entries, ways[chosen], report)
            how = "as the passages come" if chosen == "listed" else f"by `{chosen}`"
            return f"{how}, as {'you say' if self.order else 'the format has it'}"
        if any(each.kind == "reranked" for each in readings):
            readings = [each for each in readings if each.kind in ("rank", "reranked")]
        are_rows = not any(entry.is_list for entry in entries)
        names = [reading.name for reading in readings]
        words = "as the passages come"
        if are_rows:
            deciding = [each for each in readings if each.is_exact or (each.is_sure and not each.turned)]
        else:
            deciding = [each for each in readings if each.is_exact and each.turned]
        by = deciding[0] if deciding and all(each.against for each in readings) else None
        if by:
            words = f"by `{by.name}`; the passages come otherwise in {by.against} questions"
            _sort(entries, by, report)
            readings = [each for each in _read_numbers(entries, fields) if each.name in names]
        agreeing = [each for each in readings if not each.against]
        is_listed = all(passage.is_listed for entry in entries for passage in entry.readable)
        for each in readings:
            if each.against and not (each.turned and each.kind != "rank" and (is_listed or agreeing)):
                than = f"`{(by or agreeing[0]).name}` has them" if by or agreeing else "they come"
                what = (
                    f"the order is open: in {each.against} of {format_count(len(entries), 'question')} `{each.name}` "
                    f"puts the passages in another order than {than} ({_show_both(entries, each)})"
                )
                options = [f"--order {way}" for way, reading in ways.items() if reading.name in names]
                ask(what, "--order listed", *options, where=self.name)
            words += f"; `{each.name}` {'goes the other way round' if each.against else 'has them so'}"
        for each in agreeing:
            if each.kind == "rank" and not by:
                _sort(entries, each, report)
        return words

    def _example(self, entry: LogEntry) -> RankedExample:
        """The example of a log's entry. Raises `_LeftOutError` if it cannot be asked."""
        retrieved = entry.readable
        if entry.left_out:
            raise _LeftOutError(entry.left_out)
        if not entry.answers:
            what = "without answers (columns `answers` or `ground_truth`, or a file given as --answers; `answer` beside"
            raise _LeftOutError(f"{what} retrieved contexts is the chain's: if accepted, --columns answer=answer)")
        has_labels = any(passage.labels for passage in retrieved)
        way = self.relevance or ("id" if entry.relevant_ids is not None else "label" if has_labels else "answer")
        told = {
            "id": {id(each) for each in retrieved if each.is_named},
            "label": {id(each) for each in retrieved if any(grade > 0 for grade in each.labels.values())},
        }
        if not self.relevance and has_labels and way == "id" and told["id"] != told["label"]:
            what = "ids and labels call different passages relevant"
            ask(what, "--relevant id", "--relevant label", where=entry.where)
        if way == "id" and (entry.relevant_ids is None or not any(each.ids for each in retrieved)):
            lacking = "`relevant_ids`" if entry.relevant_ids is None else "passages with an id (`id`, `doc_id`)"
            what = f"relevance goes by id, but the row has no {lacking}, nor `passage_ids`; or give --relevant answer"
            raise Malformed(what, at=entry.where)
        if way == "answer":
            told[way] = {id(each) for each in retrieved if contains_answer(f"{each.title} {each.text}", entry.answers)}
        passages = _unique_passages(retrieved, told[way])
        _require_contrast(passages, entry, way)
        name = entry.id or f"rag-{entry.number:06d}"
        way = cast(Relevance, way)
        return RankedExample(id=name, question=entry.question, answers=entry.answers, passages=passages, relevance=way)


def _plain_questions(entries: Sequence[LogEntry], name: str) -> None:
    """Takes ids that several questions share for none, as those of users are, and numbers that all end in .0, as in a
    column with empty cells, for whole ones."""
    ids = [entry.id for entry in entries if entry.id]
    is_shared = len(set(ids)) < len(ids)
    if is_shared:
        log.info("%s: several questions share an `id`, so it is not taken as the question's id", name)
    numbers = [answer for entry in entries for answer in entry.answers if re.fullmatch(r"-?\d+(\.\d+)?", answer)]
    are_whole = all(re.fullmatch(r"-?\d+\.0", number) for number in numbers)
    for entry in entries:
        entry.id = "" if is_shared else entry.id
        if are_whole:
            entry.answers = [re.sub(r"^(-?\d+)\.0$", r"\1", answer) for answer in entry.answers]


def _relevant_by(name: str, entry: LogEntry) -> set[int]:
    """The places of the passages that have one of the relevant ids under this name. Ids in one cell are parted unless a
    passage has such an id."""
    own = [passage.ids.get(name) for passage in entry.passages]
    parted: set[str] = set()
    for each in entry.relevant_ids or ():
        parts = [part for part in re.split(r"\s*[,;|\s]\s*", each.strip(" []{}()")) if part]
        parted |= {each} if each in own or not parts else set(parts)
    return {place for place, id in enumerate(own) if id in parted}


def _read_numbers(entries: Sequence[LogEntry], fields: LogFields) -> list[_Reading]:
    """The numbers that passages have, by name, with the order that each of them is."""
    kinds = {name: kind for kind in NUMBERS for name in fields.names[kind]}
    readings = []
    for name in dict.fromkeys(name for entry in entries for each in entry.readable for name in each.numbers):
        lists = []
        for entry in entries:
            once: dict[str, float] = {}  # what comes twice counts once
            for each in entry.readable:
                if name in each.numbers:
                    once.setdefault(each.text, each.numbers[name])
            lists += [[*once.values()]] if once else []
        kind = kinds.get(name, "distance" if "distance" in name else "score")
        is_sure = name not in _UNSURE
        are_whole = all(number % 1 == 0 and number >= 0 for numbers in lists for number in numbers)
        is_exact = are_whole and all(len(set(each)) == len(each) and max(each) <= len(each) for each in lists)
        if name == "position" and not is_exact:
            continue  # where a passage stands in its document
        if kind == "rank" and not (are_whole and all(min(numbers) <= 1 for numbers in lists)):
            kind, is_sure = "score", False  # as PostgreSQL's ts_rank
        lowest = kind in ("rank", "distance")
        against = sum(numbers != sorted(numbers, reverse=not lowest) for numbers in lists)
        turned = all(numbers == sorted(numbers, reverse=lowest) for numbers in lists)
        if against or not turned:  # else all are equal
            readings.append(_Reading(name, kind, lowest, is_sure, is_exact and kind == "rank", against, turned))
    return readings


def _sort(entries: Sequence[LogEntry], by: _Reading, report: ImportReport) -> None:
    """Sorts the passages of each question by a number, those without it behind. Questions that have several passages at
    one rank are left out: they are of several retrievals."""
    for entry in entries:
        entry.passages.sort(key=by.place)
        if by.kind == "rank" and by.lowest:
            ranked = {(each.numbers[by.name], each.text) for each in entry.readable if by.name in each.numbers}
            if len({rank for rank, _ in ranked}) < len(ranked):
                entry.left_out = "with several passages at one rank: give each retrieval another `question_id`"
            if any(by.name not in each.numbers for each in entry.readable):
                report.left_open["passages have no rank, and stand behind those that have one"] += 1


def _show_both(entries: Sequence[LogEntry], reading: _Reading) -> str:
    """The first passage of a question as it comes, and by a number."""
    for entry in entries:
        passages = [each for each in entry.readable if reading.name in each.numbers]
        best = min(passages, key=reading.place, default=None)
        if best and best.numbers[reading.name] != passages[0].numbers[reading.name]:
            comes, has = (shorten(repr(each.text[:60])) for each in (passages[0], best))
            return f"{entry.where}: {comes} comes first, {has} has the {'lowest' if reading.lowest else 'highest'}"
    return ""


def _describe(read: LogRows, entries: Sequence[LogEntry], order: str, id_name: str) -> list[str]:
    """What a log was taken for, in a few lines."""
    if not entries:
        return []

    def names(field: str) -> str:
        return " and ".join(f"`{name}`" for own, name in read.fields.taken if own == field)

    sizes = [len({passage.text for passage in entry.readable}) for entry in entries]  # what comes twice counts once
    textless = [each for entry in entries for each in entry.passages if not each.text.strip()]
    empty = sum(bool(each.ids) or not read.layout.endswith("passage") for each in textless)
    nowhere = "the text" if any(each.title for entry in entries for each in entry.passages) else "nowhere"
    formats = f" ({', '.join(read.fields.formats)})" if read.fields.formats else ""
    labels = f", labels from {names('label')}" if names("label") else ""
    without = f"; {empty} without a text are left out" if empty else ""
    ids = f"; relevant passages are named by `{id_name}`" if id_name else ""
    return [
        f"{format_count(len(entries), 'question')} of {format_count(read.count, 'row')}{formats}, each {read.layout}: "
        f"question from {names('question')}, answers from {names('answers') or '--answers'}",
        f"passages from {names('passages') or 'the rows'}, {min(sizes)} to {max(sizes)} for a question: "
        f"text from {names('text') or 'the list'}, title from {names('title') or nowhere}{labels}{ids}{without}",
        f"order: {order}",
    ]


def _unique_passages(retrieved: Sequence[LoggedPassage], relevant: set[int]) -> list[Passage]:
    """Each passage once, marked as relevant if it is once."""
    passages: dict[tuple[str, str], Passage] = {}
    for each in retrieved:
        name = next(iter(each.ids.values()), "")
        score = each.score
        passage = Passage(title=each.title, text=each.text, score=score, relevant=id(each) in relevant, id=name)
        first = passages.setdefault((each.title, each.text), passage)
        if passage.relevant and not first.relevant:
            passages[each.title, each.text] = first.model_copy(update={"relevant": True})
    return list(passages.values())


def _require_contrast(passages: Sequence[Passage], entry: LogEntry, way: str) -> None:
    """Raises `_LeftOutError` if the relevant passages tell nothing of positions."""
    if way == "answer" and {normalize(answer) for answer in entry.answers} <= {"yes", "no"}:
        raise _LeftOutError(
            "answered by yes or no, which no passage can be matched with: label the relevant passages, or "
            "give their ids"
        )
    if entry.passages and not passages:
        raise _LeftOutError("whose passages have no text: name its field by --columns text=NAME")
    if not any(passage.relevant for passage in passages):
        if way == "answer" and all(is_sentence(answer) for answer in entry.answers):
            what = "whose answer is a sentence that no passage holds word for word: give short answers, or label"
            raise _LeftOutError(f"{what} passages as `relevant` or by `relevant_ids`")
        raise _LeftOutError("without a relevant passage among the retrieved ones")
    if len(passages) == 1:
        raise _LeftOutError("with only one passage, which has no position: split a joined context into its passages")
    if all(passage.relevant for passage in passages):
        raise _LeftOutError("whose passages are all relevant, so that position cannot matter")
