"""The fields of retrieval logs, by all the names that they go under, and readers of their cells.

Of the names of a field the first counts that a row has. `docs/rag.md` lists them.
"""

import ast
import contextlib
import dataclasses
import io
import json
import math
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from posgap.foundation.errors import PosgapError, shorten
from posgap.foundation.json_text import parse_json

Fields = Mapping[str, Any]
Taken = Counter[tuple[str, str]]  # (field, the name that it was taken from): how often

# The names of the fields of a row, of lists beside its passages, and, from `text` on, of a passage.
FIELDS: dict[str, list[str]] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
# A passage's ids, those of its smallest part first; a row for each passage has `id` for itself.
IDS = ("chunk_id", "passage_id", "node_id", "pid", "id", "id_", "_id", "doc_id", "docid", "document_id")
# Where passages have one of these names, `answer` is what the chain answered, unless that has another name.
_OF_CHAINS = (
    *("retrieved_contexts", "retrieval_context", "contexts", "context", "source_documents", "source_nodes", "nodes"),
)
_AROUND = ("retriever", "retrieval", "outputs")  # what a pipeline puts around passages
_RESPONSES = ("response", "result", "output", "actual_output", "generated_answer", "prediction", "llm_answer")
_OF_ANYTHING = ("relevance", "label")  # in metadata, where they are no labels
_INNER = ("kwargs", "node", "document")  # LangChain's `dumpd`, LlamaIndex' NodeWithScore, Phoenix
_OF_STORES = ("_source", "payload", "properties", "fields", "entity")  # Elasticsearch, Qdrant, Weaviate, Milvus
_TRUE = (
    *("true", "yes", "y", "j", "x", "+", "✓", "✔", "relevant", "gold", "positive"),
    *("ja", "oui", "si", "sí", "sim", "wahr"),
)
_FALSE = ("false", "no", "n", "-", "irrelevant", "not relevant", "negative", "nein", "non", "não", "falsch", "")
_WIDE = re.compile(r"(?:context|passage|document|doc|chunk|text|retrieved\w*?)_?(\d+)(?:_(text|title|id|score|label))?")
_NUMBERED = re.compile(r"(?mi)^\s*(?:Passage|Document|Doc|Context|Chunk)\s*\[?\d+\]?\s*[:.]\s*")
_MOST_IN_A_CELL = 60  # characters of an answer that stands beside others in a cell
_ENDS_OF_LINES = (tokenize.NL, tokenize.NEWLINE)
_MAX_GRADE = 10  # of relevance; beyond are scores


@dataclasses.dataclass
class LoggedPassage:
    """A passage as a log has it.

    `label` is a grade, above 0 for a relevant passage, or, where `is_share`, a score in a column of labels. `ids` are
    its ids by their names, of which the log's relevant ids have one. `is_pair` says that it came as (document, score).
    """

    title: str
    text: str
    score: float | None = None
    label: float | None = None
    ids: dict[str, str] = dataclasses.field(default_factory=dict)
    rank: float | None = None
    is_share: bool = False
    is_pair: bool = False


def is_filled(cell: Any) -> bool:
    """Whether a cell holds anything: not None, NaN or an empty text."""
    if isinstance(cell, str):
        return bool(cell.strip())
    return cell is not None and not (isinstance(cell, float) and math.isnan(cell))


def find_cell(row: Fields, field: str, taken: Taken | None = None, names: Sequence[str] = ()) -> Any:
    """The first cell of a field's names that is filled, which is noted in `taken`; None where all are empty."""
    for name in names or FIELDS[field]:
        cell = row.get(name)
        if is_filled(cell):
            if taken is not None:
                taken[field, name] += 1
            return cell
    return None


def plain_fields(row: Any, where: str, columns: Mapping[str, str] | None = None) -> Fields:
    """A row by its fields' names in small letters, with _ between words; a name that is so already comes first.

    `columns` says in what columns fields stand that have another name there. Cells of NumPy become lists and numbers.
    """
    cells = _plain_cells(require_mapping(row, where))
    for field, column in (columns or {}).items():
        if _plain_name(column) in cells:
            cells[_first_name(field)] = cells.pop(_plain_name(column))
    if "document_position" in cells:  # Phoenix' frames of retrieved documents
        cells |= {"text": cells.pop("reference", None), "rank": cells["document_position"]}
        cells["score"] = cells.pop("document_score", None)
    return cells


