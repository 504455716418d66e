"""The fields of a retrieval log's rows: its question, its accepted answers, its passages.

`log_formats.json` declares what is known of exports: the names of each field, and formats whose fields stand elsewhere.
In a format, `has` are the paths that identify it, `lift` the object whose fields count as the row's, `take` the paths
of fields, `rename` and `passage` other names within the row and its passages, and `index_of` the lists whose passages
`results` orders by index.
"""

import contextlib
import json
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

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
    nest,
    opened,
    parse_grade,
    parse_list,
    parse_number,
    pick,
    plain_cells,
    plain_name,
    without,
)
from posgap.foundation.errors import Ambiguous, BadOption, Malformed, shorten
from posgap.foundation.python_text import python_value
from posgap.tasks.examples import Passage

FIELDS: dict[str, list[str]] = TABLE["fields"]
_FORMATS = [(re.split(r"[.\[]", form["has"][0])[0], form) for form in TABLE["formats"]]  # each with its first field
NUMBERS = ("rank", "reranked", "score", "distance")
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
    def content(self) -> tuple[str, str]:
        """Its title and its text."""
        return self.title, self.text

    def as_passage(self, relevant: bool) -> Passage:
        """The passage of an example. Its score is its first number that is no rank, the higher the better."""
        scores = {name: number for name, number in self.numbers.items() if name not in FIELDS["rank"]}
        score = next((-number if "distance" in name else number for name, number in scores.items()), None)
        own = next(iter(self.ids.values()), "")
        return Passage(title=self.title, text=self.text, score=score, relevant=relevant, id=own)


