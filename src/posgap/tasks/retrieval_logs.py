"""Turns what retrievers and chains around them write down into ranked examples: logs, evaluation sets and traces.

`posgap.tasks.log_layouts` reads a log, whatever its layout, and `posgap.tasks.log_fields` its fields. Here it is
decided for the whole log what its words mean: its order, what tells relevant passages, and of which kind its ids are.
What cannot be asked is left out and counted.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_rows
from posgap.foundation.printing import format_count
from posgap.tasks.examples import Passage, RankedExample
from posgap.tasks.log_fields import (
    IDS,
    LoggedPassage,
    Taken,
    has_passages,
    parse_answers,
    parse_relevant_ids,
    question_key,
    require_question,
)
from posgap.tasks.log_layouts import LogEntry, LogReading, find_wrapped, is_trace, read_fields, read_log, unwrapped_rows
from posgap.tasks.metrics import contains_answer, holds_answer, normalize

log = logging.getLogger(__name__)
Relevance = Literal["id", "label", "answer"]
METRIC = "answer_words"  # by which a passage of a log holds an answer
_SCORE, _RANK = attrgetter("score"), attrgetter("rank")
_FEW = 3  # questions: fewer say nothing of a log


@dataclass
class ImportReport:
    """What became of a log's questions.

    Counts questions that were left out, by reason; those in which the log left something open; and those whose relevant
    passages are told by id, label or answer. Counts passages that are `relevant`, others that hold an answer
    (`answering`), and how many of those were `dropped`. `elsewhere` counts questions, of those `told` by ids or labels
    whose answer some passage holds, in which no relevant one does. `taken_for` says in words what the log was taken
    for.
    """

    left_out: Counter[str] = field(default_factory=Counter)
    left_open: Counter[str] = field(default_factory=Counter)
    relevance: Counter[str] = field(default_factory=Counter)
    taken_for: list[str] = field(default_factory=list)
    relevant: int = 0
    answering: int = 0
    dropped: int = 0
    told: int = 0
    elsewhere: int = 0

    def summary_lines(self) -> list[str]:
        """The counts in words, but for what was left open."""
        lines = []
        if self.left_out:
            lines.append("left out " + ", ".join(f"{number} {why}" for why, number in self.left_out.items()))
        if self.relevance:
            ways = " and ".join(
                f"{format_count(number, 'question')} by {way}" for way, number in self.relevance.items()
            )
            lines.append(f"relevant passages: {self.relevant}, told in {ways}")
        if self.answering > self.dropped:
            lines.append(f"{self.answering} other passages hold an answer too")
        if self.dropped:
            lines.append(f"dropped {self.dropped} passages that are not relevant and hold an answer")
        return lines

    def log_summary(self, name: str) -> None:
        """Logs what the log that `name` names was taken for, and all counts; warns of what it left open."""
        for line in (*self.taken_for, *self.summary_lines()):
            log.info("%s: %s", name, line)
        if self.left_open:
            what = "; ".join(f"in {format_count(number, 'question')} {what}" for what, number in self.left_open.items())
            log.warning("%s: %s (docs/rag.md)", name, what)
        if self.elsewhere >= _FEW and 2 * self.elsewhere >= self.told:
            log.warning(
                "%s: in %d of %d questions no relevant passage holds an answer, and another one does: are the ids of "
                "relevant passages those of these passages, and none off by one? (docs/rag.md)",
                name, self.elsewhere, self.told,
            )  # fmt: skip

    def count_example(self, example: RankedExample) -> None:
        """Counts an example that can be asked."""
        self.relevance[example.relevance] += 1
        self.relevant += len(example.gold)
        holds = partial(holds_answer, answers=example.answers, metric=METRIC)
        answering = sum(map(holds, example.distractors))
        self.answering += answering
        if example.relevance != "answer":
            is_held = any(map(holds, example.gold))
            self.told += is_held or answering > 0
            self.elsewhere += answering > 0 and not is_held


class Labels(NamedTuple):
    """What a question is labelled with: its accepted answers, and the ids of its relevant passages."""

    answers: list[str]
    ids: list[str] | None


class _LeftOutError(Exception):
    """Why a question cannot be asked, as it follows "left out 3"."""


def is_log(row: Any, table: bool = False) -> bool:
    """Whether a row is of a log or a trace, rather than an example in posgap's own format.

    Any row of a `table` is that has no fields of an example; of JSON lines, which may be faulty examples, one with
    retrieved passages, or an object or array around rows.
    """
    if not isinstance(row, Mapping):
        return isinstance(row, list)
    if {"passages", "relevance"} <= set(row):
        return False
    if {"records", "gold", "distractors"} & set(row) and not is_trace(row):
        return table and "distractors" not in row and "records" not in row
    fields = read_fields(row, "a row")
    return table or is_trace(fields) or has_passages(fields) or find_wrapped(row) is not None


def read_labels(path: Path, columns: Mapping[str, str] | None = None) -> dict[str, Labels]:
    """The labels by question of a file with `question`, `answers` and, where relevance goes by them, `relevant_ids`.

    Traces have none of their own. Any format that `posgap.foundation.files.read_rows` reads.
    """
    labels: dict[str, Labels] = {}
    for number, row in unwrapped_rows(read_rows(path), str(path)):
        where = f"{path}:{number}"
        fields = read_fields(row, where, columns)
        key = question_key(require_question(fields, where))
        answers, ids = parse_answers(fields, where), parse_relevant_ids(fields, where)
        if key in labels:
            before = labels[key]
            answers = list(dict.fromkeys([*before.answers, *answers]))
            ids = before.ids if ids is None else [*(before.ids or []), *ids]
        labels[key] = Labels(answers, ids)
    return labels


def ranked_examples(
    rows: Iterable[tuple[int, Any]],
    name: str,
    labels: Mapping[str, Labels] | None = None,
    relevance: Relevance | str = "",
    report: ImportReport | None = None,
    columns: Mapping[str, str] | None = None,
) -> Iterator[tuple[int, RankedExample]]:
    """Yields (number, example) of the (number, row) of a retrieval log or a trace, which `name` names.

    Passages stand in the retriever's order, as the log's own word has it: its ranks, else its scores, else the order in
    which they come. A passage that comes twice counts once. `labels` are answers and relevant ids by question, which
    come before those of the row. Which passages are relevant is told by `relevance`, else by the first of these that
    the row has: the ids of relevant passages, the passages' labels, and the answers that they hold (by the metric
    `answer_words`). Of a trace the first retrieval for a question counts. `columns` says in what columns fields stand
    that have a name of their own there.

    What cannot be asked is left out and counted in `report`: questions without answers, without a relevant passage
    among those that were retrieved or with relevant ones alone, of several retrievals that are mixed, or, where
    relevance goes by answers, answered by yes or no. Without a `report` that is logged, and it is an error if it was
    all. Raises `PosgapError` that names the rows, and the fields that are wrong.
    """
    counted = ImportReport() if report is None else report
    reading = LogReading(name, columns or {})
    entries = read_log(rows, reading)
    for entry in entries:
        own = (labels or {}).get(question_key(entry.question), Labels(entry.answers, entry.relevant_ids))
        entry.answers, entry.relevant_ids = own
    decide_questions(entries, name)
    decide_labels(entries, relevance, counted)
    id_name = decide_ids(entries, counted)
    drop_places(entries, reading)
    order = decide_order(entries)
    counted.taken_for += _describe_reading(reading, entries, order, id_name)
    for entry in entries:
        try:
            example = _to_example(entry, order, relevance, counted)
        except _LeftOutError as reason:
            counted.left_out[str(reason)] += 1
            continue
        counted.count_example(example)
        yield entry.number, example
    if report is None:
        if not counted.relevant:
            raise PosgapError(
                f"{name}: no question can be asked: {'; '.join(counted.summary_lines()) or 'there is none'}"
            )
        counted.log_summary(name)


def without_answering(
    examples: Iterable[tuple[int, RankedExample]], report: ImportReport
) -> Iterator[tuple[int, RankedExample]]:
    """Yields the examples without the passages that are not relevant and yet hold an answer, counted in `report`."""
    for number, example in examples:
        kept = []
        for passage in example.passages:
            if passage.relevant or not holds_answer(passage.document, example.answers, METRIC):
                kept.append(passage)
        report.dropped += len(example.passages) - len(kept)
        yield number, example.model_copy(update={"passages": kept})


def decide_questions(entries: Sequence[LogEntry], name: str) -> None:
    """Takes ids that several questions share for none, as those of users are, and numbers that all end in .0, as in a
    column with empty cells, for whole ones."""
    ids = list(filter(None, map(attrgetter("id"), entries)))
    is_shared = len(set(ids)) < len(ids)
    if is_shared:
        log.info("%s: `id` is the same for several questions, and so is not theirs", name)
    answers = chain.from_iterable(map(attrgetter("answers"), entries))
    numbers = filter(re.compile(r"-?\d+(\.\d+)?").fullmatch, answers)
    are_whole = all(map(re.compile(r"-?\d+\.0").fullmatch, numbers))
    for entry in entries:
        entry.id = "" if is_shared else entry.id
        if are_whole:
            entry.answers = [re.sub(r"^(-?\d+)\.0$", r"\1", answer) for answer in entry.answers]


def decide_labels(entries: Sequence[LogEntry], relevance: str, report: ImportReport) -> None:
    """Takes labels for scores where any of the log's labels is none: no grade, but a share or a percent."""
    passages = list(chain.from_iterable(map(attrgetter("passages"), entries)))
    if relevance == "label" or not any(map(attrgetter("is_share"), passages)):
        return
    for passage in passages:
        passage.score = passage.label if passage.score is None else passage.score
        passage.label = None
    what = "labels are no whole numbers, so they are scores; import them as grades by --relevant label"
    report.left_open[what] = len(entries)


