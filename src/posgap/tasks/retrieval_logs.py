"""Turns what retrievers and chains around them write down into ranked examples: logs, evaluation sets and traces.

`posgap.tasks.log_layouts` reads a log, whatever its layout, and `posgap.tasks.log_fields` its fields. Here its passages
are put in their order, relevance is decided, and what cannot be asked is left out and counted.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_rows
from posgap.tasks.examples import Passage, RankedExample
from posgap.tasks.log_fields import (
    QUESTION_IDS,
    LoggedPassage,
    first_cell,
    has_passages,
    parse_answers,
    parse_relevant_ids,
    plain_fields,
    question_key,
    require_question,
)
from posgap.tasks.log_layouts import LogEntry, is_trace, read_log
from posgap.tasks.metrics import holds_answer, normalize, sub_exact_match

log = logging.getLogger(__name__)
Relevance = Literal["id", "label", "answer"]


@dataclass
class ImportReport:
    """What became of a log's questions.

    Counts questions that were left out, by reason; those in which the log left something open; and those whose relevant
    passages are told by id, label or answer. Counts passages that are `relevant`, others that hold an answer
    (`answering`), and how many of those were `dropped`.
    """

    left_out: Counter[str] = field(default_factory=Counter)
    left_open: Counter[str] = field(default_factory=Counter)
    relevance: Counter[str] = field(default_factory=Counter)
    relevant: int = 0
    answering: int = 0
    dropped: int = 0

    def summary_lines(self) -> list[str]:
        """The counts in words, but for what was left open."""
        lines = []
        if self.left_out:
            lines.append("left out " + ", ".join(f"{number} {why}" for why, number in self.left_out.items()))
        if self.relevance:
            ways = " and ".join(f"{number} questions by {way}" for way, number in self.relevance.items())
            lines.append(f"relevant passages: {self.relevant}, told in {ways}")
        if self.answering > self.dropped:
            lines.append(f"{self.answering} other passages hold an answer too")
        if self.dropped:
            lines.append(f"dropped {self.dropped} passages that are not relevant and hold an answer")
        return lines

    def log_summary(self, name: str) -> None:
        """Logs all counts of the log that `name` names; warns of what it left open."""
        for line in self.summary_lines():
            log.info("%s: %s", name, line)
        if self.left_open:
            what = "; ".join(f"in {number} questions {what}" for what, number in self.left_open.items())
            log.warning("%s: %s (docs/rag.md)", name, what)

    def count_example(self, example: RankedExample) -> None:
        """Counts an example that can be asked."""
        self.relevance[example.relevance] += 1
        self.relevant += len(example.gold)
        self.answering += sum(holds_answer(document, example.answers) for document in example.distractors)


class Labels(NamedTuple):
    """What a question is labelled with: its accepted answers, and the ids of its relevant passages."""

    answers: list[str]
    ids: list[str] | None


class _LeftOutError(Exception):
    """Why a question cannot be asked, as it follows "left out 3"."""


def is_log(row: Mapping[str, Any], table: bool = False) -> bool:
    """Whether a row is of a log or a trace, rather than an example in posgap's own format.

    Any row of a `table` is that has no fields of an example; of JSON lines, which may be faulty examples, one with
    retrieved passages.
    """
    if {"passages", "relevance"} <= set(row):
        return False
    if {"records", "gold", "distractors"} & set(row) and not is_trace(row):
        return table and "distractors" not in row and "records" not in row
    return table or is_trace(row) or has_passages(plain_fields(row, "a row"))


def read_labels(path: Path) -> dict[str, Labels]:
    """The labels by question of a file with `question`, `answers` and, where relevance goes by them, `relevant_ids`.

    Traces have none of their own. Any format that `posgap.foundation.files.read_rows` reads.
    """
    labels: dict[str, Labels] = {}
    for number, row in read_rows(path):
        where = f"{path}:{number}"
        fields = plain_fields(row, where)
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
) -> Iterator[tuple[int, RankedExample]]:
    """Yields (number, example) of the (number, row) of a retrieval log or a trace, which `name` names.

    Passages stay in the retriever's order: the list's, or for a row per passage that of the column `rank`, else of the
    rows. A passage that comes twice counts once. `labels` are answers and relevant ids by question, which come before
    those of the row. Which passages are relevant is told by `relevance`, else by the first of these that the row has:
    the ids of relevant passages, the passages' labels, and the answers that they hold (both normalised). Of a trace the
    first retrieval for a question counts.

    What cannot be asked is left out and counted in `report`: questions without answers, without a relevant passage
    among those that were retrieved or with relevant ones alone, of several retrievals that are mixed, or, where
    relevance goes by answers, answered by yes or no. Without a `report` that is logged, and it is an error if it was
    all. Raises `PosgapError` that names the row, and the field that is wrong.
    """
    counted = ImportReport() if report is None else report
    for entry in read_log(rows, name):
        try:
            example = _to_example(entry, labels or {}, relevance, counted)
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
        kept = [p for p in example.passages if p.relevant or not holds_answer(p.document, example.answers)]
        report.dropped += len(example.passages) - len(kept)
        yield number, example.model_copy(update={"passages": kept})


def _to_example(entry: LogEntry, labels: Mapping[str, Labels], relevance: str, report: ImportReport) -> RankedExample:
    """The example of a log's entry. Raises `_LeftOutError` where it cannot be asked."""
    retrieved = _rank_passages(entry.passages, report) if entry.has_ranks else entry.passages
    retrieved = [passage for passage in retrieved if passage.text.strip()]
    own = labels.get(question_key(entry.question))
    if own is None:
        own = Labels(parse_answers(entry.fields, entry.where), parse_relevant_ids(entry.fields, entry.where))
    if not relevance and own.ids is None:
        retrieved = _move_scores_from_labels(retrieved, report)
    if not own.answers:
        raise _LeftOutError("without answers (columns `answers` or `ground_truth`, or a file given as --answers)")
    way = relevance or _way_to_tell(retrieved, own)
    passages = _label_passages(retrieved, own, way, entry.where)
    name = first_cell(entry.fields, ("id", *QUESTION_IDS))
    return RankedExample(
        id=f"rag-{entry.number:06d}" if name is None or isinstance(name, dict | list) else str(name),
        question=entry.question,
        answers=own.answers,
        passages=passages,
        relevance=cast(Relevance, way),
    )


