"""Readers of retrieval logs, one for each layout. All of them yield the same entries: a question and its passages.

To read another layout, write a reader and add it to `LAYOUTS`; names of fields belong to `posgap.tasks.log_fields`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from posgap.foundation.errors import PosgapError
from posgap.tasks.log_fields import (
    ANSWERS,
    IDS,
    PASSAGE_IDS,
    PASSAGES,
    QUESTION_IDS,
    RANKS,
    TEXTS,
    Fields,
    LoggedPassage,
    add_lists_beside,
    as_mapping,
    find_question,
    first_cell,
    has_passages,
    list_names,
    parse_answers,
    parse_number,
    parse_passage,
    parse_passages,
    plain_fields,
    question_key,
    require_question,
)


class LogRow(NamedTuple):
    """A row of a log: its number, where it stands for errors ("log.csv:7"), and its fields in lower case."""

    number: int
    where: str
    fields: Fields


class LogEntry(NamedTuple):
    """A question of a log and what was retrieved for it, in the log's order.

    `fields` is what the log says besides: accepted answers, relevant ids, an id. `number` and `where` are those of its
    first row. `has_ranks` says that the log has a column of ranks, so that a passage without one is conspicuous.
    """

    number: int
    where: str
    question: str
    passages: list[LoggedPassage]
    fields: Fields
    has_ranks: bool = False


class LogLayout(NamedTuple):
    """A layout: whether a row with passages has it, and what reads the rows of such a log."""

    fits: Callable[[Fields], bool]
    entries: Callable[[Iterable[LogRow]], Iterator[LogEntry]]


def read_log(numbered: Iterable[tuple[int, Any]], name: str) -> Iterator[LogEntry]:
    """Yields the entries of the (number, row) of the log `name`; the first row with a passage tells its layout.

    Raises `PosgapError` that names the row and what is wrong with it.
    """
    rows = _log_rows(numbered, name)
    leading: list[LogRow] = []
    for row in rows:
        leading.append(row)
        if is_trace(row.fields) or first_cell(row.fields, (*PASSAGES, *TEXTS)) is not None:
            break
    if not leading:
        return
    telling = leading[-1].fields
    for layout in LAYOUTS:
        if layout.fits(telling):
            yield from layout.entries(chain(leading, rows))
            return
    raise PosgapError(
        f"{leading[0].where}: no retrieved passages: expected a field `passages` with a list of them (also: "
        f"{', '.join(PASSAGES[1:])}), or a row for each passage with its `text` (also: {', '.join(TEXTS[1:])}); "
        f"found {list_names(telling)} (docs/rag.md)"
    )


def _log_rows(numbered: Iterable[tuple[int, Any]], name: str) -> Iterator[LogRow]:
    for number, row in numbered:
        where = f"{name}:{number}"
        yield LogRow(number, where, plain_fields(row, where))


def question_rows(rows: Iterable[LogRow]) -> Iterator[LogEntry]:
    """Yields an entry for each row, which has the passages of its question in a list."""
    for row in rows:
        question = require_question(row.fields, row.where)
        yield LogEntry(row.number, row.where, question, parse_passages(row.fields, row.where), row.fields)


def passage_rows(rows: Iterable[LogRow]) -> Iterator[LogEntry]:
    """Yields an entry for all rows of a question, each of which has one passage: as questions come first.

    Rows belong together by the question's id, or its text. What they say of the question is taken from the first that
    says it; their answers are all accepted.
    """
    by_question: dict[str, list[tuple[LogRow, float | None]]] = {}
    has_ranks = False
    for row in rows:
        name = first_cell(row.fields, QUESTION_IDS)
        if name is None:
            name = require_question(row.fields, row.where)
        rank = parse_number(first_cell(row.fields, RANKS), f"{row.where}: field `rank`")
        has_ranks = has_ranks or rank is not None
        by_question.setdefault(str(name), []).append((row, rank))
    for ranked_rows in by_question.values():
        yield _join_rows(ranked_rows, has_ranks)


def _join_rows(ranked_rows: Sequence[tuple[LogRow, float | None]], has_ranks: bool) -> LogEntry:
    """The entry of one question's rows, each with its rank."""
    passages, answers = [], []
    common: dict[str, Any] = {}  # what the rows say of the question
    for row, rank in ranked_rows:
        # A row's `id` is that of the row, or of the question.
        passage = parse_passage({**row.fields, "id": first_cell(row.fields, PASSAGE_IDS)}, row.where)
        passages.append(passage._replace(rank=rank))
        rest = {name: cell for name, cell in row.fields.items() if name not in (*TEXTS, *IDS)}
        answers += parse_answers(rest, row.where)
        for name, cell in rest.items():
            if name not in common and cell not in (None, ""):
                common[name] = cell
    common["answers"] = list(dict.fromkeys(answers))
    number, where, _ = ranked_rows[0][0]
    question = require_question(common, where)
    return LogEntry(number, where, question, add_lists_beside(passages, common, where), common, has_ranks)


def is_trace(row: Fields) -> bool:
    """Whether a row is a run of LangChain, or an event or a span of LlamaIndex."""
    return "run_type" in row or {"event_type", "payload"} <= set(row) or {"span_id", "timestamp"} <= set(row)


def trace_rows(rows: Iterable[LogRow]) -> Iterator[LogEntry]:
    """Yields an entry for the first retrieval for each question among the runs, events or spans of a trace."""
    done: set[str] = set()
    queries: dict[str, Any] = {}
    for number, where, fields in rows:
        for retrieval in _retrievals(fields, queries):
            question = find_question(retrieval)
            if question is not None and has_passages(retrieval) and question_key(question) not in done:
                done.add(question_key(question))
                yield LogEntry(number, where, question, parse_passages(retrieval, where), retrieval)


def _retrievals(row: Fields, queries: dict[str, Any]) -> Iterator[Fields]:
    """Yields the fields of all that may be retrievals in a trace's row. `queries` has those of LlamaIndex' events that
    have begun, by their id."""
    if "run_type" in row:
        yield from _langchain_runs(row, queries)
    elif "payload" in row:
        payload, event = as_mapping(row["payload"]), str(row.get("id_", ""))
        queries.setdefault(event, payload.get("query_str"))
        yield {"query": queries[event], **payload}
    else:
        yield {**row, **as_mapping(row.get("response"))}


def _langchain_runs(run: Fields, queries: dict[str, Any]) -> Iterator[Fields]:
    """Yields a run's inputs, outputs and reference answers, then those of the runs that it called."""
    outputs, reference = as_mapping(run.get("outputs")), as_mapping(run.get("reference_outputs"))
    retrieved = {name: value for name, value in outputs.items() if name not in ANSWERS}
    accepted = {name: reference[name] for name in ANSWERS if name in reference}
    yield {**retrieved, **as_mapping(run.get("inputs")), **accepted}
    children = run.get("child_runs")
    for child in children if isinstance(children, list) else ():
        yield from _retrievals(as_mapping(child), queries)


LAYOUTS = (
    LogLayout(is_trace, trace_rows),
    LogLayout(has_passages, question_rows),
    LogLayout(lambda row: first_cell(row, TEXTS) is not None, passage_rows),
)