@dataclass
class LogFields:
    """Reads fields by the names of the table, or by the column that `columns` names; notes in `taken` what was found
    where (field, name), and in `formats` the formats."""

    columns: Mapping[str, str] = field(default_factory=dict)
    taken: Counter[tuple[str, str]] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.named: dict[str, str] = {}
        for given, column in self.columns.items():
            name = "answers" if plain_name(given) == "answer" else plain_name(given)
            if name not in FIELDS:
                known = ", ".join(sorted([*FIELDS, "answer"]))
                raise BadOption(f"columns: no field {shorten(repr(given))}; name some of {known}")
            self.named[name] = plain_name(column)
        given_columns = set(self.named.values())
        self.names = {name: [each for each in names if each not in given_columns] for name, names in FIELDS.items()}
        self.names |= {name: [column] for name, column in self.named.items()}
        self.paths = {column for column in self.named.values() if "." in column}
        if "question" in self.named:
            self.names["sent"] = []

    def row(self, row: Any, where: str) -> Fields:
        """A row's fields by plain names, as its format means them."""
        cells = nest(plain_cells(row, where))
        for first, form in _FORMATS:
            if first in cells and all(is_filled(pick(cells, path)) for path in form["has"]):
                cells = self._shaped(cells, form, where)
        return cells

    def _shaped(self, cells: dict[str, Any], form: Mapping[str, Any], where: str) -> dict[str, Any]:
        self.formats[form["name"]] += 1
        for outer in form.get("lift", ()):
            cells = {**plain_cells(as_mapping(cells[outer])), **cells}
        for field_, paths in form.get("take", {}).items():
            if field_ in self.named:  # the user's column, and not the format's
                continue
            found = list(chain.from_iterable(as_list(pick(cells, path)) for path in paths))
            if field_ == "passages":
                found = [plain_cells(each if isinstance(each, Mapping) else {"text": each}) for each in found]
                found = [_renamed(each, form.get("passage", {})) for each in found]
                cells = without(cells, self.names["passages"])
            cells[self.names[field_][0]] = found[0] if field_ == "question" and len(found) == 1 else found
        for name in form.get("index_of", ()):
            texts = as_list(cells.get(name))
            ranked = list(map(as_mapping, pick(cells, "results[]")))
            if not all(each.get("index") in range(len(texts)) for each in ranked):
                raise Malformed(f"field `results`: has an `index` that is not from 0 to {len(texts) - 1}", at=where)
            del cells[name], cells["results"]
            cells[self.names["passages"][0]] = [{**each, "document": texts[each["index"]]} for each in ranked]
        return _renamed(cells, form.get("rename", {}))

    def cells(self, field_: str, *parts: Fields) -> Iterator[tuple[str, Any]]:
        """Yields the name and the cell of each filled cell of a field in some parts of a row, the likelier first."""
        for part in parts:
            for name in self.names[field_]:
                if name in part and is_filled(part[name]):
                    yield name, part[name]
                elif name in self.paths and is_filled(pick(part, name)):
                    yield name, pick(part, name)

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
        cells = chain(self.cells("question", row), self.cells("sent", row))
        texts = {name: _question_text(cell) for name, cell in cells}
        return {name: text for name, text in texts.items() if text and text.strip()}

    def question(self, row: Fields, where: str, passages: Sequence[LoggedPassage] = ()) -> str:
        """The question of a row with these passages. Raises `PosgapError` if it has none, if it is a whole prompt that
        holds them, and if two fields have questions that differ."""
        found = self._questions(row)
        texts = [fold(passage.text) for passage in passages]
        prompts = [name for name, text in found.items() if _holds(fold(text), texts)]
        bare = without(found, prompts)
        # What was sent to a model may have more around the question, and a query to a store is an object.
        asked = {name: text for name, text in bare.items() if name in self.names["question"]} or bare
        asked = {name: text for name, text in asked.items() if isinstance(row.get(name), str)} or asked
        if not asked and prompts:
            maybe = _fields_within(row, found[prompts[0]], texts) or "NAME"
            what = f"field `{prompts[0]}`: holds the passages, so it is a prompt"
            ask(what, f"--columns question={maybe}", where=where)
        if not asked:
            names = ", ".join([*FIELDS["question"][1:], *FIELDS["sent"]])
            raise Malformed(f"{where}: field `question`: missing or empty (also: {names}); found {list_names(row)}")
        return asked[self._agreed("question", {name: [fold(text)] for name, text in asked.items()}, where)]

    def _agreed(self, field_: str, readings: Mapping[str, Iterable[Hashable]], where: str) -> str:
        """The first name whose reading of a field says all that those of the other names say. Raises `Ambiguous` if
        there is none."""
        said = {name: set(reading) for name, reading in readings.items()}
        for name in said:
            if said[name] == set().union(*said.values()):
                self.taken[field_, name] += 1
                return name
        one = field_.removesuffix("s")
        what = f"{' and '.join(f'`{name}`' for name in said)} have different {one}s"
        ask(what, *(f"--columns {one if one == 'answer' else field_}={name}" for name in said), where=where)

    def answers(self, row: Fields, where: str) -> list[str]:
        """The accepted answers of a row; none if it has none. Raises `PosgapError` if two fields have answers that
        differ, or if a cell may have one answer or several."""
        context = as_list(opened(row.get("context")) or [""])
        is_chain_s = not set(TABLE["of_chains"]).isdisjoint(row) and not all(map(_is_titled, context))  # HotpotQA
        is_chain_s = is_chain_s and not any(is_filled(row.get(name)) for name in TABLE["responses"])
        found: dict[str, list[str]] = {}
        for name, cell in self.cells("answers", row):
            is_last = name == FIELDS["answers"][-1] and "answers" not in self.named
            answers = [] if is_last and (is_chain_s or found) else _read_answers(cell, where, name)
            if answers:
                found[name] = answers
        return found[self._agreed("answers", {n: map(fold, own) for n, own in found.items()}, where)] if found else []

    def relevant_ids(self, row: Fields, where: str) -> list[str] | None:
        """The ids of a row's relevant passages; None if it says nothing of them. Several in a cell of text stay as they
        are written: only the passages' ids tell whether a comma parts them."""
        value = self.cell("relevant_ids", row)
        if value is None:
            return [] if any(isinstance(row.get(name), list) for name in self.names["relevant_ids"]) else None
        here = f"{where}: field `relevant_ids`"
        if grades := as_mapping(value):  # as in TREC's qrels
            return [str(id) for id, grade in grades.items() if parse_grade(grade, here) > 0]
        value = parse_list(value, here) if isinstance(value, str) and is_list(value) else value
        ids = chain.from_iterable(map(as_list, as_list(value)))  # AutoRAG has lists of lists
        return [as_text(id) for id in ids if is_filled(id)]

    def find_passages(self, row: Fields) -> tuple[str, Any]:
        """The name and the cell of a row's passages, without what is wrapped around them; None if it has none."""
        for name, cell in self.cells("passages", row):
            value = opened(cell)
            if isinstance(value, str) and _NUMBERED.match(value):  # LongBench
                value = [text.strip() for text in _NUMBERED.split(value) if text.strip()]
            inner = self.find_passages(value)[1] if isinstance(value, Mapping) else None  # {"hits": {"hits": [...]}}
            if isinstance(value, str | list | tuple | Mapping):
                return name, value if inner is None else inner
        for name in (*TABLE["around_passages"], *TABLE["responses"]):
            inner = self.find_passages(row[name])[1] if isinstance(row.get(name), Mapping) else None
            if isinstance(inner, list):
                return name, inner
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
        if isinstance(value, str) and not is_list(value):
            what = 'a text and no list of passages: write them as JSON, ["...", "..."], or one passage a row'
            raise Malformed(f"{what} (docs/log-fields.md)", at=here)
        passages = self._listed(value, here)
        readings = {name: [tuple(each.text for each in passages)]}
        for other, cell in self.cells("passages", row) if name not in TABLE["weak_passages"] else ():
            if other not in (name, *TABLE["weak_passages"]):
                with contextlib.suppress(Malformed):  # what has no texts is no other reading
                    readings[other] = [tuple(each.text for each in self._listed(cell, here))]
        if value is not None:
            self._agreed("passages", readings, where)
        for passage in passages:
            passage.is_listed = passage.is_listed or name in TABLE["lists_best_first"]
        self.add_lists_beside(passages, row, where)
        return passages

    def _listed(self, value: Any, where: str) -> list[LoggedPassage]:
        return [self.passage(each, where) for each in _column(value, where)]

    def add_lists_beside(self, passages: Sequence[LoggedPassage], row: Fields, where: str) -> None:
        """Gives passages the ids, scores and distances that a row has in lists of their own."""
        for field_ in ("passage_ids", "passage_scores", "passage_distances"):
            for name, cell in self.cells(field_, row):
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
            return replace(self.passage(value[0], where), numbers={"score": float(value[1])}, is_listed=True)
        if isinstance(value, list) and value and all("role" in as_mapping(turn) for turn in value):
            return LoggedPassage("", "\n".join(f"{turn['role']}: {turn.get('content', '')}" for turn in value))
        outer = plain_cells(value, where)
        inner = outer
        for name in TABLE["inner"]:
            inner = plain_cells(inner[name]) if isinstance(inner.get(name), Mapping) else inner
        metadata = plain_cells(as_mapping(inner.get("metadata", inner.get("meta"))))
        metadata = without(metadata, ["relevance", "label"])  # which are of anything there
        stored = next(filter(None, (plain_cells(as_mapping(inner.get(name))) for name in TABLE["of_stores"])), {})
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
        holding = {*self.names["text"], "metadata", "meta", "image", *TABLE["inner"], *TABLE["of_stores"]}
        if isinstance(text, list | Mapping):  # as `fields` of Elasticsearch, Bedrock and OpenAI's file search have it
            text = "\n".join(str(as_mapping(part).get("text", part)) for part in as_list(text))
        if not isinstance(text, str) and (text is not None or holding.isdisjoint(names)):
            what = f"expected a passage's `text`; found {list_names(names)}; --columns names another, like text=Content"
            raise Malformed(f"{what} (docs/log-fields.md)", at=where)
        return text or ""

    def is_unanswerable(self, row: Fields, answers: Sequence[str], id: str) -> bool:
        """Whether a row says that its question has no answer: by its answers, its id or a field of its own."""
        signs = TABLE["unanswerable"]
        says = any(str(row.get(name)).casefold() == value for name, value in signs["fields"].items())
        none = bool(answers) and all(fold(answer).strip(".!") in signs["answers"] for answer in answers)
        return says or none or id.endswith(signs["id_ends"])


