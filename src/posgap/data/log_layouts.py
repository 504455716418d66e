"""Layouts of retrieval logs: a row for each question, or for each passage, and traces. All yield the same entries."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from posgap.data.log_cells import TABLE, as_mapping, fold, is_filled, list_names, plain_cells
from posgap.data.log_fields import FIELDS, Fields, LogFields, LoggedPassage
from posgap.foundation.errors import Malformed, PosgapError
from posgap.foundation.printing import format_count

_MOST_NAMED = 3  # rows, of those that have one fault
_DOTTED = re.compile(r"(?:inputs?|outputs?|reference(?:_outputs)?|attributes|metadata|retrieval|response)\..+")


class LogRow(NamedTuple):
    """A row of a log: its number, where it stands for errors ("log.csv:7"), and its fields by plain names."""

    number: int
    where: str
    fields: Fields


@dataclass
class LogEntry:
    """A question of a log and what was retrieved for it, in the log's order: of a list (`is_list`), which the log has
    put in order itself, or of rows. `relevant_ids` is None if it says nothing of them; `number` and `where` are of
    its first row; `left_out` says why it cannot be asked."""

    number: int
    where: str
    question: str
    passages: list[LoggedPassage]
    answers: list[str]
    relevant_ids: list[str] | None = None
    id: str = ""
    is_list: bool = True
    left_out: str = ""

    @property
    def readable(self) -> list[LoggedPassage]:
        """The passages that have a text."""
        return [passage for passage in self.passages if passage.text.strip()]


@dataclass
class LogRows:
    """The rows of a log that `name` names, on their way to entries: how their `fields` are read, and their faults."""

    name: str
    fields: LogFields
    faults: dict[str, list[str]] = field(default_factory=dict)
    kinds: set[type[PosgapError]] = field(default_factory=set)
    count: int = 0
    layout: str = ""

    def entries(self, numbered: Iterable[tuple[int, Any]]) -> list[LogEntry]:
        """The entries of a log's (number, row); the first row with a passage tells its layout. Raises `PosgapError`
        that names the rows and all that is wrong with them."""
        rows = self.rows(numbered)
        leading: list[LogRow] = []
        entries: list[LogEntry] = []
        for row in rows:
            leading.append(row)
            self.layout = _layout_of(row.fields, self.fields)
            if self.layout:
                entries = list(_READERS[self.layout](chain(leading, rows), self))
                break
        self.require_no_faults()
        if leading and not entries:
            row = leading[-1]
            if not self.layout and self.fields.find_passages(row.fields)[1] is not None:
                self.fields.passages(row.fields, row.where)  # which says what is wrong with them
            what = "expected a field `passages` with a list of passages, or one row for each passage with its `text`"
            found = f"found {list_names(row.fields)}; --columns names others, like text=Content (docs/log-fields.md)"
            raise Malformed(f"{row.where}: no retrieved passages in {format_count(self.count, 'row')}: {what}; {found}")
        return entries

    def rows(self, numbered: Iterable[tuple[int, Any]]) -> Iterator[LogRow]:
        """Yields the rows; what ends the file early is a fault of it."""
        with self.note_fault():
            for outer, item in numbered:
                inner = find_wrapped(item)
                if inner is None and isinstance(item, list | tuple):
                    what = "an array without names of fields; write objects (pandas: orient='records')"
                    raise Malformed(what, at=f"{self.name}:{outer}")
                for number, row in enumerate(inner, start=1) if inner is not None else [(outer, item)]:
                    where = f"{self.name}:{number}"
                    fields = _nest(self.fields.row(row, where))
                    if any(map(is_filled, fields.values())):
                        self.count += 1
                        yield LogRow(number, where, fields)

    @contextmanager
    def note_fault(self, where: str = "") -> Iterator[None]:
        """Keeps a fault of the block until all of a file can be said at once."""
        try:
            yield
        except PosgapError as error:
            where = where or error.at or str(error).partition(": ")[0]
            self.kinds.add(type(error))
            self.faults.setdefault(str(error).removeprefix(f"{where}: "), []).append(where)

    def require_no_faults(self) -> None:
        """Raises `PosgapError` with the faults, each with the number of its rows."""
        told = []
        for what, places in self.faults.items():
            more = f" and {len(places) - _MOST_NAMED} more" if len(places) > _MOST_NAMED else ""
            told.append(f"{', '.join(places[:_MOST_NAMED])}{more}: {what}")
        told[_MOST_NAMED:] = [f"and {len(told) - _MOST_NAMED} other faults"] if len(told) > _MOST_NAMED else []
        if told:
            (kind,) = self.kinds if len(self.kinds) == 1 else {Malformed}
            raise kind("; ".join(told))

    def entry(self, row: LogRow, fields: Fields, passages: list[LoggedPassage]) -> LogEntry:
        """The entry of a question's fields and passages, which begins with this row."""
        question = self.fields.question(fields, row.where, passages)
        answers = self.fields.answers(fields, row.where)
        names = ("id", *self.fields.names["question_id"])
        found = next((fields[name] for name in names if is_filled(fields.get(name))), "")
        name = "" if isinstance(found, dict | list) else str(found)
        entry = LogEntry(row.number, row.where, question, passages, answers, id=name)
        entry.relevant_ids = self.fields.relevant_ids(fields, row.where)
        if self.fields.is_unanswerable(fields, answers, name):
            entry.left_out = "that have no answer, as they say"
        return entry


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
    for name in TABLE["wrappers"]:
        inner = plain.get(name)
        inner = find_wrapped(inner) if isinstance(inner, dict) and name == "results" else inner  # promptfoo
        if isinstance(inner, list) and _are_rows(inner):
            return inner
    return columns if _are_rows(columns) else None  # index


