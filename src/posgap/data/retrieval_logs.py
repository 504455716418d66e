"""Turns what retrievers and chains around them write down into ranked examples: logs, evaluation sets and traces.

`log_layouts` reads rows, and `log_fields` their fields. Here it is decided for the whole log what its words mean. If
two readings give different orders or relevant passages, both are said and an option decides. What cannot be asked is
left out and counted.
"""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from posgap.data.import_report import ImportReport
from posgap.data.log_cells import MAX_GRADE, ask, fold
from posgap.data.log_fields import NUMBERS, LogFields, LoggedPassage
from posgap.data.log_layouts import LogEntry, LogRows, Numbered, is_trace
from posgap.foundation.errors import BadOption, Malformed, PosgapError, shorten
from posgap.foundation.files import read_rows
from posgap.foundation.printing import format_count
from posgap.tasks.examples import Passage, RankedExample
from posgap.tasks.metrics import contains_answer, is_sentence, normalize

log = logging.getLogger(__name__)
Relevance = Literal["id", "label", "answer"]
Labels = tuple[list[str], list[str] | None]  # the accepted answers to a question, and the ids of relevant passages


class _Reading(NamedTuple):
    """A number of a log's passages, of a kind of `NUMBERS`, whose `lowest` or highest is first by its name; in how many
    questions passages come `against` it, and whether they are `turned` round in all. If all numbers are against the
    order in which passages come, one that `decides` replaces it."""

    name: str
    kind: str
    lowest: bool
    decides: bool
    against: int
    turned: bool

    def place(self, passage: LoggedPassage) -> tuple[bool, float]:
        """By what passages are sorted: the number, those without it behind."""
        number = passage.numbers.get(self.name, 0)
        return self.name not in passage.numbers, number if self.lowest else -number


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

    def examples(self, rows: Numbered, report: ImportReport | None = None) -> Iterator[tuple[int, RankedExample]]:
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
        order = self._decide_order(entries, read, counted)
        counted.taken_for += _describe(read, entries, order, id_name)
        for entry in entries:
            example = self._example(entry)
            if isinstance(example, str):
                counted.left_out[example] += 1
            else:
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
        scores = [passage.numbers.get("score") for entry in entries for passage in entry.passages]
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
            kinds = " and ".join(f"`{name}`" for name in found)
            what = f"the ids of relevant passages fit {kinds}, which mark different passages"
            ask(what, *(f"--columns id={name}" for name in found), where=self.name)
        for entry, relevant in zip(entries, found.get(first, ())):
            for place, passage in enumerate(entry.passages):
                passage.is_named = place in relevant
                passage.ids = {name: id for name, id in passage.ids.items() if name == first}
        return first

    def _decide_order(self, entries: Sequence[LogEntry], read: LogRows, report: ImportReport) -> str:
        """Puts the passages of all questions in the retriever's order, and returns in words which that is.

        It is as they come, if every number has them so too; a reranker's replaces the first stage's. In a store's
        response, or beside a number that agrees, a score that rises is a distance. The rows of a table have no order of
        their own, so ranks and numbers whose name says what comes first decide; and so do ranks from a list's end.
        """
        readings = _read_numbers(entries, read)
        ends = {"highest": False, "lowest": True}
        ways = {f"{each.name}:{end}": each._replace(lowest=low) for each in readings for end, low in ends.items()}
        words = "as listed"
        if self.order not in ("", "listed", *ways):
            raise BadOption(f"{self.name}: order: {self.order!r} is not one of {', '.join(['listed', *ways])}")
        if self.order in ways:
            _sort(entries, ways[self.order], report)
            words = f"by `{self.order}`"
        if self.order:
            return f"{words}, as you say"
        if any(each.kind == "reranked" for each in readings):
            readings = [each for each in readings if each.kind in ("rank", "reranked")]
        names = [reading.name for reading in readings]
        is_open = all(each.against for each in readings)
        by = next((each for each in readings if is_open and each.decides), None)
        if by:
            words = f"by `{by.name}`; {format_count(by.against, 'question')} listed in another order"
            _sort(entries, by, report)
            readings = [each for each in _read_numbers(entries, read) if each.name in names]
        agreeing = [each for each in readings if not each.against]
        is_listed = all(passage.is_listed for entry in entries for passage in entry.passages)
        for each in readings:
            if each.against and not (each.turned and each.kind != "rank" and (is_listed or agreeing)):
                than = f"`{(by or agreeing[0]).name}` has them" if by or agreeing else "they come"
                what = f"the order is open: in {each.against} of {format_count(len(entries), 'question')} `{each.name}`"
                what += f" puts the passages in another order than {than} ({_show_both(entries, each)})"
                options = [f"--order {way}" for way, reading in ways.items() if reading.name in names]
                ask(what, "--order listed", *options, where=self.name)
            words += f"; `{each.name}` {'runs the other way' if each.against else 'agrees'}"
            if each.kind == "rank" and not by:
                _sort(entries, each, report)
        return words

    def _example(self, entry: LogEntry) -> RankedExample | str:
        """The example of a log's entry, or why it cannot be asked, as it follows "left out 3"."""
        retrieved = entry.passages
        if entry.left_out:
            return entry.left_out
        if not entry.answers:
            what = "without answers (columns `answers` or `ground_truth`, or a file given as --answers; `answer` beside"
            return f"{what} retrieved contexts is the chain's: if accepted, --columns answer=answer)"
        has_labels = any(passage.labels for passage in retrieved)
        way = self.relevance or ("id" if entry.relevant_ids is not None else "label" if has_labels else "answer")
        told = {
            "id": {each.content for each in retrieved if each.is_named},
            "label": {each.content for each in retrieved if any(grade > 0 for grade in each.labels.values())},
        }
        if not self.relevance and has_labels and way == "id" and told["id"] != told["label"]:
            what = "ids and labels call different passages relevant"
            ask(what, "--relevant id", "--relevant label", where=entry.where)
        if way == "id" and (entry.relevant_ids is None or not any(each.ids for each in retrieved)):
            lacking = "`relevant_ids`" if entry.relevant_ids is None else "passages with an id (`id`, `doc_id`)"
            what = f"relevance goes by id, but the row has no {lacking}, nor `passage_ids`; or give --relevant answer"
            raise Malformed(what, at=entry.where)
        if way == "answer":
            told[way] = {each.content for each in retrieved if contains_answer(" ".join(each.content), entry.answers)}
        passages = [each.as_passage(relevant=each.content in told[way]) for each in entry.unique]
        if without_contrast := _lacking_contrast(passages, entry, way):
            return without_contrast
        name = entry.id or f"rag-{entry.number:06d}"
        way = cast(Relevance, way)
        return RankedExample(id=name, question=entry.question, answers=entry.answers, passages=passages, relevance=way)