def _renamed(cells: Fields, names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(name, name): cell for name, cell in cells.items()}


def _column(value: Any, where: str) -> list[Any]:
    """A list of passages, or of their ids or numbers, without the list around it in which Chroma answers a query."""
    values = parse_list(value, where)
    is_inner = len(values) == 1 and isinstance(values[0], list) and not _is_pair(values[0])
    return values[0] if is_inner else values


def _question_text(value: Any) -> str | None:
    """The question in a cell: a text; the last message of a user; or an object around one, also written as JSON."""
    if isinstance(value, str) and value.strip()[:1] in ("{", "[", '"'):
        return _question_text(python_value(value)) or value
    if isinstance(value, list):
        turns = list(map(as_mapping, value))
        asked = [turn.get("content") for turn in turns if turn.get("role", turn.get("type")) in ("user", "human")]
        return _question_text((asked or turns)[-1]) if asked or len(turns) == 1 else None
    if isinstance(value, Mapping):
        names = (*FIELDS["question"], *FIELDS["sent"], "content", "text", "value", "raw")
        inner = [value.get(name) for name in (*names, *value) if name in names or len(value) == 1]  # {"match": {...}}
        return _question_text(next(filter(is_filled, inner), None))
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
    value = _answers_in_cell(value, f"{where}: field `{name}`") if isinstance(value, str) else value
    cells = plain_cells(value) if isinstance(value, Mapping) else {}
    if "text" in cells or "value" in cells:
        value = [*as_list(cells.get("text", cells.get("value"))), *as_list(cells.get("aliases", []))]
    answers = []
    for each in chain.from_iterable(map(as_list, as_list(value))):
        text = as_mapping(each).get("text", each)
        if not isinstance(text, str | int | float) and text is not None:
            raise Malformed(f"{where}: field `{name}`: expected a list of texts, found {shorten(str(text))}")
        if is_filled(text):
            answers.append({True: "yes", False: "no"}[text] if isinstance(text, bool) else as_text(text))
    return list(dict.fromkeys(answers))


def _answers_in_cell(cell: str, where: str) -> Any:
    """What a cell of text holds: a list of texts, as JSON or Python writes it, some answers with ; or | between, or
    one. Raises `PosgapError` for a list of other values, which may be the answer itself."""
    value = opened(cell)
    if isinstance(value, list) and len(value) > 1 and not all(isinstance(each, str) for each in value):
        ways = [shorten(json.dumps(way, ensure_ascii=False)) for way in ([cell], [str(each) for each in value])]
        what = f"{shorten(repr(cell))} may be one answer or {len(value)}: write {' or '.join(ways)}"
        raise Ambiguous(what, at=where)
    if isinstance(value, Mapping) or (isinstance(value, list) and any(map(is_filled, value))):
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