def _rank_passages(passages: Sequence[LoggedPassage], report: ImportReport) -> list[LoggedPassage]:
    """A question's passages in the order of their ranks, those without a rank behind.

    Where the ranks begin anew, the first retrieval alone counts. Raises `_LeftOutError` where several are mixed.
    """
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
    if any(passage.rank is None and passage.text for passage in passages):
        report.left_open["passages have no rank, and stand behind those that have one"] += 1
    return sorted(passages, key=lambda passage: (passage.rank is None, passage.rank or 0))


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
    lowest = min(passage.rank for passage in chain(*runs) if passage.rank is not None)
    return all(run[0].rank == lowest and not _count_ranks(run)[1] for run in runs)


def _count_ranks(passages: Iterable[LoggedPassage]) -> tuple[int, int]:
    """How many ranks there are, and how many of them several passages share."""
    texts: dict[float, set[str]] = {}
    for passage in passages:
        if passage.rank is not None and passage.text:
            texts.setdefault(passage.rank, set()).add(passage.text)
    return len(texts), sum(len(at_rank) > 1 for at_rank in texts.values())


def _move_scores_from_labels(passages: Sequence[LoggedPassage], report: ImportReport) -> list[LoggedPassage]:
    """The passages with their labels for scores, where some label is no whole number."""
    if not any(passage.label and passage.label % 1 for passage in passages):
        return list(passages)
    report.left_open["labels are no whole numbers, so they are scores; import them as grades by --relevant label"] += 1
    return [p._replace(label=None, score=p.label if p.score is None else p.score) for p in passages]


def _way_to_tell(passages: Iterable[LoggedPassage], labels: Labels) -> Relevance:
    """What tells relevant passages: their ids where these are known, else labels, else the answers they hold."""
    if labels.ids is not None:
        return "id"
    return "label" if any(passage.label is not None for passage in passages) else "answer"


def _label_passages(retrieved: Sequence[LoggedPassage], labels: Labels, way: str, where: str) -> list[Passage]:
    """Each passage once, marked as relevant or not. Raises `_LeftOutError` where that tells nothing of positions."""
    if way == "id" and labels.ids is None:
        raise PosgapError(
            f"{where}: relevance goes by id, but the row has no ids of relevant passages (`relevant_ids`)"
        )
    if way == "id" and not any(passage.id for passage in retrieved):
        raise PosgapError(f"{where}: relevance goes by id, but the row has no passages with an id")
    if way == "answer" and all(normalize(answer) in ("yes", "no") for answer in labels.answers):
        raise _LeftOutError("answered by yes or no, which tells nothing of passages: they need labels or ids")
    passages: dict[tuple[str, str], Passage] = {}
    for each in retrieved:
        if way == "id":
            relevant = not set(each.ids).isdisjoint(labels.ids or ())
        elif way == "label":
            relevant = each.label is not None and each.label > 0
        else:
            # Whole words alone: what `holds_answer` finds within a word is no evidence that a passage answers.
            relevant = sub_exact_match(f"{each.title} {each.text}", labels.answers)
        passage = Passage(title=each.title, text=each.text, score=each.score, relevant=relevant, id=each.id)
        first = passages.setdefault((each.title, each.text), passage)
        if relevant and not first.relevant:
            passages[each.title, each.text] = first.model_copy(update={"relevant": True})
    relevances = [passage.relevant for passage in passages.values()]
    if not any(relevances):
        raise _LeftOutError("without a relevant passage among those that were retrieved")
    if len(relevances) > 1 and all(relevances):
        raise _LeftOutError("all of whose passages are relevant, so that position cannot matter")
    return list(passages.values())
