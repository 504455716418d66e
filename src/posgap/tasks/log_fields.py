"""The fields of retrieval logs, by all the names that they go under, and readers of their cells.

Of the names of a field the first counts that a row has. `docs/rag.md` lists them.
"""

import ast
import contextlib
import io
import tokenize
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from posgap.foundation.errors import PosgapError, shorten
from posgap.foundation.json_text import parse_json

Fields = Mapping[str, Any]

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
_PASSAGE_SCORES = ("scores", "retrieved_scores", "similarities")
TEXTS = ("text", "page_content", "passage_text", "passage", "content", "contents", "body", "document", "context")
_TITLES = ("title",)
IDS = ("id", "id_", "_id", "doc_id", "docid", "passage_id", "node_id", "pid", "chunk_id")
PASSAGE_IDS = IDS[3:]  # those that a row for each passage does not have for the question's
_SCORES = ("score", "similarity", "relevance_score")
_LABELS = ("relevant", "is_relevant", "isgold", "is_gold", "gold", "is_supporting", "is_selected", "relevance", "label")
_LABELS_IN_METADATA = _LABELS[:-2]  # where `relevance` and `label` may be of anything
RANKS = ("rank", "ranking")
QUESTION_IDS = ("question_id", "query_id", "qid")
_TRUE, _FALSE = ("true", "yes", "relevant", "gold", "positive"), ("false", "no", "irrelevant", "not relevant", "")


class LoggedPassage(NamedTuple):
    """A passage as a log has it.

    `label` is a grade, above 0 for a relevant passage, and `rank` its place in a column of ranks; both may be unknown.
    Any of `ids` may be that of a relevant one.
    """

    title: str
    text: str
    score: float | None = None
    label: float | None = None
    ids: tuple[str, ...] = ()
    rank: float | None = None

    @property
    def id(self) -> str:
        """The first of its ids; empty where it has none."""
        return self.ids[0] if self.ids else ""


def first_cell(row: Fields, names: Iterable[str]) -> Any:
    """Returns the first field of these names that is not empty, as the cells of tables may be; None where all are."""
    for name in names:
        cell = row.get(name)
        if cell is not None and cell != "":
            return cell
    return None


def plain_fields(row: Any, where: str) -> Fields:
    """A row by its fields' names in lower case without surrounding space; a name that is so already comes first."""
    row = _require_mapping(row, where)
    cells = {str(name).strip().casefold(): cell for name, cell in row.items()}
    return {name: row.get(name, cell) for name, cell in cells.items()}


def list_names(row: Fields) -> str:
    """The names of a row's fields, for an error."""
    return shorten(", ".join(row)) or "no fields"


def find_question(row: Fields) -> str | None:
    """The question of a row; None where it has none."""
    value = first_cell(row, QUESTIONS)
    if isinstance(value, Mapping):
        value = first_cell(value, QUESTIONS)
    return value if isinstance(value, str) and value.strip() else None


def require_question(row: Fields, where: str) -> str:
    """The question of a row; `PosgapError` where it has none."""
    question = find_question(row)
    if question is None:
        others = ", ".join(QUESTIONS[1:])
        raise PosgapError(f"{where}: field `question`: missing or empty (also: {others}); found {list_names(row)}")
    return question


def question_key(question: str) -> str:
    """What two writings of one question have in common."""
    return " ".join(question.split()).casefold()


def parse_answers(row: Fields, where: str) -> list[str]:
    """The accepted answers of a row; none where it has none."""
    of_chain = any(name in row for name in _OF_CHAINS)
    value = first_cell(row, ANSWERS[:-1] if of_chain else ANSWERS)
    answers = [value] if isinstance(value, str) and not is_list(value) else _parse_list(value, where, "answers")
    if not all(isinstance(answer, str | int | float) for answer in answers):
        raise PosgapError(f"{where}: field `answers`: expected texts, found {shorten(str(answers))}")
    return [str(answer) for answer in answers if str(answer).strip()]


def parse_relevant_ids(row: Fields, where: str) -> list[str] | None:
    """The ids of a row's relevant passages; None where it says nothing of them."""
    value = first_cell(row, RELEVANT_IDS)
    if value is None:
        return None
    if isinstance(value, Mapping):  # grades by id, as in TREC's qrels
        grades = {str(name): _parse_grade(grade, f"{where}: field `relevant_ids`") for name, grade in value.items()}
        return [name for name, grade in grades.items() if grade and grade > 0]
    if isinstance(value, str | int) and not is_list(value):
        return [str(value)]
    return [str(name) for name in _parse_list(value, where, "relevant_ids")]


def has_passages(row: Fields) -> bool:
    """Whether a row has a list of passages."""
    value = first_cell(row, PASSAGES)
    return value is not None and is_list(value)


def parse_passages(row: Fields, where: str) -> list[LoggedPassage]:
    """The passages that a row has in a list, or in a dict of lists, as `datasets` writes a list of dicts."""
    value = first_cell(row, PASSAGES)
    if isinstance(value, Mapping):
        value = _transpose(value, where)
    elif isinstance(value, str) and not is_list(value):
        raise PosgapError(
            f'{where}: the passages are no list: write them as JSON, ["...", "..."], or one passage a row (docs/rag.md)'
        )
    passages = [parse_passage(each, f"{where}: field `passages`") for each in _parse_list(value, where, "passages")]
    return add_lists_beside(passages, row, where)


