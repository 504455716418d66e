"""The fields of a retrieval log's rows: its question, its accepted answers, its passages.

`log_formats.json` declares what is known of exports: the names of each field, and formats whose fields stand elsewhere.
In a format, `has` are the paths that identify it, `lift` the object whose fields count as the row's, `take` the paths
of fields, `rename` and `passage` other names within the row and its passages, `order` the field that sorts passages,
and `index_of` the lists whose passages `results` orders by index.
"""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NoReturn

from posgap.data.log_cells import (
    TABLE,
    Fields,
    as_list,
    as_mapping,
    as_text,
    ask,
    fold,
    is_filled,
    is_list,
    list_names,
    opened,
    parse_grade,
    parse_list,
    parse_number,
    pick,
    plain_cells,
    plain_name,
    python_value,
    root_of,
)
from posgap.foundation.errors import Ambiguous, BadOption, Malformed, shorten

FIELDS: dict[str, list[str]] = TABLE["fields"]
_ROOTS = [{root_of(path) for path in form["has"]} for form in TABLE["formats"]]  # the fields of a row of each format
NUMBERS = ("rank", "reranked", "score", "distance")
_OF_ANYTHING = ("relevance", "label")  # in metadata, where they are no labels
_WIDE = re.compile(
    r"(?:context|passage|document|doc|chunk|text|news|retrieved\w*?)_?(\d+)(?:_(text|title|id|score|label))?"
)
_NUMBERED = re.compile(r"(?mi)^\s*(?:Passage|Document|Doc|Context|Chunk)\s*\[?\d+\]?\s*[:.]\s*")
_QUOTED_TITLE = re.compile(r'"([^"\n]*)"\n(.+)', re.DOTALL)  # as FlashRAG's corpora have it
_MOST_IN_A_CELL = 60  # characters of an answer that stands beside others in a cell
_TELLING, _LONG = 12, 40  # characters of a passage that stand in no question by chance, and of one that tells alone


@dataclass
class LoggedPassage:
    """A passage as a log has it: its numbers, grades and ids by the names that they have there. `is_listed`: it came in
    a store's response or as (document, score), which list the best first. `is_named`: its id is a relevant one."""

    title: str
    text: str
    numbers: dict[str, float] = field(default_factory=dict)
    labels: dict[str, float] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)
    is_listed: bool = False
    is_named: bool = False

    @property
    def score(self) -> float | None:
        """Its first number that is no rank, the higher the better; None if it has none."""
        signed = (
            -number if "distance" in name else number
            for name, number in self.numbers.items()
            if name not in FIELDS["rank"]
        )
        return next(signed, None)