def decide_ids(entries: Sequence[LogEntry], report: ImportReport) -> str:
    """Leaves each passage the one of its ids that the log's relevant ids are of, and returns the name of that.

    It is the name under which the passages of most questions have a relevant id; of equal ones that of smaller parts.
    Questions whose relevant ids are of another kind are counted. Relevant ids that stand together in a cell are parted
    where no passage has such an id.
    """
    found: Counter[str] = Counter()
    for name in (*IDS, "passage_ids"):
        found[name] = sum(bool(_relevant_by(name, entry)) for entry in entries)
    names = [name for name, questions in found.most_common() if questions]
    for entry in entries:
        for name in names:
            relevant = _relevant_by(name, entry)
            if not relevant and entry.relevant_ids is not None:
                continue
            entry.relevant_ids = relevant or None
            for passage in entry.passages:
                passage.ids = {name: passage.ids[name]} if name in passage.ids else {}
            if name != names[0]:
                report.left_open[f"ids of relevant passages are those of `{name}`, not of `{names[0]}`"] += 1
            break
    return names[0] if names else ""


def _relevant_by(name: str, entry: LogEntry) -> list[str]:
    """The ids of a question's relevant passages, those in one cell apart unless a passage has such an id; none where no
    passage has one of them under this name."""
    own = {passage.ids.get(name) for passage in entry.passages}
    parted: list[str] = []
    for each in entry.relevant_ids or ():
        parts = list(filter(None, re.split(r"\s*[,;|\s]\s*", each.strip(" []{}()"))))
        parted += [each] if each in own or not parts else parts
    return [] if own.isdisjoint(parted) else parted