def _plain_questions(entries: Sequence[LogEntry], name: str) -> None:
    """Takes ids that several questions share for none, as those of users are, and numbers that all end in .0, as in a
    column with empty cells, for whole ones."""
    ids = [entry.id for entry in entries if entry.id]
    if len(set(ids)) < len(ids):
        log.info("%s: several questions share an `id`, so it is not taken as the question's id", name)
        for entry in entries:
            entry.id = ""
    numbers = {a for entry in entries for a in entry.answers if re.fullmatch(r"-?\d+(\.\d+)?", a)}
    if all(number.endswith(".0") for number in numbers):
        for entry in entries:
            entry.answers = [each.removesuffix(".0") if each in numbers else each for each in entry.answers]


def _relevant_by(name: str, entry: LogEntry) -> set[int]:
    """The places of the passages that have one of the relevant ids under this name. Ids in one cell are parted unless a
    passage has such an id."""
    own = [passage.ids.get(name) for passage in entry.passages]
    parted: set[str] = set()
    for each in entry.relevant_ids or ():
        parted |= {each} if each in own else set(re.split(r"\s*[,;|\s]\s*", each.strip(" []{}()")))
    return {place for place, id in enumerate(own) if id in parted}


def _read_numbers(entries: Sequence[LogEntry], read: LogRows) -> list[_Reading]:
    """The numbers that passages have, by name, with the order that each of them is."""
    kinds = {name: kind for kind in NUMBERS for name in read.fields.names[kind]}
    is_table = read.layout == "a passage"
    readings = []
    for name in dict.fromkeys(name for entry in entries for each in entry.passages for name in each.numbers):
        lists = [[each.numbers[name] for each in entry.unique if name in each.numbers] for entry in entries]
        lists = [numbers for numbers in lists if numbers]
        kind = kinds.get(name, "distance" if "distance" in name else "score")
        is_sure = name not in ("score", "scores")  # which are distances in some stores
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
            decides = (is_table and is_sure and not turned) or (is_exact and kind == "rank" and (is_table or turned))
            readings.append(_Reading(name, kind, lowest, decides, against, turned))
    return readings


