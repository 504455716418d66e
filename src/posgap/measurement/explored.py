"""The examples of a report that can be explored: every score of every sweep on the page, and what was asked and
answered as far as a page can hold it.

A page holds three gzipped texts: the map (scores and ids, all of them), the answers, and the prompts. Of the last two
it has a line of JSON for each example, first of those whose score depends on the position, until `MOST` bytes are used.
The prompts of an example are nearly alike, and stand there once, with what changes from one placement to the next.
"""

import base64
import json
import re
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from posgap.foundation.files import Record
from posgap.foundation.json_text import EXPANSION, FREE
from posgap.measurement.shape import regions
from posgap.measurement.sweeps import (
    SWEEP_PAGE,
    Evidence,
    Prediction,
    Sweep,
    outcome_of,
    read_predictions,
    swept_rows,
)
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import TextPromptBuilder

MOST = 6 << 20  # compressed bytes of answers and prompts on a page, which base64 makes a third more
_MISSES = 20  # so many examples that do not fit any more, and the page is full
_TEXTS = ("map", "answers", "prompts")
_EMBEDDED = re.compile(r'<script type="application/gzip" id="data-(\w+)">([A-Za-z0-9+/=]*)</script>')


class ExampleTexts(NamedTuple):
    """What an example asks. `prompts()` makes each placement's prompt in pieces, or nothing where nobody knows it: the
    document at position i is the piece of index 2 i - 1, and the others are what stands between documents."""

    question: str
    answers: list[str]
    prompts: "Callable[[], Prompts]"


Prompts = dict[tuple[int, ...], list[str]]  # pieces of a prompt by its placement
Texts = Callable[[str], ExampleTexts | None]  # by an example's id; None where nobody knows


class Swept(NamedTuple):
    """A sweep's evidence and predictions, and what its examples ask."""

    evidence: Evidence
    predictions: Sequence[Prediction]
    texts: Texts


class Shown(NamedTuple):
    """A sweep on the page, and its predictions by the examples on the page, `rows [E]`."""

    sweep: Sweep
    rows: Sequence[Sequence[Prediction]]


class Explored(NamedTuple):
    """What a page embeds, each gzipped and in base64, and how many of its examples have answers and prompts there."""

    map: str
    answers: str
    prompts: str
    n_examples: int
    n_answers: int
    n_prompts: int


def explored(shown: Sequence[Shown], texts: Callable[[int], ExampleTexts | None]) -> Explored:
    """What the page of these sweeps embeds; all are over the same examples at the same placements.

    `texts` says what an example asks, by its index. The difference shown is the second sweep minus the first.
    """
    scores = [_scores(each) for each in shown]
    order = sorted(range(len(shown[0].rows)), key=lambda at: len({x for of in scores for x in of[at]}) == 1)
    answers, asked = _Lines(MOST), {}
    for at in order:
        if answers.is_full:
            break
        asked[at] = texts(at)
        answers.add(_answers_line(at, asked[at], [each.rows[at] for each in shown], shown[0].sweep))
    prompts = _Lines(MOST - answers.size)
    for at in order:
        if prompts.is_full:
            break
        if (example := asked.get(at) or texts(at)) and (of_example := example.prompts()):
            prompts.add(_prompts_line(at, list(of_example.values())))
    return Explored(
        map=_packed(json.dumps(_map(shown, scores)).encode()),
        answers=answers.packed(),
        prompts=prompts.packed(),
        n_examples=len(order),
        n_answers=answers.count,
        n_prompts=prompts.count,
    )


def explored_sweep(
    sweep: Sweep, predictions: Sequence[Prediction], examples: Sequence[AnyExample], build: TextPromptBuilder
) -> Explored:
    """What the page of a sweep embeds, with prompts of this builder; `examples` are those of the predictions."""
    rows, texts = _by_id(predictions), texts_of(sweep, examples, build)
    ids = [example.id for example in examples]
    return explored([Shown(sweep, [rows[id] for id in ids])], lambda at: texts(ids[at]))


def texts_of(sweep: Sweep, examples: Sequence[AnyExample], build: TextPromptBuilder) -> Texts:
    """What a sweep asked of these examples, by this builder."""
    by_id = {example.id: example for example in examples}
    placements = [Placement(tuple(positions), sweep.n_docs) for positions in sweep.placements]

    def texts(id: str) -> ExampleTexts:
        example = by_id[id]
        return ExampleTexts(
            example.question,
            example.answers,
            lambda: {placement.positions: _pieces(build, example, placement) for placement in placements},
        )

    return texts