def drop_places(entries: Sequence[LogEntry], reading: LogReading) -> None:
    """Takes a column `position` for ranks only where it has each question's first numbers: else it may say where a
    passage stands in its document."""
    if reading.taken["rank", "position"] == 0 or reading.taken["rank", "rank"]:
        return
    ranks = [list(map(_RANK, entry.passages)) for entry in entries]
    if all(len(set(each)) == len(each) and set(each) <= set(range(len(each) + 1)) for each in ranks):
        return
    for passage in chain.from_iterable(map(attrgetter("passages"), entries)):
        passage.rank = None


class LogOrder(NamedTuple):
    """By what a log's passages are put in the retriever's order: its ranks, its scores, or as they come."""

    by: Literal["rank", "score", "list"]
    words: str


def decide_order(entries: Sequence[LogEntry]) -> LogOrder:
    """Decides by what the passages of all questions of a log are ordered.

    Ranks go before scores, and scores before the order in which passages come; a list whose scores only rise is one of
    distances. `words` say it, and in how many questions two of these disagree.
    """
    scored: list[list[float]] = []  # the scores of each question, in the order of its ranks where it has any
    has_ranks, are_pairs, are_lists = False, True, True
    for entry in entries:
        passages = _of_texts(entry)
        has_ranks = has_ranks or not {None}.issuperset(map(_RANK, passages))
        are_lists = are_lists and entry.is_list
        if len(passages) > 1 and None not in map(_SCORE, passages):
            scored.append(list(map(_SCORE, sorted(passages, key=_place))))
            are_pairs = are_pairs and all(map(attrgetter("is_pair"), passages))
    falling = [scores == sorted(scores, reverse=True) for scores in scored]
    against = falling.count(False)
    if has_ranks:
        beside = f"; scores disagree in {against} of {len(scored)} questions" if against else ""
        return LogOrder("rank", f"that of their ranks{beside}")
    if not against:
        return LogOrder("list", "that in which they come" + (", and so are their scores" if scored else ""))
    if are_pairs and are_lists and scored == list(map(sorted, scored)):
        return LogOrder("list", "that in which they come; their scores rise, as distances do")
    return LogOrder("score", f"that of their scores; they come in another one in {against} of {len(scored)} questions")