def _are_rows(values: list[Any]) -> bool:
    """Whether all of some values are objects, and the first is a row of a log."""
    if not values or not all(type(value) is dict for value in values):
        return False
    first = LogFields().row(values[0], "")
    return bool(LogFields().find_question(first)) or is_trace(first)


def _nest(cells: Fields) -> Fields:
    """The fields of a row with dotted names, as exports write them into columns (inputs.question), as objects."""
    tree: dict[str, Any] = {}
    if not any(map(_DOTTED.fullmatch, cells)):
        return cells
    for name, cell in cells.items():
        *outer, last = name.split(".") if _DOTTED.fullmatch(name) else [name]
        place = tree
        for part in outer:
            if not isinstance(place.get(part), dict):
                place[part] = {}
            place = place[part]
        place[last] = cell
    return {name: _lists(cell) for name, cell in tree.items()}


def _lists(value: Any) -> Any:
    """An object whose names are 0, 1, 2 ... as a list, within objects too."""
    if not isinstance(value, dict):
        return value
    inner = {name: _lists(cell) for name, cell in value.items()}
    are_numbers = bool(inner) and all(str(name).isdecimal() for name in inner)
    return [inner[name] for name in sorted(inner, key=int)] if are_numbers else inner


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
            cells = row.fields if "id" in log.fields.named else _without(row.fields, ("id", "id_", "_id"))
            passage = log.fields.passage(cells, row.where)
            by_question.setdefault(str(name), []).append((row, passage))
    for of_question in by_question.values():
        with log.note_fault(of_question[0][0].where):
            yield _join_rows(of_question, log)


def _join_rows(of_question: Sequence[tuple[LogRow, LoggedPassage]], log: LogRows) -> LogEntry:
    """The entry of one question's rows, each with its passage."""
    answers: list[str] = []
    common: dict[str, Any] = {}  # what the rows say of the question
    for row, _ in of_question:
        rest = _without(row.fields, (*log.fields.names["text"], *log.fields.names["id"]))
        answers += log.fields.answers(rest, row.where)
        for name, cell in rest.items():
            if name not in common and is_filled(cell):
                common[name] = cell
    first, _ = of_question[0]
    passages = [passage for _, passage in of_question]
    log.fields.add_lists_beside(passages, common, first.where)
    entry = log.entry(first, common, passages)
    entry.answers = list(dict.fromkeys(answers))
    entry.is_list = False
    return entry


def _without(row: Fields, names: Iterable[str]) -> dict[str, Any]:
    """The fields of a row that have none of these names."""
    return {name: cell for name, cell in row.items() if name not in set(names)}