def _transpose(columns: Fields, where: str) -> list[dict[str, Any]]:
    lists = {name: column for name, column in columns.items() if isinstance(column, list)}
    if len({len(column) for column in lists.values()}) > 1:
        raise PosgapError(f"{where}: field `passages`: its lists differ in length")
    return [dict(zip(lists, cells)) for cells in zip(*lists.values())]


def add_lists_beside(passages: Sequence[LoggedPassage], row: Fields, where: str) -> list[LoggedPassage]:
    """Gives passages with a text the ids and scores that a row has in lists of their own."""
    ids = _list_beside(row, _PASSAGE_IDS, len(passages), where)
    scores = _list_beside(row, _PASSAGE_SCORES, len(passages), where)
    completed = []
    for passage, name, score in zip(passages, ids, scores):
        if name is not None:
            passage = passage._replace(ids=(*passage.ids, str(name)))
        if score is not None and passage.text.strip():
            passage = passage._replace(score=parse_number(score, f"{where}: field `scores`"))
        completed.append(passage)
    return completed


def _list_beside(row: Fields, names: Sequence[str], length: int, where: str) -> list[Any]:
    value = first_cell(row, names)
    values = [None] * length if value is None else _parse_list(value, where, names[0])
    if len(values) != length:
        raise PosgapError(f"{where}: {len(values)} {names[0]} for {length} passages")
    return values


def parse_passage(value: Any, where: str) -> LoggedPassage:
    """A passage from a text, a pair of document and score, or a mapping, in whose `metadata` fields may stand too."""
    if isinstance(value, str):
        return LoggedPassage("", value)
    if isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[1], int | float):
        return parse_passage(value[0], where)._replace(score=float(value[1]))  # (document, score)
    outer = _require_mapping(value, where)
    inner = outer
    for name in ("kwargs", "node", "document"):  # LangChain's `dumpd`, LlamaIndex' NodeWithScore, Phoenix
        inner = inner[name] if isinstance(inner.get(name), Mapping) else inner
    metadata = as_mapping(inner.get("metadata"))
    parts = (inner, metadata, outer)
    text = _first_of(parts, TEXTS) or as_mapping(inner.get("text_resource")).get("text", "")
    if not isinstance(text, str):
        raise PosgapError(f"{where}: expected a passage's `text` (also: {', '.join(TEXTS[1:])})")
    label = None
    for part, names in ((inner, _LABELS), (outer, _LABELS), (metadata, _LABELS_IN_METADATA)):
        named = next((name for name in names if part.get(name) not in (None, "")), None)
        if named:
            label = _parse_grade(part[named], f"{where}: field `{named}`")
            break
    title = _first_of(parts, _TITLES)
    score = parse_number(_first_of(parts, _SCORES), f"{where}: `score`")
    return LoggedPassage("" if title is None else str(title), text, score, label, _all_ids(parts))


def _first_of(parts: Iterable[Fields], names: Sequence[str]) -> Any:
    for part in parts:
        cell = first_cell(part, names)
        if cell is not None:
            return cell
    return None


def _all_ids(parts: Iterable[Fields]) -> tuple[str, ...]:
    ids: dict[str, None] = {}
    for part in parts:
        for name in IDS:
            if isinstance(part.get(name), str | int):
                ids[str(part[name])] = None
    return tuple(ids)


def _parse_grade(label: Any, where: str) -> float | None:
    """A label as a grade, which is above 0 for relevant passages."""
    if isinstance(label, str) and label.strip().lower() in _TRUE + _FALSE:
        return float(label.strip().lower() in _TRUE)
    try:
        return parse_number(label, where)
    except PosgapError:
        raise PosgapError(
            f"{where}: {shorten(repr(label))} does not say whether the passage is relevant: write true or false, or "
            "a grade; rename the field if it is something else (docs/rag.md)"
        ) from None


def parse_number(value: Any, where: str) -> float | None:
    """A finite number; None for an empty cell, NaN and infinity."""
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise PosgapError(f"{where}: expected a number, found {shorten(repr(value))}") from None
    return number if number - number == 0 else None


def is_list(value: Any) -> bool:
    """Whether a cell may hold a list: anything but a text, or a text that begins like one."""
    return not isinstance(value, str) or value.lstrip().startswith(("[", "{"))


def _parse_list(value: Any, where: str, name: str) -> list[Any]:
    """A list, also as a cell of CSV has it: in JSON, or as Python prints it."""
    if isinstance(value, str):
        try:
            value = parse_json(value, where)
        except PosgapError:
            if _is_printed_by_numpy(value):
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


def _is_printed_by_numpy(cell: str) -> bool:
    """Whether texts stand side by side without a comma, which Python would take for one text."""
    blank = (tokenize.NL, tokenize.NEWLINE)
    try:
        kinds = [
            token.type for token in tokenize.generate_tokens(io.StringIO(cell).readline) if token.type not in blank
        ]
    except (tokenize.TokenError, SyntaxError):
        return False
    return (tokenize.STRING, tokenize.STRING) in pairwise(kinds)


def as_mapping(value: Any) -> Fields:
    """The value itself if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def _require_mapping(value: Any, where: str) -> Fields:
    if not isinstance(value, Mapping):
        raise PosgapError(f"{where}: expected a JSON object, found {shorten(repr(value))}")
    return value