def _plain_cells(row: Fields) -> dict[str, Any]:
    cells = {}
    for name, cell in row.items():
        plain = _plain_name(str(name))
        if plain not in cells or plain == name:
            cells[plain] = cell.tolist() if hasattr(cell, "tolist") else cell
    return cells


def _plain_name(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip().strip("?:*").removeprefix("document."))
    return re.sub(r"[\s-]+", "_", words.strip()).casefold()


def _first_name(field: str) -> str:
    """The name of a field that is looked for first."""
    plain = "answers" if _plain_name(field) == "answer" else _plain_name(field)
    return FIELDS.get(plain, (plain,))[0]


def require_columns(columns: Mapping[str, str]) -> None:
    """`PosgapError` where `--columns` names a field that no log has."""
    known = sorted({*FIELDS, "answer", "id"})
    for field in columns:
        if _plain_name(field) not in known:
            raise PosgapError(f"columns: there is no field {shorten(repr(field))}; name some of {', '.join(known)}")


def list_names(row: Iterable[str]) -> str:
    """The names of a row's fields, for an error."""
    return shorten(", ".join(row)) or "no fields"


def find_question(row: Fields, taken: Taken | None = None) -> str | None:
    """The question of a row; None where it has none."""
    question = _question_text(find_cell(row, "question", taken))
    return question if question and question.strip() else None


def _question_text(value: Any) -> str | None:
    """The question in a cell: a text; the last message of a user; or an object around one, also written as JSON."""
    if isinstance(value, str) and value.strip()[:1] in ("{", "[", '"'):
        with contextlib.suppress(PosgapError):
            return _question_text(parse_json(value, "")) or value
    if isinstance(value, list):
        for message in map(as_mapping, reversed(value)):
            if message.get("role", message.get("type")) in ("user", "human"):
                return _question_text(message.get("content"))
        return _question_text(value[0]) if len(value) == 1 and isinstance(value[0], Mapping) else None
    if isinstance(value, Mapping):
        inner = find_cell(value, "question", names=(*FIELDS["question"], "messages", "content", "text", "value"))
        if inner is None and len(value) == 1:
            (inner,) = value.values()  # as {"match": {"text": ...}}
        return _question_text(inner)
    return value if isinstance(value, str) else None


def require_question(row: Fields, where: str, taken: Taken | None = None) -> str:
    """The question of a row; `PosgapError` where it has none."""
    question = find_question(row, taken)
    if question is None:
        others = ", ".join(FIELDS["question"][1:])
        raise PosgapError(f"{where}: field `question`: missing or empty (also: {others}); found {list_names(row)}")
    return question


def question_key(question: str) -> str:
    """What two writings of one question have in common."""
    return " ".join(question.split()).casefold()


def parse_answers(row: Fields, where: str, taken: Taken | None = None) -> list[str]:
    """The accepted answers of a row; none where it has none."""
    of_chain = not set(_OF_CHAINS).isdisjoint(row) and find_cell(row, "", names=_RESPONSES) is None
    value = find_cell(row, "answers", taken, FIELDS["answers"][:-1] if of_chain else FIELDS["answers"])
    if isinstance(value, str):
        value = _answers_in_cell(value)
    if isinstance(value, Mapping) and ("text" in value or "value" in value):  # SQuAD's and TriviaQA's
        value = [*as_list(value.get("text", value.get("value"))), *as_list(value.get("aliases", []))]
    answers = []
    for answer in as_list(value):
        answer = as_mapping(answer).get("text", answer)
        if not isinstance(answer, str | int | float) and answer is not None:
            raise PosgapError(f"{where}: field `answers`: expected a list of texts, found {shorten(str(answer))}")
        if isinstance(answer, bool):
            answer = "yes" if answer else "no"
        if is_filled(answer):
            answers.append(_write_id(answer))
    return answers


def _answers_in_cell(cell: str) -> Any:
    """What a cell of text holds: a list, as JSON or Python writes it, some answers with ; or | between, or one."""
    value = python_value(cell) if is_list(cell) else None
    if isinstance(value, Mapping) or (isinstance(value, list) and any(map(is_filled, value))):
        return value
    parts = list(filter(None, re.split(r"\s*[;|\n]\s*", cell.strip())))
    return parts if parts and max(map(len, parts)) <= _MOST_IN_A_CELL else cell