def is_trace(row: Fields) -> bool:
    """Whether a row is a run of LangChain or LangSmith, an event or a span of LlamaIndex, OpenTelemetry or Phoenix, or
    a trace of Langfuse."""
    return any(set(mark) <= set(row) for mark in TABLE["traces"])


def trace_rows(rows: Iterable[LogRow], log: LogRows) -> Iterator[LogEntry]:
    """Yields an entry for the first retrieval for each question among the runs, events or spans of a trace."""
    done: set[str] = set()
    queries: dict[str, Any] = {}
    for row in rows:
        with log.note_fault(row.where):
            for retrieval in _retrievals(row.fields, queries):
                question = log.fields.find_question(retrieval)
                if question is None or fold(question) in done or not log.fields.has_passages(retrieval):
                    continue
                done.add(fold(question))
                yield log.entry(row, retrieval, log.fields.passages(retrieval, row.where))


def _retrievals(row: Fields, queries: dict[str, Any], asked: Fields | None = None) -> Iterator[Fields]:
    """Yields the fields of all that may be retrievals in a trace's row. `queries` has those of LlamaIndex' events that
    have begun, by their id; `asked` is the question of the run that called this one, and what is right."""
    if "payload" in row and "event_type" in row:
        payload = as_mapping(row["payload"])
        event = str(row.get("id_", ""))
        queries.setdefault(event, payload.get("query_str"))
        yield {"query": queries[event], **payload}
        return
    if not {"inputs", "outputs", "input", "output", "run_type"} & set(row):
        yield {**row, **as_mapping(row.get("response"))}
    reader = LogFields()
    inputs = as_mapping(row.get("inputs", row.get("input")))
    bare = {"question": row.get("inputs", row.get("input"))}  # a text, or messages
    if not reader.find_question(inputs) and reader.find_question(bare):
        inputs = {**inputs, "question": reader.find_question(bare)}
    outputs = row.get("outputs", row.get("output"))
    outputs = {"documents": outputs} if isinstance(outputs, list) and outputs else as_mapping(outputs)
    own = {**_without(outputs, FIELDS["answers"]), **inputs, **_of_attributes(row.get("attributes"))}
    # A run that was called says itself what was retrieved; what is right stands in the one that called it: in its
    # reference outputs or beside them, since its own answer is what the chain said.
    references = [as_mapping(row.get(name)) for name in ("reference_outputs", "reference", "expectations")]
    beside = {"answers": row.get("reference_outputs"), **_without(row, ("answer",))}
    accepted = reader.cell("answers", *references, {n: c for n, c in beside.items() if not isinstance(c, Mapping)})
    common = {"question": reader.find_question(own), "expected_answers": accepted}
    common["relevant_ids"] = reader.cell("relevant_ids", row)
    common = {name: (asked or {}).get(name) if value is None else value for name, value in common.items()}
    yield {**own, **common}
    for name in ("child_runs", "observations", "spans", "children"):
        children = row.get(name)
        for child in children if isinstance(children, list) else ():
            yield from _retrievals(plain_cells(as_mapping(child)), queries, common)


def _of_attributes(value: Any) -> Fields:
    """The question and the passages of a span's attributes, by OpenInference's names: nested, dotted, or a list of keys
    and values, as OpenTelemetry has it."""
    if isinstance(value, list):
        pairs = [as_mapping(each) for each in value]
        value = {pair.get("key"): next(iter(as_mapping(pair.get("value")).values()), None) for pair in pairs}
    plain = {f"attributes.{name}": cell for name, cell in as_mapping(value).items() if isinstance(name, str)}
    attributes = as_mapping(_nest(plain).get("attributes"))
    asked = as_mapping(attributes.get("input")).get("value", attributes.get("input"))
    documents = as_mapping(attributes.get("retrieval")).get("documents")
    return {"question": asked, "documents": documents} if attributes else {}


def _layout_of(row: Fields, reader: LogFields) -> str:
    """The layout of a log that a row with a passage tells; empty if the row has none."""
    if is_trace(row):
        return "runs or spans of a trace"
    if reader.has_passages(row):
        return "a question"
    return "a passage" if any(is_filled(row.get(name)) for name in reader.names["text"]) else ""


_READERS = {"runs or spans of a trace": trace_rows, "a question": question_rows, "a passage": passage_rows}
