"""Layouts of retrieval logs: a row for each question, or for each passage, and traces. All yield the same entries."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from posgap.data.log_cells import TABLE, as_mapping, fold, is_filled, list_names, plain_cells, without
from posgap.data.log_fields import FIELDS, Fields, LogFields, LoggedPassage
from posgap.foundation.errors import Malformed, PosgapError
from posgap.foundation.printing import format_count

Numbered = Iterable[tuple[int, Any]]  # rows, with their numbers
_MOST_NAMED = 3  # rows, of those that have one fault


class LogRow(NamedTuple):
    """A row of a log: its number, where it stands for errors ("log.csv:7"), and its fields by plain names."""

    number: int
    where: str
    fields: Fields


@dataclass
class LogEntry:
    """A question of a log and what was retrieved for it, in the log's order: the passages that have a text, and how
    many have none. `relevant_ids` is None if it says nothing of them; `number` and `where` are of its first row;
    `left_out` says why it cannot be asked."""

    number: int
    where: str
    question: str
    passages: list[LoggedPassage]
    textless: int
    answers: list[str]
    relevant_ids: list[str] | None
    id: str
    left_out: str = ""

    @property
    def unique(self) -> list[LoggedPassage]:
        """Each passage once, at the first place where it comes."""
        first: dict[tuple[str, str], LoggedPassage] = {}
        for passage in self.passages:
            first.setdefault(passage.content, passage)
        return list(first.values())


@dataclass
class LogRows:
    """The rows of a log that `name` names, on their way to entries: how their `fields` are read, and their faults."""

    name: str
    fields: LogFields
    faults: dict[tuple[type[PosgapError], str], list[str]] = field(default_factory=dict)
    count: int = 0
    layout: str = ""

    def entries(self, numbered: Numbered) -> list[LogEntry]:
        """The entries of a log's (number, row); the first row with a passage tells its layout. Raises `PosgapError`
        that names the rows and all that is wrong with them."""
        rows = list(self.rows(numbered))
        self.count = len(rows)
        self.layout = next(filter(None, (_layout_of(row.fields, self.fields) for row in rows)), "")
        entries = list(_READERS[self.layout](rows, self)) if self.layout else []
        self.require_no_faults()
        if rows and not entries:
            _, where, fields = rows[-1]
            if not self.layout and self.fields.find_passages(fields)[1] is not None:
                self.fields.passages(fields, where)  # which says what is wrong with them
            what = f"no retrieved passages in {format_count(self.count, 'row')}: expected a list of them in `passages`"
            what += f", or a row for each with its `text`; found {list_names(fields)}; --columns names others, like"
            raise Malformed(f"{what} text=Content (docs/log-fields.md)", at=where)
        return entries

    def rows(self, numbered: Numbered) -> Iterator[LogRow]:
        """Yields the rows; what ends the file early is a fault of it."""
        with self.note_fault():
            for outer, item in numbered:
                inner = find_wrapped(item)
                if inner is None and isinstance(item, list | tuple):
                    what = "an array without names of fields; write objects (pandas: orient='records')"
                    raise Malformed(what, at=f"{self.name}:{outer}")
                for number, row in enumerate(inner, start=1) if inner is not None else [(outer, item)]:
                    where = f"{self.name}:{number}"
                    fields = self.fields.row(row, where)
                    if any(map(is_filled, fields.values())):
                        yield LogRow(number, where, fields)

    @contextmanager
    def note_fault(self, where: str = "") -> Iterator[None]:
        """Keeps a fault of the block until all of a file can be said at once."""
        try:
            yield
        except PosgapError as error:
            where = where or error.at or str(error).partition(": ")[0]
            self.faults.setdefault((type(error), str(error).removeprefix(f"{where}: ")), []).append(where)

    def require_no_faults(self) -> None:
        """Raises `PosgapError` with the faults, each with the number of its rows."""
        told = []
        for (_, what), places in self.faults.items():
            more = f" and {len(places) - _MOST_NAMED} more" if len(places) > _MOST_NAMED else ""
            told.append(f"{', '.join(places[:_MOST_NAMED])}{more}: {what}")
        told[_MOST_NAMED:] = [f"and {len(told) - _MOST_NAMED} other faults"] if len(told) > _MOST_NAMED else []
        kinds = {kind for kind, _ in self.faults}
        if told:
            raise (kinds.pop() if len(kinds) == 1 else Malformed)("; ".join(told))

    def entry(self, row: LogRow, fields: Fields, passages: list[LoggedPassage]) -> LogEntry:
        """The entry of a question's fields and passages, which begins with this row."""
        question = self.fields.question(fields, row.where, passages)
        answers = self.fields.answers(fields, row.where)
        names = ("id", *self.fields.names["question_id"])
        found = next((fields[name] for name in names if is_filled(fields.get(name))), "")
        name = "" if isinstance(found, dict | list) else str(found)
        ids = self.fields.relevant_ids(fields, row.where)
        why = "that have no answer, as they say" if self.fields.is_unanswerable(fields, answers, name) else ""
        readable = [passage for passage in passages if passage.text.strip()]
        textless = len(passages) - len(readable)
        return LogEntry(row.number, row.where, question, readable, textless, answers, ids, name, why)