def _of_texts(entry: LogEntry) -> list[LoggedPassage]:
    return [passage for passage in entry.passages if passage.text.strip()]


def _place(passage: LoggedPassage) -> tuple[bool, float]:
    """By what a passage stands among others that have ranks, where it may have none."""
    return passage.rank is None, passage.rank or 0


def _describe_reading(reading: LogReading, entries: Sequence[LogEntry], order: LogOrder, id_name: str) -> list[str]:
    """What a log was taken for, in a few lines."""
    sizes, empty = [], 0
    for entry in entries:
        sizes.append(len({passage.text for passage in _of_texts(entry)}))  # what comes twice counts once
        empty += sum(not p.text.strip() and bool(p.ids or entry.is_list) for p in entry.passages)
    if not sizes:
        return []
    labels = f", labels from {_names(reading.taken, 'label')}" if _names(reading.taken, "label") else ""
    listed = _names(reading.taken, "passages") or "the rows"
    without = f"; {empty} without a text are left out" if empty else ""
    ids = f"; ids of relevant passages are those of `{id_name}`" if id_name else ""
    read = f"{format_count(len(entries), 'question')} of {format_count(reading.rows, 'row')}"
    return [
        f"{read}, each {reading.layout}: question from {_names(reading.taken, 'question')}, answers from "
        f"{_names(reading.taken, 'answers') or '--answers'}",
        f"passages from {listed}, {min(sizes)} to {max(sizes)} for a question: "
        f"text from {_names(reading.taken, 'text') or 'the list'}, title from "
        f"{_names(reading.taken, 'title') or 'nowhere'}{labels}{ids}{without}",
        f"order: {order.words}",
    ]


def _names(taken: Taken, field: str) -> str:
    return " and ".join(f"`{name}`" for own, name in taken if own == field)


def _to_example(entry: LogEntry, order: LogOrder, relevance: str, report: ImportReport) -> RankedExample:
    """The example of a log's entry. Raises `_LeftOutError` where it cannot be asked."""
    retrieved = _order_passages(entry, order, report)
    if not entry.answers:
        raise _LeftOutError("without answers (columns `answers` or `ground_truth`, or a file given as --answers)")
    by_label = "answer" if {None}.issuperset(map(attrgetter("label"), retrieved)) else "label"
    way = relevance or (by_label if entry.relevant_ids is None else "id")
    return RankedExample(
        id=entry.id or f"rag-{entry.number:06d}",
        question=entry.question,
        answers=entry.answers,
        passages=_label_passages(retrieved, entry, way),
        relevance=cast(Relevance, way),
    )