@dataclass
class LogFields:
    """Reads fields by the names of the table, or by the column that `columns` names; notes in `taken` what was found
    where (field, name), in `formats` the formats, and in `orders` the order that they declare."""

    columns: Mapping[str, str] = field(default_factory=dict)
    taken: Counter[tuple[str, str]] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    orders: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.names = {name: list(names) for name, names in FIELDS.items()}
        self.named: dict[str, str] = {}
        for given, column in self.columns.items():
            name = {"answer": "answers"}.get(plain_name(given), plain_name(given))
            if name not in self.names:
                known = ", ".join(sorted([*FIELDS, "answer"]))
                raise BadOption(f"columns: no field {shorten(repr(given))}; name some of {known}")
            plain = plain_name(column)
            for names in self.names.values():
                if plain in names:
                    names.remove(plain)
            self.names[name] = [plain]
            self.named[name] = plain
        self.paths = [path for path in self.named.values() if "." in path]
        if "question" in self.named:
            self.names["sent"] = []

    def row(self, row: Any, where: str) -> Fields:
        """A row's fields by plain names, as its format means them."""
        cells = plain_cells(row, where)
        for form, roots in zip(TABLE["formats"], _ROOTS):
            if roots <= cells.keys() and all(is_filled(pick(cells, path)) for path in form["has"]):
                cells = self._shaped(cells, form, where)
        return cells

    def _shaped(self, cells: dict[str, Any], form: Mapping[str, Any], where: str) -> dict[str, Any]:
        self.formats[form["name"]] += 1
        if "order" in form:
            self.orders.add(form["order"])
        for outer in form.get("lift", ()):
            cells = {**plain_cells(as_mapping(cells[outer])), **cells}
        for field_, paths in form.get("take", {}).items():
            if field_ in self.named:  # the user's column, and not the format's
                continue
            found = list(chain.from_iterable(as_list(pick(cells, path)) for path in paths))
            if field_ == "passages":
                names = form.get("passage", {})
                cells_of = [plain_cells(each if isinstance(each, Mapping) else {"text": each}) for each in found]
                found = [{names.get(name, name): cell for name, cell in each.items()} for each in cells_of]
                cells = {name: cell for name, cell in cells.items() if name not in self.names["passages"]}
            cells[self.names[field_][0]] = found[0] if field_ == "question" and len(found) == 1 else found
        for name in form.get("index_of", ()):
            texts = as_list(cells.get(name))
            ranked = list(map(as_mapping, pick(cells, "results[]")))
            if not all(each.get("index") in range(len(texts)) for each in ranked):
                raise Malformed(f"field `results`: has an `index` that is not from 0 to {len(texts) - 1}", at=where)
            del cells[name], cells["results"]
            cells[self.names["passages"][0]] = [{**each, "document": texts[each["index"]]} for each in ranked]
        for old, new in form.get("rename", {}).items():
            if old in cells:
                cells[new] = cells.pop(old)
        return cells

    def whole(self, part: Fields) -> Fields:
        """A part of a row with what stands at the paths that `columns` names."""
        return {**part, **{path: pick(part, path) for path in self.paths}} if self.paths else part

    def cells(self, field_: str, *parts: Fields) -> Iterator[tuple[str, Any]]:
        """Yields the name and the cell of each filled cell of a field in some parts of a row, the likelier first."""
        for part in map(self.whole, parts):
            for name in self.names[field_]:
                if name in part and is_filled(part[name]):
                    yield name, part[name]

    def cell(self, field_: str, *parts: Fields) -> Any:
        """The first filled cell of a field in some parts of a row; None if none has one."""
        for name, cell in self.cells(field_, *parts):
            self.taken[field_, name] += 1
            return cell
        return None

    def find_question(self, row: Fields) -> str | None:
        """Returns the first question that a row has; None if it has none."""
        return next(iter(self._questions(row).values()), None)

    def _questions(self, row: Fields) -> dict[str, str]:
        """All texts of a row that may be its question, by the names of their fields, the likelier first."""
        found = {}
        whole = self.whole(row)
        for name in [*self.names["question"], *self.names["sent"]]:
            text = _question_text(whole.get(name)) if name in whole else None
            if text and text.strip():
                found[name] = text
        return found

    def question(self, row: Fields, where: str, passages: Sequence[LoggedPassage] = ()) -> str:
        """The question of a row with these passages. Raises `PosgapError` if it has none, if it is a whole prompt that
        holds them, and if two fields have questions that differ."""
        found = self._questions(row)
        texts = [fold(passage.text) for passage in passages]
        prompts = [name for name, text in found.items() if _holds(fold(text), texts)]
        bare = {name: text for name, text in found.items() if name not in prompts}
        # What was sent to a model may have more around the question, and a query to a store is an object.
        asked = {name: text for name, text in bare.items() if name in self.names["question"]}
        asked = {name: text for name, text in asked.items() if isinstance(row.get(name), str)} or asked or bare
        if not asked and prompts:
            maybe = _fields_within(row, found[prompts[0]], texts) or "NAME"
            what = f"field `{prompts[0]}`: holds the passages, so it is a prompt"
            ask(what, f"--columns question={maybe}", where=where)
        if not asked:
            names = ", ".join([*FIELDS["question"][1:], *FIELDS["sent"]])
            raise Malformed(f"{where}: field `question`: missing or empty (also: {names}); found {list_names(row)}")
        if len({fold(text) for text in asked.values()}) > 1:
            _ask_which(asked, "questions", "question", where)
        name = next(iter(asked))
        self.taken["question", name] += 1
        return asked[name]

    def answers(self, row: Fields, where: str) -> list[str]:
        """The accepted answers of a row; none if it has none. Raises `PosgapError` if two fields have answers that
        differ, or if a cell may have one answer or several."""
        is_chain_s = not set(TABLE["of_chains"]).isdisjoint(row)
        is_chain_s = is_chain_s and not any(is_filled(row.get(name)) for name in TABLE["responses"])
        context = opened(row.get("context")) or [""]
        is_chain_s = is_chain_s and not all(map(_is_titled, as_list(context)))  # HotpotQA
        found: dict[str, list[str]] = {}
        for name, cell in self.cells("answers", row):
            is_last = name == FIELDS["answers"][-1] and "answers" not in self.named
            answers = [] if is_last and (is_chain_s or found) else _read_answers(cell, where, name)
            if answers:
                found[name] = answers
        every = {fold(answer) for answers in found.values() for answer in answers}
        for name, answers in found.items():
            if every == {fold(answer) for answer in answers}:
                self.taken["answers", name] += 1
                return answers
        return _ask_which(found, "answers", "answer", where) if found else []

    def relevant_ids(self, row: Fields, where: str) -> list[str] | None:
        """The ids of a row's relevant passages; None if it says nothing of them. Several in a cell of text stay as they
        are written: only the passages' ids tell whether a comma parts them."""
        value = self.cell("relevant_ids", row)
        if value is None:
            return [] if any(isinstance(row.get(name), list) for name in self.names["relevant_ids"]) else None
        here = f"{where}: field `relevant_ids`"
        if as_mapping(value):  # grades by id, as in TREC's qrels
            return [str(id) for id, grade in as_mapping(value).items() if parse_grade(grade, here) > 0]
        value = parse_list(value, here) if isinstance(value, str) and is_list(value) else value
        ids = chain.from_iterable(map(as_list, as_list(value)))  # AutoRAG has lists of lists
        return [as_text(id) for id in ids if is_filled(id)]

    def find_passages(self, row: Fields) -> tuple[str, Any]:
        """The name and the cell of a row's passages, without what is wrapped around them; None if it has none."""
        for name in (*self.names["passages"], *TABLE["around_passages"], *TABLE["responses"]):
            value = row.get(name)
            if not is_filled(value):
                continue
            is_named = name in self.names["passages"]
            if not isinstance(value, Mapping) and not (is_named and isinstance(value, str | list | tuple)):
                continue
            value = value if name in FIELDS["text"] else opened(value)
            if isinstance(value, str) and _NUMBERED.match(value):  # LongBench
                value = [text.strip() for text in _NUMBERED.split(value) if text.strip()]
            inner = self.find_passages(value)[1] if isinstance(value, Mapping) else None  # {"hits": {"hits": [...]}}
            value = value if inner is None else inner
            if is_named or isinstance(value, list):
                return name, value
        wide: dict[int, dict[str, Any]] = {}
        for name, cell in row.items():
            if (column := _WIDE.fullmatch(name)) and is_filled(cell):
                wide.setdefault(int(column[1]), {})[column[2] or "text"] = cell
        return "context_1, context_2 ...", [wide[n] for n in sorted(wide)] if len(wide) > 1 else None

    def has_passages(self, row: Fields) -> bool:
        """Whether a row has a list of passages."""
        _, value = self.find_passages(row)
        return value is not None and is_list(value)

    def passages(self, row: Fields, where: str) -> list[LoggedPassage]:
        """The passages that a row has in a list, or in a dict of lists, as `datasets` writes a list of dicts."""
        name, value = self.find_passages(row)
        here = f"{where}: field `{name if name in row else 'passages'}`"
        if value is not None:
            self.taken["passages", name] += 1
        if isinstance(value, str) and not is_list(value):
            what = 'a text and no list of passages: write them as JSON, ["...", "..."], or one passage a row'
            raise Malformed(f"{what} (docs/log-fields.md)", at=here)
        passages = self._listed(value, here)
        for other, cell in self.cells("passages", row) if name not in TABLE["weak_passages"] else ():
            if other in (name, *TABLE["weak_passages"]) or not is_list(cell):
                continue
            with contextlib.suppress(Malformed):  # what has no texts is no other reading
                others = self._listed(cell, here)
                if [each.text for each in others] != [each.text for each in passages]:
                    _ask_which([name, other], "passages", "passages", where)
        for passage in passages:
            passage.is_listed = passage.is_listed or name in TABLE["lists_best_first"]
        self.add_lists_beside(passages, row, where)
        return passages

    def _listed(self, value: Any, where: str) -> list[LoggedPassage]:
        return [self.passage(each, where) for each in _column(value, where)]

    def add_lists_beside(self, passages: Sequence[LoggedPassage], row: Fields, where: str) -> None:
        """Gives passages the ids, scores and distances that a row has in lists of their own."""
        for field_ in ("passage_ids", "passage_scores", "passage_distances"):
            name, cell = next(self.cells(field_, row), ("", None))
            if cell is None:
                continue
            values = _column(cell, f"{where}: field `{name}`")
            if len(values) != len(passages):
                raise Malformed(f"{where}: {len(values)} {name} for {len(passages)} passages")
            for passage, value in zip(passages, values):
                if field_ == "passage_ids":
                    passage.ids[name] = as_text(value)
                elif (number := parse_number(value, f"{where}: field `{name}`")) is not None:
                    passage.numbers[name] = number

    def passage(self, value: Any, where: str) -> LoggedPassage:
        """A passage from a text, a pair of document and score or of title and sentences, the turns of a conversation,
        or a mapping, in whose `metadata` fields may stand too. One without a text, as of an image, has an empty one."""
        if isinstance(value, str):
            return LoggedPassage("", value)
        if _is_titled(value):
            return LoggedPassage(str(value[0]), " ".join(str(sentence).strip() for sentence in value[1]))
        if _is_pair(value):
            passage = self.passage(value[0], where)  # (document, score)
            passage.numbers = {"score": float(value[1])}
            passage.is_listed = True
            return passage
        if isinstance(value, list) and value and all("role" in as_mapping(turn) for turn in value):
            return LoggedPassage("", "\n".join(f"{turn['role']}: {turn.get('content', '')}" for turn in value))
        outer = plain_cells(value, where)
        inner = outer
        for name in TABLE["inner"]:
            inner = plain_cells(inner[name]) if isinstance(inner.get(name), Mapping) else inner
        metadata = plain_cells(as_mapping(inner.get("metadata", inner.get("meta"))))
        metadata = {name: cell for name, cell in metadata.items() if name not in _OF_ANYTHING}
        store = next((name for name in TABLE["of_stores"] if is_filled(inner.get(name))), "")
        stored = plain_cells(as_mapping(inner.get(store)))
        parts = [part for part in (inner, stored, metadata, outer) if part]
        passage = LoggedPassage("", self._text(parts, where), is_listed=bool(stored))
        title = self.cell("title", *parts)
        passage.title = "" if title is None else str(title)
        if title is None and "contents" in inner and (quoted := _QUOTED_TITLE.fullmatch(passage.text)):
            passage.title, passage.text = quoted.groups()
        for name, cell in self.cells("id", *parts):
            if isinstance(cell, str | int | float):
                passage.ids.setdefault(name, as_text(cell))
        for name, cell in self.cells("label", *parts):
            self.taken["label", name] += 1
            passage.labels.setdefault(name, parse_grade(cell, f"{where}: field `{name}`"))
        for field_ in NUMBERS:
            for name, cell in self.cells(field_, *(parts if field_ in ("score", "reranked") else (inner, outer))):
                if (number := parse_number(cell, f"{where}: field `{name}`")) is not None:
                    passage.numbers.setdefault(name, number)
        return passage

    def _text(self, parts: Sequence[Fields], where: str) -> str:
        text = self.cell("text", *parts)
        names = dict.fromkeys(chain.from_iterable(parts))
        without = {*self.names["text"], "metadata", "meta", "image", *TABLE["inner"], *TABLE["of_stores"]}
        if isinstance(text, list | Mapping):  # as `fields` of Elasticsearch, Bedrock and OpenAI's file search have it
            text = "\n".join(str(as_mapping(part).get("text", part)) for part in as_list(text))
        if not isinstance(text, str) and (text is not None or without.isdisjoint(names)):
            what = f"expected a passage's `text`; found {list_names(names)}; --columns names another, like text=Content"
            raise Malformed(f"{what} (docs/log-fields.md)", at=where)
        return text or ""

    def is_unanswerable(self, row: Fields, answers: Sequence[str], id: str) -> bool:
        """Whether a row says that its question has no answer: by its answers, its id or a field of its own."""
        signs = TABLE["unanswerable"]
        says = any(str(row.get(name)).casefold() == value for name, value in signs["fields"].items())
        none = bool(answers) and all(fold(answer).strip(".!") in signs["answers"] for answer in answers)
        return says or none or id.endswith(signs["id_ends"])