def parse_relevant_ids(row: Fields, where: str, taken: Taken | None = None) -> list[str] | None:
    """The ids of a row's relevant passages; None where it says nothing of them. Several in a cell of text stay as they
    are written: only the passages' ids tell whether a comma parts them."""
    value = find_cell(row, "relevant_ids", taken)
    if isinstance(value, str) and is_list(value):
        value = parse_list(value, where, "relevant_ids")
    if isinstance(value, Mapping):  # grades by id, as in TREC's qrels
        grades = {str(id): _parse_label(grade, f"{where}: field `relevant_ids`")[0] or 0 for id, grade in value.items()}
        return [id for id, grade in grades.items() if grade > 0]
    return None if value is None else list(map(_write_id, filter(is_filled, as_list(value))))


def _write_id(value: Any) -> str:
    """An id, or a number, as text; 2.0 is 2, as of a column that had empty cells."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def find_passages(row: Fields, taken: Taken | None = None) -> Any:
    """The cell that holds a row's passages, without what is wrapped around them; None where there is none."""
    for name in (*FIELDS["passages"], *_AROUND, *_RESPONSES):
        value = row.get(name)
        is_named = name in FIELDS["passages"]
        if not is_filled(value) or not isinstance(value, str | list | tuple | Mapping if is_named else Mapping):
            continue
        if isinstance(value, str) and is_list(value) and name not in FIELDS["text"]:
            value = python_value(value) or value
        inner = find_passages(value) if isinstance(value, Mapping) else None  # as in {"hits": {"hits": [...]}}
        value = value if inner is None else inner
        if is_named or isinstance(value, list):
            break
    else:
        name, value = "context_1, context_2 ...", _wide_passages(row)
    if value is not None and taken is not None:
        taken["passages", name] += 1
    return value


def _wide_passages(row: Fields) -> list[dict[str, Any]] | None:
    """The passages of columns context_1, context_2 ..., with a title, id or score in columns of their own; None where
    there are no two."""
    by_number: dict[int, dict[str, Any]] = {}
    for name, cell in row.items():
        column = _WIDE.fullmatch(name)
        if column and is_filled(cell):
            by_number.setdefault(int(column[1]), {})[column[2] or "text"] = cell
    return list(map(by_number.__getitem__, sorted(by_number))) if len(by_number) > 1 else None


def has_passages(row: Fields) -> bool:
    """Whether a row has a list of passages."""
    value = find_passages(row)
    return value is not None and (is_list(value) or _NUMBERED.match(value) is not None)


def parse_passages(row: Fields, where: str, taken: Taken) -> list[LoggedPassage]:
    """The passages that a row has in a list, or in a dict of lists, as `datasets` writes a list of dicts."""
    value = find_passages(row, taken)
    if isinstance(value, str) and _NUMBERED.match(value):  # LongBench
        value = list(filter(None, map(str.strip, _NUMBERED.split(value))))
    elif isinstance(value, str) and not is_list(value):
        raise PosgapError(
            f'{where}: the passages are no list: write them as JSON, ["...", "..."], or one passage a row (docs/rag.md)'
        )
    values = parse_list(value, where, "passages")
    if not (values and _is_scored_pair(values[0])):
        values = _without_list_around(values)
    passages = [parse_passage(each, f"{where}: field `passages`", taken) for each in values]
    add_lists_beside(passages, row, where)
    names = dict.fromkeys(chain.from_iterable(each for each in values if isinstance(each, Mapping)))
    if names and not set(map(_plain_name, names)) & {*FIELDS["text"], *_INNER, *_OF_STORES, "metadata", "meta"}:
        raise PosgapError(_no_text(f"{where}: field `passages`", names))
    return passages


def _is_scored_pair(value: Any) -> bool:
    return isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[1], int | float)


def _no_text(where: str, names: Iterable[str]) -> str:
    return (
        f"{where}: expected a passage's `text` (also: {', '.join(FIELDS['text'][1:])}); found "
        f"{list_names(names)}; --columns names another, like text=Content"
    )


