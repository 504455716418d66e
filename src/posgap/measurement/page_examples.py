"""The examples of a report that can be explored: every score of every sweep on the page, and what was asked and
answered as far as a page can hold it.

A page holds two gzipped texts: the map (scores and ids, all of them), and the answers, a line of JSON for each example,
first of those whose score depends on the position, until these have `MAX_PAGE_BYTES` bytes.
"""

import base64
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from posgap.foundation.files import Record
from posgap.foundation.json_text import EXPANSION, FREE
from posgap.measurement.evidence import Evidence
from posgap.measurement.predictions import Prediction, outcome_of, read_predictions, swept_rows
from posgap.measurement.shape import regions
from posgap.measurement.sweeps import SWEEP_PAGE, Sweep
from posgap.tasks.examples import AnyExample

MAX_PAGE_BYTES = 16 << 20  # bytes of answers on a page, before they are gzipped
_EMBEDDED = re.compile(r'<script type="application/gzip" id="data-(\w+)">([A-Za-z0-9+/=]*)</script>')


class ExampleTexts(NamedTuple):
    """What an example asks, and the answers that it accepts."""

    question: str
    answers: list[str]


class SweepToShow(NamedTuple):
    """A sweep, its predictions, and what its examples ask, by their ids, as far as it is known."""

    sweep: Sweep
    predictions: Sequence[Prediction]
    texts: Mapping[str, ExampleTexts]


class _SweepOnPage(NamedTuple):
    """A sweep on the page, and its predictions by the examples on the page, `rows [E]`."""

    sweep: Sweep
    rows: Sequence[Sequence[Prediction]]


class PageExamples(NamedTuple):
    """What a page embeds, each gzipped and in base64, and how many of its examples have answers there."""

    map: str
    answers: str
    n_examples: int
    n_answers: int


def pack_examples(sweeps: Sequence[SweepToShow]) -> PageExamples:
    """What the page of these sweeps embeds; all are over the same examples at the same placements.

    The difference shown is the second sweep minus the first.
    """
    shown = [_SweepOnPage(each.sweep, rows) for each, rows in zip(sweeps, _in_one_order(sweeps))]
    scores = [_scores(each) for each in shown]
    order = sorted(range(len(shown[0].rows)), key=lambda at: _is_flat(scores, at))
    answers, size = [], 0
    for at in order:
        rows = [each.rows[at] for each in shown]
        asked = next(filter(None, (each.texts.get(own[0]["id"]) for each, own in zip(sweeps, rows))), None)
        line = _answers_line(at, asked, rows, shown[0].sweep)
        if size + len(line) <= MAX_PAGE_BYTES:
            answers.append(line)
            size += len(line)
    packed_map = _pack(json.dumps(_map(shown, scores)).encode())
    return PageExamples(packed_map, _pack(b"".join(answers)), n_examples=len(order), n_answers=len(answers))


def _is_flat(scores: Sequence[Sequence[Sequence[float]]], at: int) -> bool:
    """Whether an example has one score in all sweeps at all placements."""
    return len(set(chain.from_iterable(of_sweep[at] for of_sweep in scores))) == 1


def pack_sweep(sweep: Sweep, predictions: Sequence[Prediction], examples: Sequence[AnyExample]) -> PageExamples:
    """What the page of a sweep embeds; `examples` are those of the predictions."""
    return pack_examples([SweepToShow(sweep, predictions, example_texts(examples))])


def example_texts(examples: Iterable[AnyExample]) -> dict[str, ExampleTexts]:
    """What these examples ask, by their ids."""
    return {example.id: ExampleTexts(example.question, example.answers) for example in examples}


def pack_folders(evidence: Sequence[Evidence]) -> PageExamples:
    """What the page of finished sweeps embeds; their questions are those on the sweeps' own pages, where these are."""
    return pack_examples(
        [SweepToShow(each.sweep, read_predictions(each.path), read_texts(each.path)) for each in evidence]
    )


def read_texts(path: Path) -> dict[str, ExampleTexts]:
    """What the page of a sweep, of which `path` is the folder or the `sweep.json`, says of its examples, by their ids;
    nothing where there is no page, or another one."""
    page = (path if path.is_dir() else path.parent) / SWEEP_PAGE
    try:
        embedded = dict(_EMBEDDED.findall(page.read_text(encoding="utf-8")))
        ids = _Map.model_validate_json(_unpack(embedded["map"])).ids
        lines = map(_AnswersLine.model_validate_json, _unpack(embedded["answers"]).splitlines())
        return {ids[line.at]: ExampleTexts(line.q, line.a) for line in lines}
    except (OSError, ValueError, KeyError, IndexError, zlib.error):
        return {}