def _order_passages(entry: LogEntry, order: LogOrder, report: ImportReport) -> list[LoggedPassage]:
    """A question's passages that have a text in the log's order, those without a rank or a score behind.

    Where the ranks begin anew, the first retrieval alone counts. Raises `_LeftOutError` where several are mixed.
    """
    passages = _of_texts(entry)
    if order.by == "score":
        return sorted(passages, key=lambda passage: (passage.score is None, -(passage.score or 0)))
    if order.by == "list":
        return passages
    ranks, shared = _count_ranks(passages)
    if shared:
        first, *others = _split_where_ranks_fall(passages)
        if others and _are_retrievals([first, *others]):
            report.left_open["the ranks begin anew with other passages, and the first retrieval alone counts"] += 1
            passages, shared = first, 0
        elif ranks > 1 and 2 * shared > ranks:
            raise _LeftOutError("with several passages at most ranks: give each retrieval a `question_id` of its own")
    if shared:
        report.left_open["passages have equal ranks, and keep the order of the file"] += 1
    if None in map(_RANK, passages):
        report.left_open["passages have no rank, and stand behind those that have one"] += 1
    return sorted(passages, key=_place)


def _split_where_ranks_fall(passages: Iterable[LoggedPassage]) -> list[list[LoggedPassage]]:
    """The passages in runs, within each of which the ranks do not fall."""
    runs: list[list[LoggedPassage]] = []
    last = 0.0
    for passage in passages:
        if not runs or (passage.rank is not None and passage.rank < last):
            runs.append([])
        runs[-1].append(passage)
        last = last if passage.rank is None else passage.rank
    return runs


def _are_retrievals(runs: Sequence[Sequence[LoggedPassage]]) -> bool:
    """Whether each run begins with the lowest rank of all, and has no rank twice."""
    lowest = min(chain(*runs), key=_place).rank
    return all(run[0].rank == lowest and not _count_ranks(run)[1] for run in runs)


def _count_ranks(passages: Iterable[LoggedPassage]) -> tuple[int, int]:
    """How many ranks there are, and how many of them several passages share."""
    texts: dict[float, set[str]] = {}
    for passage in passages:
        if passage.rank is not None:
            texts.setdefault(passage.rank, set()).add(passage.text)
    return len(texts), len(texts) - list(map(len, texts.values())).count(1)


def _label_passages(retrieved: Sequence[LoggedPassage], entry: LogEntry, way: str) -> list[Passage]:
    """Each passage once, marked as relevant or not. Raises `_LeftOutError` where that tells nothing of positions."""
    if way == "id" and entry.relevant_ids is None:
        raise PosgapError(
            f"{entry.where}: relevance goes by id, but the row has no ids of relevant passages (`relevant_ids`)"
        )
    if way == "id" and not any(map(attrgetter("ids"), retrieved)):
        raise PosgapError(f"{entry.where}: relevance goes by id, but the row has no passages with an id")
    if way == "answer" and {"yes", "no"}.issuperset(map(normalize, entry.answers)):
        raise _LeftOutError("answered by yes or no, which tells nothing of passages: they need labels or ids")
    passages: dict[tuple[str, str], Passage] = {}
    for each in retrieved:
        if way == "id":
            relevant = not set(each.ids.values()).isdisjoint(entry.relevant_ids or ())
        elif way == "label":
            relevant = each.label is not None and each.label > 0
        else:
            # Whole words alone: what `holds_answer` finds within a word is no evidence that a passage answers.
            relevant = contains_answer(f"{each.title} {each.text}", entry.answers)
        id = next(iter(each.ids.values()), "")
        passage = Passage(title=each.title, text=each.text, score=each.score, relevant=relevant, id=id)
        first = passages.setdefault((each.title, each.text), passage)
        if relevant and not first.relevant:
            passages[each.title, each.text] = first.model_copy(update={"relevant": True})
    relevances = list(map(attrgetter("relevant"), passages.values()))
    if not any(relevances):
        raise _LeftOutError("without a relevant passage among those that were retrieved")
    if len(relevances) > 1 and all(relevances):
        raise _LeftOutError("all of whose passages are relevant, so that position cannot matter")
    return list(passages.values())