def explored_together(sweeps: Sequence[Swept]) -> Explored:
    """What a page about several sweeps of the same examples embeds."""
    first = sweeps[0].evidence
    paired = [first, *(each.evidence.in_order_of(first) for each in sweeps[1:])]
    by_id = [_by_id(each.predictions) for each in sweeps]
    shown = [Shown(each.sweep, [rows[id] for id in each.ids]) for each, rows in zip(paired, by_id)]

    def texts(at: int) -> ExampleTexts | None:
        by_sweep = [example for each, of in zip(sweeps, paired) if (example := each.texts(of.ids[at]))]

        def prompts() -> Prompts:
            return next(filter(None, (example.prompts() for example in by_sweep)), {})

        return by_sweep[0]._replace(prompts=prompts) if by_sweep else None

    return explored(shown, texts)


def explored_folders(evidence: Sequence[Evidence]) -> Explored:
    """The same of finished sweeps; their prompts are those on the sweeps' own pages, where these are."""
    return explored_together([Swept(each, read_predictions(each.path), read_texts(each.path).get) for each in evidence])


def explored_parts(sweep: Sweep, predictions: Sequence[Prediction], parts: Sequence[Path]) -> Explored:
    """What the page of a sweep embeds that was merged from these parts."""
    rows, by_part = _by_id(predictions), [read_texts(part) for part in parts]
    ids, placements = list(rows), [tuple(placement) for placement in sweep.placements]

    def texts(at: int) -> ExampleTexts | None:
        of_parts = [of[ids[at]] for of in by_part if ids[at] in of]

        def prompts() -> Prompts:
            together = {place: prompt for of in of_parts for place, prompt in of.prompts().items()}
            return {place: together[place] for place in placements} if together.keys() >= {*placements} else {}

        return of_parts[0]._replace(prompts=prompts) if of_parts else None

    return explored([Shown(sweep, list(rows.values()))], texts)


def read_texts(path: Path) -> dict[str, ExampleTexts]:
    """What the page of a sweep, of which `path` is the folder or the `sweep.json`, says of its examples, by their ids;
    nothing where there is no page, or another one."""
    page = (path if path.is_dir() else path.parent) / SWEEP_PAGE
    try:
        embedded = dict(_EMBEDDED.findall(page.read_text(encoding="utf-8")))
        of_map, answers, prompts = (_unpacked(embedded[name]) for name in _TEXTS)
        head = _Map.model_validate_json(of_map)
        placements = [tuple(placement) for placement in head.placements]
        by_index = {line.at: line for line in map(_PromptsLine.model_validate_json, prompts.splitlines())}
        return {
            head.ids[line.at]: ExampleTexts(line.q, line.a, partial(_prompts, by_index.get(line.at), placements))
            for line in map(_AnswersLine.model_validate_json, answers.splitlines())
        }
    except (OSError, ValueError, KeyError, IndexError, zlib.error):
        return {}


class _Map(Record):
    ids: list[str]
    placements: list[list[int]]


class _AnswersLine(Record):
    at: int
    q: str
    a: list[str]


class _PromptsLine(Record):
    at: int
    t: list[str]
    p: list[list[int]]


def _prompts(line: _PromptsLine | None, placements: Sequence[tuple[int, ...]]) -> Prompts:
    try:
        return dict(zip(placements, _expanded(line), strict=True)) if line else {}
    except (ValueError, IndexError):
        return {}


def _by_id(predictions: Sequence[Prediction]) -> dict[str, list[Prediction]]:
    rows: dict[str, list[Prediction]] = {}
    for row in swept_rows(predictions):
        rows.setdefault(row["id"], []).append(row)
    return rows


def _columns(sweep: Sweep, rows: Sequence[Prediction]) -> list[list[Prediction]]:
    """An example's rows by placement, in the order of the sweep's."""
    by_placement: dict[tuple[int, ...], list[Prediction]] = {tuple(placement): [] for placement in sweep.placements}
    for row in rows:
        by_placement[tuple(row["placement"])].append(row)
    return list(by_placement.values())


def _scores(shown: Shown) -> list[list[float]]:
    return [
        [sum(row["correct"] for row in cell) / len(cell) for cell in _columns(shown.sweep, rows)] for rows in shown.rows
    ]


def _map(shown: Sequence[Shown], scores: Sequence[Sequence[Sequence[float]]]) -> dict[str, Any]:
    """Scores from 0 to 1 by example and placement, and which prompts were not answered: [example, placement, how]."""
    sweep = shown[0].sweep
    return {
        "placements": sweep.placements,
        "names": sweep.names,
        "regions": regions(sweep.placements, sweep.categories),
        "n_docs": sweep.n_docs,
        "ids": [rows[0]["id"] for rows in shown[0].rows],
        "models": [
            {
                "label": each.sweep.label,
                "metric": each.sweep.metric,
                "scores": [[int(x) if x in (0, 1) else x for x in row] for row in of_model],
                "unanswered": [
                    [at, column, endings[0]]
                    for at, rows in enumerate(each.rows)
                    for column, cell in enumerate(_columns(each.sweep, rows))
                    if (endings := [how for row in cell if (how := outcome_of(row)) != "answered"])
                ],
            }
            for each, of_model in zip(shown, scores)
        ],
    }