class _Map(Record):
    ids: list[str]


class _AnswersLine(Record):
    at: int
    q: str
    a: list[str]


def _in_one_order(sweeps: Sequence[SweepToShow]) -> list[list[list[Prediction]]]:
    """The rows of each sweep by example `[E]`, in the order of the first sweep's; the same example has one content."""
    by_example = []
    for each in sweeps:
        rows: dict[str, list[Prediction]] = {}
        for row in swept_rows(each.predictions):
            rows.setdefault(row["id"], []).append(row)
        by_example.append(list(rows.values()))
    order = np.argsort([rows[0]["content"] for rows in by_example[0]], kind="stable")
    back = np.argsort(order, kind="stable")
    ordered = [sorted(rows, key=lambda of: of[0]["content"]) for rows in by_example]
    return [list(map(rows.__getitem__, back)) for rows in ordered]


def _columns(sweep: Sweep, rows: Sequence[Prediction]) -> list[list[Prediction]]:
    """An example's rows by placement, in the order of the sweep's."""
    by_placement: dict[tuple[int, ...], list[Prediction]] = {tuple(placement): [] for placement in sweep.placements}
    for row in rows:
        by_placement[tuple(row["placement"])].append(row)
    return list(by_placement.values())


def _scores(shown: _SweepOnPage) -> list[list[float]]:
    """Returns each example's mean score, from 0 to 1, by placement."""
    return [list(map(_mean_score, _columns(shown.sweep, rows))) for rows in shown.rows]


def _mean_score(cell: Sequence[Prediction]) -> float:
    return sum(row["correct"] for row in cell) / len(cell)


def _map(shown: Sequence[_SweepOnPage], scores: Sequence[Sequence[Sequence[float]]]) -> dict[str, Any]:
    """Scores from 0 to 1 by example and placement, and which prompts were not answered: [example, placement, how]."""
    sweep, models = shown[0].sweep, []
    for each, of_model in zip(shown, scores):
        named = {"label": each.sweep.label, "metric": each.sweep.metric}
        short = [list(map(_short_number, row)) for row in of_model]
        models.append(named | {"scores": short, "unanswered": _unanswered_cells(each)})
    return {
        "placements": sweep.placements,
        "names": sweep.placement_names,
        "regions": regions(sweep.placements, sweep.categories),
        "n_docs": sweep.n_docs,
        "ids": [rows[0]["id"] for rows in shown[0].rows],
        "models": models,
    }


def _short_number(score: float) -> float:
    """Returns 0 and 1 as whole numbers, which take fewer characters."""
    return int(score) if score in (0, 1) else score


def _unanswered_cells(shown: _SweepOnPage) -> list[tuple[int, int, str]]:
    """Returns (example, placement, outcome) where a prompt was not answered, by the first such sample."""
    found: list[tuple[int, int, str]] = []
    for at, rows in enumerate(shown.rows):
        for column, cell in enumerate(_columns(shown.sweep, rows)):
            endings = [outcome for outcome in map(outcome_of, cell) if outcome != "answered"]
            if endings:
                found.append((at, column, endings[0]))
    return found


def _answers_line(
    at: int, example: ExampleTexts | None, by_model: Sequence[Sequence[Prediction]], sweep: Sweep
) -> bytes:
    """Question, answers, and by model, placement and sample what was said: indices into the example's own texts."""
    strings: dict[str, int] = {}

    def index(text: str) -> int:
        return strings.setdefault(text, len(strings))

    def encode(row: Prediction) -> int | dict[str, Any]:
        more: dict[str, Any] = {name: index(row[name]) for name in ("thoughts", "reason") if row.get(name)}
        if outcome_of(row) != "answered":
            more["outcome"] = outcome_of(row)
        more |= {name: True for name in ("cut", "echo") if row.get(name)}
        if sweep.asked.samples > 1:
            more["score"] = float(row["correct"])
        text = index(row["response"])
        return {"text": text, **more} if more else text

    responses = []
    for rows in by_model:
        responses.append([list(map(encode, cell)) for cell in _columns(sweep, rows)])
    line = {"at": at, "q": example.question if example else "", "a": example.answers if example else []}
    return json.dumps(line | {"t": list(strings), "r": responses}, separators=(",", ":")).encode() + b"\n"


def _pack(text: bytes) -> str:
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()


def _unpack(text: str) -> bytes:
    packed = base64.b64decode(text)
    return zlib.decompressobj(wbits=31).decompress(packed, max(EXPANSION * len(packed), FREE))