def _column(value: Any, where: str) -> list[Any]:
    """A list of passages, or of their ids or numbers, without the list around it in which Chroma answers a query."""
    values = parse_list(value, where)
    is_inner = len(values) == 1 and isinstance(values[0], list) and not _is_pair(values[0])
    return values[0] if is_inner else values


def _ask_which(names: Iterable[str], what: str, field_: str, where: str) -> NoReturn:
    """Raises `Ambiguous` for fields of a row that differ."""
    listed = " and ".join(f"`{name}`" for name in names)
    ask(f"{listed} have different {what}", *(f"--columns {field_}={name}" for name in names), where=where)


def _question_text(value: Any) -> str | None:
    """The question in a cell: a text; the last message of a user; or an object around one, also written as JSON."""
    if isinstance(value, str) and value.strip()[:1] in ("{", "[", '"'):
        return _question_text(python_value(value)) or value
    if isinstance(value, list):
        for message in map(as_mapping, reversed(value)):
            if message.get("role", message.get("type")) in ("user", "human"):
                return _question_text(message.get("content"))
        return _question_text(value[0]) if len(value) == 1 and isinstance(value[0], Mapping) else None
    if isinstance(value, Mapping):
        names = (*FIELDS["question"], *FIELDS["sent"], "content", "text", "value", "raw")
        inner = next((value[name] for name in names if is_filled(value.get(name))), None)
        if inner is None and len(value) == 1:
            (inner,) = value.values()  # as {"match": {"text": ...}}
        return _question_text(inner)
    return value if isinstance(value, str) else None