def find_wrapped(row: Any) -> list[Any] | None:
    """The rows that an object holds, instead of being one; None if it is a row."""
    if not isinstance(row, Mapping):
        return None
    reader = LogFields()
    names = row.get("columns")
    data = row.get("data")
    if isinstance(names, list) and isinstance(data, list) and all(isinstance(each, list) for each in data):  # split
        return [dict(zip(map(str, names), cells)) for cells in data]
    columns = list(row.values())
    question = reader.cell("question", row)
    is_frame = isinstance(question, dict) or (isinstance(question, list) and isinstance(question[0], str))
    if is_frame and all(type(column) is type(question) and len(column) == len(question) for column in columns):
        lists = [column.values() if isinstance(column, dict) else column for column in columns]
        return [dict(zip(row, cells)) for cells in zip(*lists)]  # columns, list
    if reader.find_question(row) and reader.has_passages(row):
        return None
    plain = plain_cells(row)
    inner = [find_wrapped(plain[name]) or plain[name] for name in TABLE["wrappers"] if name in plain]
    return next(filter(_are_rows, [*inner, columns]), None)  # or index


def _are_rows(values: Any) -> bool:
    """Whether a value is a list of objects, and the first of them a row of a log."""
    if not isinstance(values, list) or not values or not all(type(value) is dict for value in values):
        return False
    first = LogFields().row(values[0], "")
    return bool(LogFields().find_question(first)) or is_trace(first)


def question_rows(rows: Iterable[LogRow], log: LogRows) -> Iterator[LogEntry]:
    """Yields an entry for each row, which has the passages of its question in a list."""
    for row in rows:
        with log.note_fault(row.where):
            yield log.entry(row, row.fields, log.fields.passages(row.fields, row.where))


def passage_rows(rows: Iterable[LogRow], log: LogRows) -> Iterator[LogEntry]:
    """Yields one entry a question for rows of one passage each, in the order of the questions' first rows.

    Rows belong together by the question's id, or its text; one without either is of the question above it, as in merged
    cells. What rows say of the question is taken from the first that says it; their answers are all accepted.
    """
    by_question: dict[str, list[tuple[LogRow, LoggedPassage]]] = {}
    name = None
    for row in rows:
        with log.note_fault(row.where):
            own = log.fields.cell("question_id", row.fields)
            own = log.fields.find_question(row.fields) if own is None else own
            name = name if own is None else own
            if name is None:
                log.fields.question(row.fields, row.where)
            # A row's `id` is that of the row, or of the question.
            cells = row.fields if "id" in log.fields.named else without(row.fields, ("id", "id_", "_id"))
            passage = log.fields.passage(cells, row.where)
            by_question.setdefault(str(name), []).append((row, passage))
    for of_question in by_question.values():
        first, _ = of_question[0]
        passages = [passage for _, passage in of_question]
        answers: list[str] = []
        common: dict[str, Any] = {}  # what the rows say of the question
        with log.note_fault(first.where):
            for row, _ in of_question:
                rest = without(row.fields, [*log.fields.names["text"], *log.fields.names["id"]])
                answers += log.fields.answers(rest, row.where)
                common = {name: cell for name, cell in rest.items() if is_filled(cell)} | common
            log.fields.add_lists_beside(passages, common, first.where)
            entry = log.entry(first, common, passages)
            entry.answers = list(dict.fromkeys(answers))
            yield entry


