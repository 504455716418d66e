"""Readers of retrieval logs, one for each layout. All of them yield the same entries: a question and its passages.

To read another layout, write a reader and add it to `LAYOUTS`; names of fields belong into `log_fields.json`.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

from posgap.foundation.errors import PosgapError
from posgap.tasks.log_fields import (
    FIELDS,
    IDS,
    Fields,
    LoggedPassage,
    Taken,
    add_lists_beside,
    as_mapping,
    find_cell,
    find_question,
    has_passages,
    is_filled,
    list_names,
    parse_answers,
    parse_passage,
    parse_passages,
    parse_relevant_ids,
    plain_fields,
    question_key,
    require_question,
    take_first,
)

_MOST_NAMED = 3  # rows, of those that have one fault
_WRAPPERS = (
    *("results", "data", "rows", "examples", "items", "records", "questions", "samples", "runs", "traces", "spans"),
)
_DOTTED = re.compile(r"(?:inputs?|outputs?|reference(?:_outputs)?|attributes|metadata|retrieval|response)\..+")


class LogRow(NamedTuple):
    """A row of a log: its number, where it stands for errors ("log.csv:7"), and its fields in small letters."""

    number: int
    where: str
    fields: Fields


@dataclass
class LogEntry:
    """A question of a log and what was retrieved for it, in the log's order.

    `answers` are the accepted ones, `relevant_ids` those of its relevant passages, None where it says nothing of them.
    `number` and `where` are those of its first row. In a `list` the log itself has put the passages in order.
    """

    number: int
    where: str
    question: str
    passages: list[LoggedPassage]
    answers: list[str]
    relevant_ids: list[str] | None = None
    id: str = ""
    is_list: bool = True


@dataclass
class LogReading:
    """What a log was taken for: the names of its fields, and the faults of its rows, by what is wrong."""

    name: str
    columns: Mapping[str, str] = field(default_factory=dict)
    taken: Taken = field(default_factory=Counter)
    faults: dict[str, list[str]] = field(default_factory=dict)
    rows: int = 0
    layout: str = ""

    @contextmanager
    def note_fault(self, where: str = "") -> Iterator[None]:
        """Keeps a fault of the block until all of a file can be said at once."""
        try:
            yield
        except PosgapError as error:
            where = where or str(error).partition(": ")[0]
            self.faults.setdefault(str(error).removeprefix(f"{where}: "), []).append(where)

    def require_no_faults(self) -> None:
        """Raises `PosgapError` with all faults, each with the number of its rows."""
        told = []
        for what, places in self.faults.items():
            more = f" and {len(places) - _MOST_NAMED} more" if len(places) > _MOST_NAMED else ""
            told.append(f"{', '.join(places[:_MOST_NAMED])}{more}: {what}")
        if told:
            raise PosgapError("; ".join(told))


class LogLayout(NamedTuple):
    """A layout: what its rows are, whether a row with passages has it, and what reads the rows of such a log."""

    name: str
    fits: Callable[[Fields], bool]
    entries: Callable[[Iterable[LogRow], LogReading], Iterator[LogEntry]]


def read_log(numbered: Iterable[tuple[int, Any]], reading: LogReading) -> list[LogEntry]:
    """Returns the entries of a log's (number, row); the first row with a passage tells its layout.

    Raises `PosgapError` that names the rows and all that is wrong with them.
    """
    rows = _log_rows(numbered, reading)
    leading: list[LogRow] = []
    layout = None
    for row in rows:
        leading.append(row)
        layout = next((each for each in LAYOUTS if each.fits(row.fields)), None)
        if layout:
            break
    entries: list[LogEntry] = []
    if layout:
        reading.layout = layout.name
        entries += layout.entries(chain(leading, rows), reading)
    elif leading and not reading.faults:
        raise PosgapError(
            f"{leading[0].where}: no retrieved passages: expected a field `passages` with a list of them (also: "
            f"{', '.join(FIELDS['passages'][1:])}), or a row for each passage with its `text` (also: "
            f"{', '.join(FIELDS['text'][1:])}); found {list_names(leading[-1].fields)}; --columns names others, like "
            "text=Content (docs/rag.md)"
        )
    reading.require_no_faults()
    return entries


def _log_rows(numbered: Iterable[tuple[int, Any]], reading: LogReading) -> Iterator[LogRow]:
    """Yields the rows; what ends the file early is a fault of it."""
    with reading.note_fault():
        for number, row in unwrapped_rows(numbered, reading.name):
            where = f"{reading.name}:{number}"
            fields = read_fields(row, where, reading.columns)
            if any(map(is_filled, fields.values())):
                reading.rows += 1
                yield LogRow(number, where, fields)


def unwrapped_rows(numbered: Iterable[tuple[int, Any]], name: str) -> Iterator[tuple[int, Any]]:
    """Yields (number, row), also of rows within one object, or in any `orient` in which pandas writes a frame."""
    for number, row in numbered:
        inner = find_wrapped(row)
        if inner is None and isinstance(row, list | tuple):
            raise PosgapError(
                f"{name}:{number}: an array without names of fields; write objects (pandas: orient='records')"
            )
        elif inner is None:
            yield number, row
        else:
            yield from enumerate(inner, start=1)


def find_wrapped(row: Any) -> list[Any] | None:
    """The rows that an object holds, instead of being one; None where it is a row."""
    if not isinstance(row, Mapping):
        return None
    names, data = row.get("columns"), row.get("data")
    if isinstance(names, list) and isinstance(data, list):  # split
        return _rows_of(names, data)
    columns = list(row.values())
    question = find_cell(row, "question")
    kind, cells = type(question), question if isinstance(question, list | dict) else []
    if cells and all(isinstance(column, kind) and len(column) == len(cells) for column in columns):
        if isinstance(question, dict):  # columns
            return _rows_of(row, zip(*map(dict.values, columns)))
        if isinstance(cells[0], str):  # list
            return _rows_of(row, zip(*columns))
    if find_question(row) and has_passages(row):
        return None
    for name in _WRAPPERS:
        inner = row.get(name)
        if isinstance(inner, list) and _are_rows(inner):
            return inner
    return columns if _are_rows(columns) else None  # index


def _are_rows(values: list[Any]) -> bool:
    """Whether all of some values are objects, and the first is a row of a log."""
    if not values or set(map(type, values)) != {dict}:
        return False
    return bool(find_question(values[0])) or is_trace(values[0])


def _rows_of(names: Iterable[str], data: Iterable[Iterable[Any]]) -> list[dict[str, Any]]:
    """Rows of these names from the cells of each."""
    names = list(names)
    return [dict(zip(names, cells)) for cells in data]


def read_fields(row: Any, where: str, columns: Mapping[str, str] | None = None) -> Fields:
    """The fields of a log's row, by plain names and nested as they are meant."""
    return _nest(plain_fields(row, where, columns))