def _without_list_around(values: list[Any]) -> list[Any]:
    """The list in a list of one list, as Chroma answers a query."""
    return values[0] if len(values) == 1 and isinstance(values[0], list) else values


def _transpose(columns: Fields, where: str) -> list[dict[str, Any]]:
    lists = {name: column for name, column in columns.items() if isinstance(column, list)}
    if not lists:  # passages by key, or one
        are_passages = bool(columns) and not set(map(type, columns.values())) - {dict}
        return list(columns.values()) if are_passages else [dict(columns)]
    if len(set(map(len, lists.values()))) > 1:
        raise PosgapError(f"{where}: field `passages`: its lists differ in length")
    return [dict(zip(lists, cells)) for cells in zip(*lists.values())]


def add_lists_beside(passages: Sequence[LoggedPassage], row: Fields, where: str) -> None:
    """Gives passages with a text the ids, scores and distances that a row has in lists of their own."""
    for field in ("passage_ids", "passage_scores", "passage_distances"):
        cell = find_cell(row, field)
        values = [] if cell is None else _without_list_around(parse_list(cell, where, FIELDS[field][0]))
        if cell is not None and len(values) != len(passages):
            raise PosgapError(f"{where}: {len(values)} {FIELDS[field][0]} for {len(passages)} passages")
        for passage, value in zip(passages, values):
            if field == "passage_ids":
                passage.ids[field] = _write_id(value)
                continue
            number = parse_number(value, f"{where}: field `{FIELDS[field][0]}`")
            if number is not None and passage.text.strip() and (field == "passage_scores" or passage.score is None):
                passage.score = number if field == "passage_scores" else -number


def parse_passage(value: Any, where: str, taken: Taken) -> LoggedPassage:
    """A passage from a text, a pair of document and score, or a mapping, in whose `metadata` fields may stand too. One
    without a text, as of a table or an image, has an empty one."""
    if isinstance(value, str):
        return LoggedPassage("", value)
    if _is_scored_pair(value):
        passage = parse_passage(value[0], where, taken)  # (document, score)
        passage.score, passage.is_pair = float(value[1]), True
        return passage
    outer = _plain_cells(require_mapping(value, where))
    inner = outer
    for name in _INNER:
        inner = _plain_cells(inner[name]) if isinstance(inner.get(name), Mapping) else inner
    metadata = _plain_cells(as_mapping(inner.get("metadata", inner.get("meta"))))
    for name in _OF_ANYTHING:
        metadata.pop(name, None)
    parts = (inner, _plain_cells(as_mapping(find_cell(inner, "", names=_OF_STORES))), metadata, outer)
    text = take_first(parts, "text", taken)
    text = as_mapping(inner.get("text_resource")).get("text", "") if text is None else text
    if isinstance(text, list | Mapping):  # as `fields` of Elasticsearch, Bedrock and OpenAI's file search have it
        text = "\n".join(str(as_mapping(part).get("text", part)) for part in as_list(text))
    if not isinstance(text, str):
        raise PosgapError(_no_text(where, inner))
    title = take_first(parts, "title", taken)
    passage = LoggedPassage("" if title is None else str(title), text, ids=_all_ids(parts))
    named: Taken = Counter()
    label = take_first(parts, "label", named)
    for _, name in named:
        passage.label, passage.is_share = _parse_label(label, f"{where}: field `{name}`")
    taken.update(named)
    passage.score = parse_number(take_first(parts, "score", taken), f"{where}: `score`")
    if passage.score is None:
        distance = parse_number(take_first((inner, outer), "distance", taken), f"{where}: `distance`")
        passage.score = None if distance is None else -distance
    passage.rank = parse_number(take_first((inner, outer), "rank", taken), f"{where}: field `rank`")
    return passage


def take_first(parts: Iterable[Fields], field: str, taken: Taken | None = None) -> Any:
    """The first filled cell of a field in the first of some parts of a row that has one; None where none has."""
    cells = (find_cell(part, field, taken) for part in parts)
    return next((cell for cell in cells if cell is not None), None)


def _all_ids(parts: Iterable[Fields]) -> dict[str, str]:
    """The ids of a passage by their names."""
    ids: dict[str, str] = {}
    for part in parts:
        for name in IDS:
            cell = part.get(name)
            if isinstance(cell, str | int | float) and is_filled(cell):
                ids.setdefault(name, _write_id(cell))
    return ids