def _sort(entries: Sequence[LogEntry], by: _Reading, report: ImportReport) -> None:
    """Sorts the passages of each question by a number, those without it behind. Questions that have several passages at
    one rank are left out: they are of several retrievals."""
    for entry in entries:
        entry.passages.sort(key=by.place)
        if by.kind == "rank" and by.lowest:
            ranked = {(each.numbers[by.name], each.text) for each in entry.passages if by.name in each.numbers}
            if len({rank for rank, _ in ranked}) < len(ranked):
                entry.left_out = "with several passages at one rank: give each retrieval another `question_id`"
            if any(by.name not in each.numbers for each in entry.passages):
                report.left_open["passages have no rank, and stand behind those that have one"] += 1


def _show_both(entries: Sequence[LogEntry], reading: _Reading) -> str:
    """The first passage of a question as it comes, and by a number."""
    for entry in entries:
        passages = [each for each in entry.passages if reading.name in each.numbers]
        best = min(passages, key=reading.place, default=None)
        if best and best.numbers[reading.name] != passages[0].numbers[reading.name]:
            comes, has = (shorten(repr(each.text[:60])) for each in (passages[0], best))
            return f"{entry.where}: {comes} comes first, {has} has the {'lowest' if reading.lowest else 'highest'}"
    return ""


def _describe(read: LogRows, entries: Sequence[LogEntry], order: str, id_name: str) -> list[str]:
    """What a log was taken for, in a few lines."""
    if not entries:
        return []
    names: dict[str, list[str]] = {}
    for own, name in read.fields.taken:
        names.setdefault(own, []).append(f"`{name}`")
    fields = ("question", "answers", "passages", "text", "title", "label")
    told = [f"{own} from {' and '.join(names[own])}" for own in fields if own in names]
    told += [f"relevant passages named by `{id_name}`"] if id_name else []
    formats = f" ({', '.join(read.fields.formats)})" if read.fields.formats else ""
    sizes = sorted(len(entry.unique) for entry in entries)
    span = sizes[0] if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]}"
    empty = sum(entry.textless for entry in entries)
    left_out = f"; {empty} without a text are left out" if empty else ""
    return [
        f"{format_count(len(entries), 'question')} of {format_count(read.count, 'row')}{formats}, each {read.layout}",
        ", ".join(told),
        f"{span} passages for each question{left_out}",
        f"order: {order}",
    ]


def _lacking_contrast(passages: Sequence[Passage], entry: LogEntry, way: str) -> str:
    """Why the relevant passages tell nothing of positions; empty if they do."""
    if way == "answer" and {normalize(answer) for answer in entry.answers} <= {"yes", "no"}:
        return "answered by yes or no, which no passage can be matched with: label relevant passages, or give their ids"
    if entry.textless and not passages:
        return "whose passages have no text: name its field by --columns text=NAME"
    if not any(passage.relevant for passage in passages):
        if way == "answer" and all(is_sentence(answer) for answer in entry.answers):
            what = "whose answer is a sentence that no passage holds word for word: give short answers, or label"
            return f"{what} passages as `relevant` or by `relevant_ids`"
        return "without a relevant passage among the retrieved ones"
    if len(passages) == 1:
        return "with only one passage, which has no position: split a joined context into its passages"
    if all(passage.relevant for passage in passages):
        return "whose passages are all relevant, so that position cannot matter"
    return ""