def _holds(question: str, texts: Iterable[str]) -> bool:
    """Whether a question holds passages: two of them, or a long one, if only by their beginnings."""
    beginnings = {text[:_LONG] for text in texts if len(text) >= _TELLING}
    held = [beginning for beginning in beginnings if beginning in question]
    return len(held) > 1 or any(len(beginning) == _LONG for beginning in held)


def _fields_within(row: Fields, prompt: str, texts: Sequence[str]) -> str:
    """The name of a field whose text stands in a prompt and is no passage; empty if there is none."""
    whole = fold(prompt)
    cells = [(name, fold(cell)) for name, cell in row.items() if isinstance(cell, str)]
    inner = [(name, cell) for name, cell in cells if _TELLING <= len(cell) < len(whole) and cell in whole]
    return next((name for name, cell in inner if cell not in texts and not _holds(cell, texts)), "")


def _read_answers(value: Any, where: str, name: str) -> list[str]:
    """The answers in a cell: one or a list, several with ; or | between, answers of SQuAD, TriviaQA and BioASQ."""
    if isinstance(value, str):
        value = _answers_in_cell(value, f"{where}: field `{name}`")
    if isinstance(value, Mapping):
        cells = plain_cells(value)
        if "text" in cells or "value" in cells:
            value = [*as_list(cells.get("text", cells.get("value"))), *as_list(cells.get("aliases", []))]
    values = as_list(value)
    if name in ("expected_answers", "generation_gt"):
        values = list(chain.from_iterable(map(as_list, values)))
    texts = [as_mapping(each).get("text", each) for each in values]
    for each in texts:
        if not isinstance(each, str | int | float) and each is not None:
            raise Malformed(f"{where}: field `{name}`: expected a list of texts, found {shorten(str(each))}")
    yes_no = {True: "yes", False: "no"}
    answers = (yes_no[each] if isinstance(each, bool) else as_text(each) for each in texts if is_filled(each))
    return list(dict.fromkeys(answers))


