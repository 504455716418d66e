"""Readers of what retrievers and chains around them write down: logs, evaluation sets and traces, as ranked examples.

A log is read by the names of its fields, of which `docs/rag.md` lists those that are understood. It may have a row for
each question, with the passages in a list, or a row for each passage. Traces of LangChain (runs, results, documents)
and LlamaIndex (responses, events, nodes) are rows too.
"""

import ast
import contextlib
import io
import logging
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from posgap.foundation.errors import PosgapError, shorten
from posgap.foundation.files import read_rows
from posgap.foundation.json_text import parse_json
from posgap.tasks.examples import Passage, RankedExample
from posgap.tasks.metrics import holds_answer, normalize, sub_exact_match

log = logging.getLogger(__name__)
Relevance = Literal["id", "label", "answer"]

# Names of fields, the first that a row has counting.
QUESTIONS = ("question", "query", "query_str", "user_input", "input", "str_or_query_bundle")
ANSWERS = ("answers", "ground_truths", "ground_truth", "reference_answers", "reference_answer", "reference", "answer")
PASSAGES = (
    *("passages", "retrieved_passages", "retrieved_documents", "retrieved_contexts", "retrieved", "documents", "ctxs"),
    *("contexts", "context", "source_documents", "source_nodes", "nodes", "results", "hits"),
)
# Where passages have one of these names, `answer` is what the chain answered.
_OF_CHAINS = ("retrieved_contexts", "contexts", "context", "source_documents", "source_nodes", "nodes")
RELEVANT_IDS = (
    *("relevant_ids", "relevant_doc_ids", "relevant_docs", "gold_ids", "gold_doc_ids", "positive_ids"),
    "reference_context_ids",
)
_PASSAGE_IDS = ("passage_ids", "retrieved_ids", "retrieved_context_ids", "doc_ids")  # lists beside the passages'
_SCORES = ("scores", "retrieved_scores", "similarities")
TEXTS = ("text", "page_content", "passage_text", "passage", "content", "contents", "body", "document", "context")
TITLES = ("title",)
IDS = ("id", "id_", "_id", "doc_id", "docid", "passage_id", "node_id", "pid", "chunk_id")
SCORES = ("score", "similarity", "relevance_score")
LABELS = ("relevant", "is_relevant", "isgold", "is_gold", "gold", "is_supporting", "is_selected", "relevance", "label")
RANKS = ("rank", "ranking")
QUESTION_IDS = ("question_id", "query_id", "qid")
_TRUE, _FALSE = ("true", "yes", "relevant", "gold", "positive"), ("false", "no", "irrelevant", "not relevant", "")


@dataclass
class ImportReport:
    """What became of a log's questions: how many were left out for a reason, in how many the log left something open,
    how many have relevant passages that were told by their id, label or an answer, how many relevant passages there
    are, how many others hold an answer, and how many of those were dropped."""

    left_out: Counter[str] = field(default_factory=Counter)
    left_open: Counter[str] = field(default_factory=Counter)
    relevance: Counter[str] = field(default_factory=Counter)
    relevant: int = 0
    answering: int = 0
    dropped: int = 0

    def sentences(self) -> list[str]:
        """The same in words."""
        told = [f"{number} questions by {by}" for by, number in self.relevance.items()]
        told = [f"relevant passages: {self.relevant}, told in {' and '.join(told)}"] if told else []
        told += [f"{self.answering} other passages hold an answer too"] if self.answering > self.dropped else []
        told += [f"dropped {self.dropped} passages that are not relevant and hold an answer"] if self.dropped else []
        return [f"left out {number} {why}" for why, number in self.left_out.items()] + told

    def say(self, name: str) -> None:
        """Logs the same of the log that `name` names, and in a line of its own what the log left open."""
        for sentence in self.sentences():
            log.info("%s: %s", name, sentence)
        if self.left_open:
            what = "; ".join(f"in {number} questions {what}" for what, number in self.left_open.items())
            log.warning("%s: %s (docs/rag.md)", name, what)