def _nest(row: Fields) -> Fields:
    """A row whose dotted names are nested objects, as exports write them into columns: inputs.question."""
    if not any(map(_DOTTED.fullmatch, row)):
        return row
    tree: dict[str, Any] = {}
    for name, cell in row.items():
        *outer, last = name.split(".") if _DOTTED.fullmatch(name) else [name]
        place = tree
        for part in outer:
            inner = place.get(part)
            place[part] = inner if isinstance(inner, dict) else {}
            place = place[part]
        place[last] = cell
    return dict(zip(tree, map(_lists, tree.values())))


def _lists(value: Any) -> Any:
    """An object whose names are 0, 1, 2 ... as a list, within objects too."""
    if not isinstance(value, dict):
        return value
    inner = dict(zip(value, map(_lists, value.values())))
    are_numbers = bool(inner) and all(map(str.isdecimal, map(str, inner)))
    return list(map(inner.__getitem__, sorted(inner, key=int))) if are_numbers else inner


def question_rows(
    rows: Iterable[LogRow], reading: LogReading, retrievals: Callable[[Fields], Iterable[Fields]] = lambda row: [row]
) -> Iterator[LogEntry]:
    """Yields an entry for each of a row's `retrievals`, which has the passages of its question in a list."""
    for row in rows:
        with reading.note_fault(row.where):
            for fields in retrievals(row.fields):
                question = require_question(fields, row.where, reading.taken)
                yield _to_entry(row, question, parse_passages(fields, row.where, reading.taken), fields, reading)


def _to_entry(
    row: LogRow, question: str, passages: list[LoggedPassage], fields: Fields, reading: LogReading
) -> LogEntry:
    id = find_cell(fields, "", names=("id", *FIELDS["question_id"]))
    return LogEntry(
        row.number,
        row.where,
        question,
        passages,
        parse_answers(fields, row.where, reading.taken),
        parse_relevant_ids(fields, row.where, reading.taken),
        "" if isinstance(id, dict | list) or id is None else str(id),
    )


def passage_rows(rows: Iterable[LogRow], reading: LogReading) -> Iterator[LogEntry]:
    """Yields an entry for all rows of a question, each of which has one passage: as questions come first.

    Rows belong together by the question's id, or its text; one without either is of the question above it, as in merged
    cells. What rows say of the question is taken from the first that says it; their answers are all accepted.
    """
    by_question: dict[str, list[tuple[LogRow, LoggedPassage]]] = {}
    name = None
    for row in rows:
        with reading.note_fault(row.where):
            own = find_cell(row.fields, "question_id")
            own = find_question(row.fields, reading.taken) if own is None else own
            name = name if own is None else own
            if name is None:
                require_question(row.fields, row.where)
            # A row's `id` is that of the row, or of the question.
            passage = parse_passage(_without(row.fields, ("id", "id_", "_id")), row.where, reading.taken)
            by_question.setdefault(str(name), []).append((row, passage))
    for of_question in by_question.values():
        with reading.note_fault(of_question[0][0].where):
            yield _join_rows(of_question, reading)