def _answers_line(
    at: int, example: ExampleTexts | None, by_model: Sequence[Sequence[Prediction]], sweep: Sweep
) -> bytes:
    """Question, answers, and by model, placement and sample what was said: indices into the example's own texts."""
    strings: dict[str, int] = {}

    def index(text: str) -> int:
        return strings.setdefault(text, len(strings))

    def said(row: Prediction) -> int | dict[str, Any]:
        more: dict[str, Any] = {name: index(row[name]) for name in ("thoughts", "reason") if row.get(name)}
        if (outcome := outcome_of(row)) != "answered":
            more["outcome"] = outcome
        if row.get("cut"):
            more["cut"] = True
        if sweep.asked.samples > 1:
            more["score"] = float(row["correct"])
        text = index(row["response"])
        return {"text": text, **more} if more else text

    responses = [[[said(row) for row in cell] for cell in _columns(sweep, rows)] for rows in by_model]
    line = {"at": at, "q": example.question if example else "", "a": example.answers if example else []}
    return json.dumps(line | {"t": list(strings), "r": responses}, separators=(",", ":")).encode() + b"\n"


def _prompts_line(at: int, prompts: Sequence[Sequence[str]]) -> bytes:
    """Of the first prompt all pieces; of each other how many it begins and ends with like the one before, and those
    between: indices into the example's own pieces."""
    pieces: dict[str, int] = {}
    edits: list[list[int]] = []
    before: list[int] = []
    for prompt in prompts:
        now = [pieces.setdefault(piece, len(pieces)) for piece in prompt]
        head = _alike(before, now)
        tail = _alike(before[head:][::-1], now[head:][::-1])
        edits.append([head, tail, *now[head : len(now) - tail]])
        before = now
    line = {"at": at, "t": list(pieces), "p": edits}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _expanded(line: _PromptsLine) -> list[list[str]]:
    prompts: list[list[str]] = []
    for head, tail, *between in line.p:
        before = prompts[-1] if prompts else []
        prompts.append([*before[:head], *(line.t[i] for i in between), *before[len(before) - tail :]])
    return prompts


def _alike(first: Sequence[int], second: Sequence[int]) -> int:
    """How many of the first items are equal."""
    return next((i for i, pair in enumerate(zip(first, second)) if pair[0] != pair[1]), min(len(first), len(second)))


def _pieces(build: TextPromptBuilder, example: AnyExample, placement: Placement) -> list[str]:
    """The prompt's text in pieces; together they are the text, however the task writes its documents. A document is
    found from its title to its text's end; one that is not written so has an empty piece."""
    documents, at = build.documents(example, placement), 0
    text = build.worded(example, documents)
    pieces = []
    for document in documents:
        title = "" if build.task.slot_names else document.title  # items to choose from are shown without
        begin = text.find(title or document.text, at)
        last = text.find(document.text, begin + len(title)) if begin >= 0 else -1
        begin, end = (begin, last + len(document.text)) if last >= 0 else (at, at)
        pieces += [text[at:begin], text[begin:end]]
        at = end
    return [*pieces, text[at:]]


class _Lines:
    """Lines, gzipped, as many as fit into `most` bytes."""

    def __init__(self, most: int):
        self._most, self._gzip = most, zlib.compressobj(9, wbits=31)
        self._done: list[bytes] = []
        self.size, self.count, self._misses = 0, 0, 0

    @property
    def is_full(self) -> bool:
        """Whether there is no use in trying more lines."""
        return self._misses >= _MISSES

    def add(self, line: bytes) -> None:
        """Adds a line where it fits."""
        if len(line) <= 20 * self._most:
            trial = self._gzip.copy()
            more = trial.compress(line) + trial.flush(zlib.Z_SYNC_FLUSH)
            if self.size + len(more) <= self._most:
                self._gzip, self.size, self.count, self._misses = trial, self.size + len(more), self.count + 1, 0
                self._done.append(more)
                return
        self._misses += 1

    def packed(self) -> str:
        """The lines in base64."""
        return base64.b64encode(b"".join([*self._done, self._gzip.flush()])).decode()


def _packed(text: bytes) -> str:
    packer = zlib.compressobj(9, wbits=31)
    return base64.b64encode(packer.compress(text) + packer.flush()).decode()


def _unpacked(text: str) -> bytes:
    packed = base64.b64decode(text)
    return zlib.decompressobj(wbits=31).decompress(packed, max(EXPANSION * len(packed), FREE))