def _answers_in_cell(cell: str, where: str) -> Any:
    """What a cell of text holds: a list of texts, as JSON or Python writes it, some answers with ; or | between, or
    one. Raises `PosgapError` for a list of other values, which may be the answer itself."""
    value = opened(cell)
    if isinstance(value, Mapping) or (isinstance(value, list) and any(map(is_filled, value))):
        if isinstance(value, list) and len(value) > 1 and not all(isinstance(each, str) for each in value):
            ways = [shorten(json.dumps(way, ensure_ascii=False)) for way in ([cell], [str(each) for each in value])]
            what = f"{shorten(repr(cell))} may be one answer or {len(value)}: write {' or '.join(ways)}"
            raise Ambiguous(what, at=where)
        return value
    parts = [part for part in re.split(r"\s*[;|\n]\s*", cell.strip()) if part]
    return parts if parts and max(map(len, parts)) <= _MOST_IN_A_CELL else cell


def _is_titled(value: Any) -> bool:
    """Whether a value is a title with a list of sentences, as HotpotQA has it."""
    is_pair = isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[1], list)
    return is_pair and all(isinstance(each, str) for each in (value[0], *value[1]))


def _is_pair(value: Any) -> bool:
    """Whether a value is a document with its score, or a title with its sentences."""
    is_scored = isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[1], int | float)
    return _is_titled(value) or (is_scored and isinstance(value[0], str | Mapping))