def _parse_label(label: Any, where: str) -> tuple[float | None, bool]:
    """A label as a grade, which is above 0 for relevant passages, and whether it is a score that stands for one."""
    written = "" if label is None else str(label).strip().lower()
    if written in _TRUE + _FALSE:
        return float(written in _TRUE), False
    try:
        number = parse_number(written.rstrip("%"), where)
    except PosgapError:
        raise PosgapError(
            f"{where}: {shorten(repr(label))} does not say whether the passage is relevant: write true or false, or "
            "a grade; rename the field if it is something else (docs/rag.md)"
        ) from None
    return number, "%" in written or (number is not None and (number % 1 != 0 or number > _MAX_GRADE))


def parse_number(value: Any, where: str) -> float | None:
    """A finite number, also with a comma for its point; None for an empty cell, NaN and infinity."""
    if not is_filled(value):
        return None
    try:
        number = float(value.replace(",", ".") if isinstance(value, str) and value.count(",") == 1 else value)
    except (TypeError, ValueError, OverflowError):
        raise PosgapError(f"{where}: expected a number, found {shorten(repr(value))}") from None
    return number if number - number == 0 else None


def is_list(value: Any) -> bool:
    """Whether a cell may hold a list: anything but a text, or a text that begins like one."""
    return not isinstance(value, str) or value.lstrip().startswith(("[", "{", "array("))


def as_list(value: Any) -> list[Any]:
    """A list of the value, or of what is in it."""
    return list(value) if isinstance(value, list | tuple) else [value]


def parse_list(value: Any, where: str, name: str) -> list[Any]:
    """A list, also as a cell of CSV has it: in JSON, or as Python prints it."""
    read = python_value(value) if isinstance(value, str) else value
    if isinstance(read, Mapping) and name == "passages":
        return _transpose(read, where)
    if isinstance(read, list | tuple) or value is None:
        return list(read or ())
    if isinstance(value, str) and _is_printed_by_numpy(value):
        raise PosgapError(
            f"{where}: field `{name}`: a list as NumPy prints it, whose texts cannot be told apart; write JSON "
            "(json.dumps), or Parquet"
        )
    raise PosgapError(f"{where}: field `{name}`: expected a list, found {shorten(repr(value))}")


def python_value(cell: str) -> Any:
    """The value of a text in JSON, or as Python prints it; None where it is neither. What Python prints of objects, as
    `Document(page_content=...)`, are their fields by name."""
    with contextlib.suppress(PosgapError):
        return parse_json(cell, "")
    if _is_printed_by_numpy(cell):
        return None
    with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError):
        return _value_of(ast.parse(cell.strip(), mode="eval").body)
    return None


def _value_of(node: ast.AST) -> Any:
    if isinstance(node, ast.Call):
        named = {each.arg: _value_of(each.value) for each in node.keywords if each.arg}
        return _value_of(node.args[0]) if node.args else named  # array([...], dtype=object), UUID('...')
    if isinstance(node, ast.List | ast.Tuple):
        return list(map(_value_of, node.elts))
    if isinstance(node, ast.Dict):
        return {_value_of(key): _value_of(value) for key, value in zip(node.keys, node.values) if key}
    if isinstance(node, ast.Name | ast.Attribute):
        return None  # nan, <Enum.member>
    return ast.literal_eval(node)


def _is_printed_by_numpy(cell: str) -> bool:
    """Whether texts stand side by side without a comma, which Python would take for one text."""
    try:
        kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(cell).readline)]
    except (tokenize.TokenError, SyntaxError):
        return False
    return (tokenize.STRING, tokenize.STRING) in pairwise(kind for kind in kinds if kind not in _ENDS_OF_LINES)


def as_mapping(value: Any) -> Fields:
    """The value itself if it is a mapping, or JSON of one, else an empty one."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = python_value(value)
    return value if isinstance(value, Mapping) else {}


def require_mapping(value: Any, where: str) -> Fields:
    """The value itself; `PosgapError` where it is no mapping."""
    if not isinstance(value, Mapping):
        raise PosgapError(f"{where}: expected a JSON object, found {shorten(repr(value))}")
    return value