def is_trace(row: Fields) -> bool:
    """Whether a row is a run, an event or a span of a trace, as frameworks write them."""
    return any(set(mark) <= set(row) for mark in TABLE["traces"])


def trace_rows(rows: Iterable[LogRow], log: LogRows) -> Iterator[LogEntry]:
    """Yields an entry for the first retrieval for each question among the runs, events or spans of a trace."""
    done: set[str] = set()
    queries: dict[str, Any] = {}
    for row in rows:
        with log.note_fault(row.where):
            for retrieval in _retrievals(row.fields, queries, {}):
                question = log.fields.find_question(retrieval)
                if question is None or fold(question) in done or not log.fields.has_passages(retrieval):
                    continue
                done.add(fold(question))
                yield log.entry(row, retrieval, log.fields.passages(retrieval, row.where))


def _retrievals(row: Fields, queries: dict[str, Any], asked: Fields) -> Iterator[Fields]:
    """Yields the fields of all that may be retrievals in a trace's row. `queries` has those of LlamaIndex' events that
    have begun, by their id; `asked` is the question of the run that called this one, and what is right."""
    if "event_type" in row:
        event = str(row.get("id_", ""))
        queries.setdefault(event, row.get("query_str"))
        yield {"query": queries[event], **row}
        return
    reader = LogFields()
    asked_for = row.get("inputs", row.get("input"))  # fields, a text, or messages
    outputs = row.get("outputs", row.get("output"))
    outputs = {"documents": outputs} if isinstance(outputs, list) and outputs else as_mapping(outputs)
    own = {"question": asked_for, **without(outputs, FIELDS["answers"]), **as_mapping(asked_for)}
    is_run = not {"inputs", "outputs", "input", "output", "run_type"}.isdisjoint(row)
    if not is_run:
        own = {**asked, **row}
    # A run that was called says itself what was retrieved; what is right stands in the one that called it: in its
    # reference outputs or beside them, since its own answer is what the chain said.
    references = [as_mapping(row.get(name)) for name in ("reference_outputs", "reference", "expectations")]
    beside = {name: cell for name, cell in row.items() if name != "answer" and not isinstance(cell, Mapping)}
    common = {
        "question": reader.find_question(own),
        "expected_answers": reader.cell("answers", *references, beside),
        "relevant_ids": reader.cell("relevant_ids", row),
    }
    common = {name: asked.get(name) if value is None else value for name, value in common.items()}
    yield {**own, **common} if is_run else own
    for name in ("child_runs", "observations", "spans", "children"):
        children = row.get(name)
        for child in children if isinstance(children, list) else ():
            yield from _retrievals(reader.row(as_mapping(child), ""), queries, common)


def _layout_of(row: Fields, reader: LogFields) -> str:
    """The layout of a log that a row with a passage tells; empty if the row has none."""
    if is_trace(row):
        return "runs or spans of a trace"
    if reader.has_passages(row):
        return "a question"
    return "a passage" if any(reader.cells("text", row)) else ""


_READERS = {"runs or spans of a trace": trace_rows, "a question": question_rows, "a passage": passage_rows}