def _join_rows(of_question: Sequence[tuple[LogRow, LoggedPassage]], reading: LogReading) -> LogEntry:
    """The entry of one question's rows, each with its passage."""
    answers: list[str] = []
    common: dict[str, Any] = {}  # what the rows say of the question
    for row, _ in of_question:
        rest = _without(row.fields, (*FIELDS["text"], *IDS))
        answers += parse_answers(rest, row.where, reading.taken)
        for name, cell in rest.items():
            if name not in common and is_filled(cell):
                common[name] = cell
    row = of_question[0][0]
    passages = [passage for _, passage in of_question]
    add_lists_beside(passages, common, row.where)
    entry = _to_entry(row, require_question(common, row.where), passages, common, reading)
    entry.answers, entry.is_list = list(dict.fromkeys(answers)), False
    return entry


def _without(row: Fields, names: Sequence[str]) -> dict[str, Any]:
    """The fields of a row that have none of these names."""
    return {name: cell for name, cell in row.items() if name not in names}


def is_trace(row: Fields) -> bool:
    """Whether a row is a run of LangChain or LangSmith, an event or a span of LlamaIndex, OpenTelemetry or Phoenix, or
    a trace of Langfuse."""
    marks = ({"run_type"}, {"event_type", "payload"}, {"span_id", "timestamp"}, {"inputs", "outputs"})
    of_span = ({"attributes", "name"}, {"observations"}, {"input", "output", "trace_id"})
    return any(map(set(row).issuperset, (*marks, *of_span)))


def trace_rows(rows: Iterable[LogRow], reading: LogReading) -> Iterator[LogEntry]:
    """An entry for the first retrieval for each question among the runs, events or spans of a trace."""
    done: set[str] = set()
    queries: dict[str, Any] = {}

    def first_retrievals(row: Fields) -> Iterator[Fields]:
        for retrieval in _retrievals(row, queries):
            question = find_question(retrieval)
            if question is not None and has_passages(retrieval) and question_key(question) not in done:
                done.add(question_key(question))
                yield retrieval

    return question_rows(rows, reading, first_retrievals)


def _retrievals(row: Fields, queries: dict[str, Any], asked: Fields | None = None) -> Iterator[Fields]:
    """Yields the fields of all that may be retrievals in a trace's row. `queries` has those of LlamaIndex' events that
    have begun, by their id; `asked` is the question of the run that called this one, and what is right."""
    if "payload" in row and "event_type" in row:
        payload, event = as_mapping(row["payload"]), str(row.get("id_", ""))
        queries.setdefault(event, payload.get("query_str"))
        yield {"query": queries[event], **payload}
        return
    if not {"inputs", "outputs", "input", "output", "run_type"} & set(row):
        yield {**row, **as_mapping(row.get("response"))}
    inputs = _with_question(row.get("inputs", row.get("input")))
    outputs = row.get("outputs", row.get("output"))
    outputs = {"documents": outputs} if isinstance(outputs, list) and outputs else as_mapping(outputs)
    own = {**_without(outputs, FIELDS["answers"]), **inputs, **_of_attributes(row.get("attributes"))}
    # A run that was called says itself what was retrieved; what is right stands in the one that called it.
    common = {
        "question": find_question(own),
        "expected_answers": _find_accepted(row),
        "relevant_ids": find_cell(row, "relevant_ids"),
    }
    common = {name: (asked or {}).get(name) if value is None else value for name, value in common.items()}
    yield {**own, **common}
    for name in ("child_runs", "observations", "spans", "children"):
        children = row.get(name)
        for child in children if isinstance(children, list) else ():
            yield from _retrievals(plain_fields(as_mapping(child), ""), queries, common)


def _find_accepted(row: Fields) -> Any:
    """What a run says is right, in its reference outputs or beside them; its own answer is what the chain said."""
    references = (as_mapping(row.get("reference_outputs")), as_mapping(row.get("reference")))
    accepted = take_first(references, "answers")
    beside = find_cell(row, "answers", names=("reference_outputs", *FIELDS["answers"][:-1]))
    return beside if accepted is None and not isinstance(beside, Mapping) else accepted


def _with_question(value: Any) -> Fields:
    """What a run was asked, by the names of fields; a bare text is the question."""
    inputs = as_mapping(value)
    question = find_question({"question": value}) if value is not None and not find_question(inputs) else None
    return {**inputs, "question": question} if question else inputs


def _of_attributes(value: Any) -> Fields:
    """The question and the passages of a span's attributes, by OpenInference's names: nested, dotted, or a list of keys
    and values, as OpenTelemetry has it."""
    if isinstance(value, list):
        pairs = list(map(as_mapping, value))
        value = {pair.get("key"): next(iter(as_mapping(pair.get("value")).values()), None) for pair in pairs}
    plain = {f"attributes.{name}": cell for name, cell in as_mapping(value).items() if isinstance(name, str)}
    attributes = as_mapping(_nest(plain).get("attributes"))
    asked = as_mapping(attributes.get("input")).get("value", attributes.get("input"))
    documents = as_mapping(attributes.get("retrieval")).get("documents")
    return {"question": asked, "documents": documents} if attributes else {}


LAYOUTS = (
    LogLayout("runs or spans of a trace", is_trace, trace_rows),
    LogLayout("a question", has_passages, question_rows),
    LogLayout("a passage", lambda row: find_cell(row, "text") is not None, passage_rows),
)