class Labels(NamedTuple):
    """What a question is labelled with: its accepted answers, and the ids of its relevant passages."""

    answers: list[str]
    ids: list[str] | None


def is_log(row: Mapping[str, Any], table: bool = False) -> bool:
    """Whether a row is of a log or a trace, rather than an example in posgap's own format.

    Any row of a `table` is that has no fields of an example; of JSON lines, which may be faulty examples, one with
    retrieved passages.
    """
    if {"passages", "relevance"} <= set(row):
        return False
    if {"records", "gold", "distractors"} & set(row) and not _is_trace(row):
        return table and "distractors" not in row and "records" not in row
    return table or _is_trace(row) or _retrieved(_fields(row, "a row"))


def read_labels(path: Path) -> dict[str, Labels]:
    """The labels by question of a file with `question`, `answers` and, where relevance goes by them, `relevant_ids`.

    Traces have none of their own. Any format that `posgap.foundation.files.read_rows` reads.
    """
    labels: dict[str, Labels] = {}
    for number, row in read_rows(path):
        where = f"{path}:{number}"
        row = _fields(row, where)
        question = _question(row)
        if question is None:
            raise _without_question(row, where)
        answers, ids = _answers(row, where), _relevant_ids(row, where)
        if before := labels.get(_key(question)):
            answers = list(dict.fromkeys([*before.answers, *answers]))
            ids = before.ids if ids is None else [*(before.ids or []), *ids]
        labels[_key(question)] = Labels(answers, ids)
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
    for number, row in _questions(rows, name, counted):
        example = _ranked(row, number, labels or {}, relevance, counted, f"{name}:{number}")
        if example is not None:
            counted.relevance[example.relevance] += 1
            counted.relevant += len(example.gold)
            counted.answering += sum(holds_answer(document, example.answers) for document in example.distractors)
            yield number, example
    if report is None:
        if not counted.relevant:
            raise PosgapError(f"{name}: no question can be asked: {'; '.join(counted.sentences()) or 'there is none'}")
        counted.say(name)


def without_answering(
    examples: Iterable[tuple[int, RankedExample]], report: ImportReport
) -> Iterator[tuple[int, RankedExample]]:
    """The examples without the passages that are not relevant and yet hold an answer, counted in `report`."""
    for number, example in examples:
        kept = [p for p in example.passages if p.relevant or not holds_answer(p.document, example.answers)]
        report.dropped += len(example.passages) - len(kept)
        yield number, example.model_copy(update={"passages": kept})


def _ranked(
    row: Mapping[str, Any],
    number: int,
    labels: Mapping[str, Labels],
    relevance: str,
    report: ImportReport,
    where: str,
) -> RankedExample | None:
    question = _question(row)
    if question is None:
        raise _without_question(row, where)
    retrieved = list(_passages(row, where))
    answers, ids = labels.get(_key(question)) or Labels(_answers(row, where), _relevant_ids(row, where))
    if not relevance and ids is None and any(passage.label and passage.label % 1 for passage in retrieved):
        report.left_open[
            "labels are no whole numbers, so they are scores; import them as grades by --relevant label"
        ] += 1
        retrieved = [p._replace(label=None, score=p.label if p.score is None else p.score) for p in retrieved]
    if not answers:
        report.left_out["without answers (columns `answers` or `ground_truth`, or a file given as --answers)"] += 1
        return None
    by = relevance or (
        "id" if ids is not None else "label" if any(p.label is not None for p in retrieved) else "answer"
    )
    if by == "id" and (ids is None or not any(passage.id for passage in retrieved)):
        missing = "ids of relevant passages (`relevant_ids`)" if ids is None else "passages with an id"
        raise PosgapError(f"{where}: relevance goes by id, but the row has no {missing}")
    if by == "answer" and all(normalize(answer) in ("yes", "no") for answer in answers):
        report.left_out["answered by yes or no, which tells nothing of passages: they need labels or ids"] += 1
        return None
    passages: dict[tuple[str, str], Passage] = {}
    for each in retrieved:
        relevant = _tells(each, by, answers, ids or [])
        passage = Passage(title=each.title, text=each.text, score=each.score, relevant=relevant, id=each.id)
        first = passages.setdefault((each.title, each.text), passage)
        if relevant and not first.relevant:
            passages[each.title, each.text] = first.model_copy(update={"relevant": True})
    if not any(passage.relevant for passage in passages.values()):
        report.left_out["without a relevant passage among those that were retrieved"] += 1
        return None
    if len(passages) > 1 and all(passage.relevant for passage in passages.values()):
        report.left_out["all of whose passages are relevant, so that position cannot matter"] += 1
        return None
    name = _first(row, ("id", *QUESTION_IDS))
    return RankedExample(
        id=f"rag-{number:06d}" if name is None or isinstance(name, dict | list) else str(name),
        question=question,
        answers=answers,
        passages=list(passages.values()),
        relevance=by,  # type: ignore[arg-type]
    )


class _Retrieved(NamedTuple):
    """A passage as a row has it: with all its ids, of which any may be that of a relevant one."""

    title: str
    text: str
    score: float | None
    label: float | None
    ids: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.ids[0] if self.ids else ""


def _tells(passage: _Retrieved, by: str, answers: Sequence[str], ids: Sequence[str]) -> bool:
    """Whether the passage is relevant, told by its ids, its label or an answer."""
    if by == "answer":
        # Whole words alone: what `holds_answer` finds within a word is no evidence that a passage answers.
        return sub_exact_match(f"{passage.title} {passage.text}", answers)
    return (passage.label or 0) > 0 if by == "label" else any(name in ids for name in passage.ids)


def _questions(
    rows: Iterable[tuple[int, Any]], name: str, report: ImportReport
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yields (number of the first row, row) of each question; the first row with a passage tells the layout."""
    mappings = ((number, _fields(row, f"{name}:{number}")) for number, row in rows)
    leading = []
    for each in mappings:
        leading.append(each)
        if _is_trace(each[1]) or _first(each[1], (*PASSAGES, *TEXTS)) is not None:
            break
    if not leading:
        return
    everything, telling = chain(leading, mappings), leading[-1][1]
    if _is_trace(telling):
        yield from _traced(everything)
    elif _retrieved(telling):
        yield from everything
    elif _first(telling, TEXTS) is not None:
        yield from _grouped(everything, name, report)
    else:
        raise PosgapError(
            f"{name}:{leading[0][0]}: no retrieved passages: expected a field `passages` with a list of them (also: "
            f"{', '.join(PASSAGES[1:])}), or a row for each passage with its `text` (also: {', '.join(TEXTS[1:])}); "
            f"found {_names(telling)} (docs/rag.md)"
        )


class _Row(NamedTuple):
    """A row of one passage."""

    number: int
    rank: float | None
    fields: Mapping[str, Any]


def _grouped(
    rows: Iterable[tuple[int, Mapping[str, Any]]], log_name: str, report: ImportReport
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The rows of questions, of a row for each passage: in the order in which questions come first.

    What a question's rows say of the question is taken from the first that says it; their answers are all accepted.
    """
    of_question: dict[str, list[_Row]] = {}
    for number, row in rows:
        question, name = _question(row), _first(row, QUESTION_IDS)
        if question is None and name is None:
            raise _without_question(row, f"{log_name}:{number}")
        rank = _number(_first(row, RANKS), f"{log_name}:{number}: field `rank`")
        of_question.setdefault(str(name if name is not None else question), []).append(_Row(number, rank, row))
    has_ranks = any(row.rank is not None for numbered in of_question.values() for row in numbered)
    for numbered in of_question.values():
        retrieved = _by_rank(numbered, report) if has_ranks else numbered
        passages = [
            _passage({**row.fields, "id": _first(row.fields, IDS[3:])}, f"{log_name}:{row.number}") for row in retrieved
        ]
        whole: dict[str, Any] = {}
        answers: list[str] = []
        for number, _, fields in numbered:
            of_question_alone = {k: v for k, v in fields.items() if k not in (*TEXTS, *IDS)}
            answers += _answers(of_question_alone, f"{log_name}:{number}")
            whole = {k: v for k, v in of_question_alone.items() if v not in (None, "")} | whole
        if passages:
            accepted = {"answers": list(dict.fromkeys(answers))}
            yield numbered[0].number, whole | accepted | {"passages": passages}


def _by_rank(rows: Sequence[_Row], report: ImportReport) -> list[_Row]:
    """A question's rows of its first retrieval in the order of their ranks, those without a rank behind; empty where
    several retrievals are mixed."""
    runs = list[list[_Row]]()  # the ranks rise within each
    last = 0.0
    for row in rows:
        if not runs or (row.rank is not None and row.rank < last):
            runs.append([])
        runs[-1].append(row)
        last = last if row.rank is None else row.rank
    lowest = min((row.rank for row in rows if row.rank is not None), default=None)
    ranks, equal = _ranks(rows)
    if equal and len(runs) > 1 and all(run[0].rank == lowest and not _ranks(run)[1] for run in runs):
        report.left_open["the ranks begin anew with other passages, and the first retrieval alone counts"] += 1
        rows, equal = runs[0], 0
    elif ranks > 1 and 2 * equal > ranks:
        report.left_out["with several passages at most ranks: give each retrieval a `question_id` of its own"] += 1
        return []
    if equal:
        report.left_open["passages have equal ranks, and keep the order of the file"] += 1
    if any(row.rank is None and _first(row.fields, TEXTS) is not None for row in rows):
        report.left_open["passages have no rank, and stand behind those that have one"] += 1
    return sorted(rows, key=lambda row: (row.rank is None, row.rank or 0))


def _ranks(rows: Iterable[_Row]) -> tuple[int, int]:
    """How many ranks these rows have, and at how many of them more than one passage stands."""
    passages: dict[float, set[str]] = {}
    for row in rows:
        text = _first(row.fields, TEXTS)
        if row.rank is not None and text is not None:
            passages.setdefault(row.rank, set()).add(str(text))
    return len(passages), sum(len(texts) > 1 for texts in passages.values())


def _is_trace(row: Mapping[str, Any]) -> bool:
    return "run_type" in row or ("event_type" in row and "payload" in row) or {"span_id", "timestamp"} <= set(row)


def _traced(rows: Iterable[tuple[int, Mapping[str, Any]]]) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The first retrieval for each question among the runs or events of a trace."""
    done: set[str] = set()
    asked: dict[str, Any] = {}  # questions of events that have begun, by their id
    for number, row in rows:
        for each in _retrievals(row, asked):
            question = _question(each)
            if question is not None and _retrieved(each) and _key(question) not in done:
                done.add(_key(question))
                yield number, each


def _retrievals(row: Mapping[str, Any], asked: dict[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "run_type" in row:  # of LangChain: a run with those that it called
        inputs, outputs = _as_mapping(row.get("inputs")), _as_mapping(row.get("outputs"))
        reference = _as_mapping(row.get("reference_outputs"))
        answers = {name: reference[name] for name in ANSWERS if name in reference}
        yield {**{n: v for n, v in outputs.items() if n not in ANSWERS}, **inputs, **answers}
        children = row.get("child_runs")
        for called in children if isinstance(children, list) else ():
            yield from _retrievals(_as_mapping(called), asked)
    elif "payload" in row:  # of LlamaIndex: an event that begins or ends
        payload, name = _as_mapping(row["payload"]), str(row.get("id_", ""))
        asked.setdefault(name, payload.get("query_str"))
        yield {"query": asked[name], **payload}
    else:
        yield {**row, **_as_mapping(row.get("response"))}


def _question(row: Mapping[str, Any]) -> str | None:
    value = _first(row, QUESTIONS)
    if isinstance(value, Mapping):
        value = _first(value, QUESTIONS)
    return value if isinstance(value, str) and value.strip() else None


def _without_question(row: Mapping[str, Any], where: str) -> PosgapError:
    return PosgapError(
        f"{where}: field `question`: missing or empty (also: {', '.join(QUESTIONS[1:])}); found {_names(row)}"
    )


def _names(row: Mapping[str, Any]) -> str:
    return shorten(", ".join(row)) or "no fields"


def _answers(row: Mapping[str, Any], where: str) -> list[str]:
    names = ANSWERS[:-1] if any(name in row for name in _OF_CHAINS) else ANSWERS
    value = _first(row, names)
    answers = [value] if isinstance(value, str) and not _is_list(value) else _list(value, where, "answers")
    if not all(isinstance(answer, str | int | float) for answer in answers):
        raise PosgapError(f"{where}: field `answers`: expected texts, found {shorten(str(answers))}")
    return [str(answer) for answer in answers if str(answer).strip()]


def _relevant_ids(row: Mapping[str, Any], where: str) -> list[str] | None:
    value = _first(row, RELEVANT_IDS)
    if value is None:
        return None
    if isinstance(value, Mapping):  # grades by id, as in TREC's qrels
        return [
            str(name) for name, grade in value.items() if (_grade(grade, f"{where}: field `relevant_ids`") or 0) > 0
        ]
    plain = isinstance(value, str | int) and not _is_list(value)
    return [str(name) for name in ([value] if plain else _list(value, where, "relevant_ids"))]


def _passages(row: Mapping[str, Any], where: str) -> Iterator[_Retrieved]:
    value = _first(row, PASSAGES)
    if isinstance(value, Mapping):  # a dict of lists, as `datasets` writes a list of dicts
        columns = {name: column for name, column in value.items() if isinstance(column, list)}
        if len({len(column) for column in columns.values()}) > 1:
            raise PosgapError(f"{where}: field `passages`: its lists differ in length")
        value = [dict(zip(columns, cells)) for cells in zip(*columns.values())]
    elif isinstance(value, str) and not _is_list(value):
        raise PosgapError(
            f'{where}: the passages are no list: write them as JSON, ["...", "..."], or one passage a row (docs/rag.md)'
        )
    passages = _list(value, where, "passages")
    ids, scores = (_beside(row, names, len(passages), where) for names in (_PASSAGE_IDS, _SCORES))
    for each, name, score in zip(passages, ids, scores):
        passage = _passage(each, f"{where}: field `passages`")
        if passage.text.strip():
            number = passage.score if score is None else _number(score, f"{where}: field `scores`")
            yield passage._replace(ids=passage.ids + (() if name is None else (str(name),)), score=number)


def _beside(row: Mapping[str, Any], names: Sequence[str], length: int, where: str) -> list[Any]:
    value = _first(row, names)
    values = [None] * length if value is None else _list(value, where, names[0])
    if len(values) != length:
        raise PosgapError(f"{where}: {len(values)} {names[0]} for {length} passages")
    return values


def _passage(value: Any, where: str) -> _Retrieved:
    if isinstance(value, _Retrieved):
        return value
    if isinstance(value, str):
        return _Retrieved("", value, None, None, ())
    if isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[1], int | float):
        return _passage(value[0], where)._replace(score=float(value[1]))  # (document, score)
    outer = _mapping(value, where)
    inner = outer
    for name in ("kwargs", "node", "document"):  # LangChain's `dumpd`, LlamaIndex' NodeWithScore, Phoenix
        inner = inner[name] if isinstance(inner.get(name), Mapping) else inner
    metadata = _as_mapping(inner.get("metadata"))
    around = [inner, metadata, outer]

    def said(names: Sequence[str]) -> Any:
        return next((v for part in around if (v := _first(part, names)) is not None), None)

    text = said(TEXTS) or _as_mapping(inner.get("text_resource")).get("text", "")
    if not isinstance(text, str):
        raise PosgapError(f"{where}: expected a passage's `text` (also: {', '.join(TEXTS[1:])})")
    # What somebody calls a label in the metadata may be of anything.
    label = next(
        (
            _grade(part[name], f"{where}: field `{name}`")
            for part, names in ((inner, LABELS), (outer, LABELS), (metadata, LABELS[:-2]))
            for name in names
            if part.get(name) not in (None, "")
        ),
        None,
    )
    title = said(TITLES)
    return _Retrieved(
        "" if title is None else str(title),
        text,
        _number(said(SCORES), f"{where}: `score`"),
        label,
        tuple(dict.fromkeys(str(part[n]) for part in around for n in IDS if isinstance(part.get(n), str | int))),
    )


def _grade(label: Any, where: str) -> float | None:
    """A label as a grade, of which those above 0 are of relevant passages."""
    if isinstance(label, str) and label.strip().lower() in _TRUE + _FALSE:
        return float(label.strip().lower() in _TRUE)
    try:
        return _number(label, where)
    except PosgapError:
        raise PosgapError(
            f"{where}: {shorten(repr(label))} does not say whether the passage is relevant: write true or false, or "
            "a grade; rename the field if it is something else (docs/rag.md)"
        ) from None


def _number(value: Any, where: str) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise PosgapError(f"{where}: expected a number, found {shorten(repr(value))}") from None
    return number if number - number == 0 else None  # no NaN, no infinity


def _first(row: Mapping[str, Any], names: Iterable[str]) -> Any:
    """The first field of these names that is not empty, as the cells of tables may be."""
    cells = (row.get(name) for name in names)
    return next((cell for cell in cells if cell is not None and cell != ""), None)


def _retrieved(row: Mapping[str, Any]) -> bool:
    """Whether a row has a list of passages."""
    value = _first(row, PASSAGES)
    return value is not None and _is_list(value)


def _key(question: str) -> str:
    return " ".join(question.split()).casefold()


def _is_list(value: Any) -> bool:
    return not isinstance(value, str) or value.lstrip().startswith(("[", "{"))


def _list(value: Any, where: str, name: str) -> list[Any]:
    """A list, also as a cell of CSV has it: in JSON, or as Python prints it."""
    if isinstance(value, str):
        try:
            value = parse_json(value, where)
        except PosgapError:
            if _is_numpy_s(value):
                raise PosgapError(
                    f"{where}: field `{name}`: a list as NumPy prints it, whose texts cannot be told apart; write JSON "
                    "(json.dumps), or Parquet"
                ) from None
            with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
                value = ast.literal_eval(value)
    if value is None:
        return []
    if not isinstance(value, list | tuple):
        raise PosgapError(f"{where}: field `{name}`: expected a list, found {shorten(repr(value))}")
    return list(value)


def _is_numpy_s(cell: str) -> bool:
    """Whether texts stand side by side without a comma, which Python would take for one text."""
    try:
        of_texts = [
            token.type == tokenize.STRING
            for token in tokenize.generate_tokens(io.StringIO(cell).readline)
            if token.type not in (tokenize.NL, tokenize.NEWLINE)
        ]
    except (tokenize.TokenError, SyntaxError):
        return False
    return any(left and right for left, right in pairwise(of_texts))


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise PosgapError(f"{where}: expected a JSON object, found {shorten(repr(value))}")
    return value


def _fields(row: Any, where: str) -> Mapping[str, Any]:
    """A row by the names of its fields without regard to case and surrounding space; a name as it is comes first."""
    row = _mapping(row, where)
    cells = {str(name).strip().casefold(): cell for name, cell in row.items()}
    return {name: row.get(name, cell) for name, cell in cells.items()}


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
