"""Packs the examples for an interactive report: every score of every sweep on the page, and as many prompts and answers
as a page can hold.

A page holds two gzipped texts. The map has all scores and ids. The answers have a line of JSON for each example, up to
`MAX_PAGE_BYTES` bytes; examples whose score depends on the position come first.
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

from posgap.foundation.bounds import EXPANSION, FREE, read_text
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import Record
from posgap.measurement.evidence import Evidence
from posgap.measurement.predictions import Prediction, outcome_of, read_predictions, swept_rows
from posgap.measurement.shape import regions
from posgap.measurement.sweeps import SWEEP_PAGE, Sweep
from posgap.tasks.examples import AnyExample

MAX_PAGE_BYTES = 16 << 20  # bytes of answers on a page, before they are gzipped
_Cells = list[list[Prediction]]  # an example's rows by placement and sample
_EMBEDDED = re.compile(r'<script type="application/gzip" id="data-(\w+)">([A-Za-z0-9+/=]*)</script>')


class ExampleTexts(NamedTuple):
    """An example's question, and the answers that it accepts."""

    question: str
    answers: list[str]


class SweepToShow(NamedTuple):
    """A sweep, its predictions, and its examples' texts by id, as far as they are known."""

    sweep: Sweep
    predictions: Sequence[Prediction]
    texts: Mapping[str, ExampleTexts]


class PageExamples(NamedTuple):
    """The data that a page embeds, each gzipped and in base64, and how many of its examples have answers there."""

    map: str
    answers: str
    n_examples: int
    n_answers: int


def pack_examples(sweeps: Sequence[SweepToShow]) -> PageExamples:
    """Returns what the page of these sweeps embeds; all are over the same examples at the same placements.

    The difference shown is the second sweep minus the first.
    """
    cells = _align_cells(sweeps)
    scores = [[list(map(_mean_score, of_example)) for of_example in of_sweep] for of_sweep in cells]
    order = sorted(range(len(cells[0])), key=lambda at: _is_flat(scores, at))
    answers = []
    size = 0
    for at in order:
        own = [of_sweep[at] for of_sweep in cells]
        asked = next(filter(None, (each.texts.get(of[0][0]["id"]) for each, of in zip(sweeps, own))), None)
        line = _answers_line(at, asked, own, sweeps[0].sweep.asked.samples)
        if size + len(line) <= MAX_PAGE_BYTES:
            answers.append(line)
            size += len(line)
    packed_map = _pack(json.dumps(_map(sweeps, cells, scores)).encode())
    return PageExamples(packed_map, _pack(b"".join(answers)), n_examples=len(order), n_answers=len(answers))


def _is_flat(scores: Sequence[Sequence[Sequence[float]]], at: int) -> bool:
    """Whether an example has one score in all sweeps at all placements."""
    return len(set(chain.from_iterable(of_sweep[at] for of_sweep in scores))) == 1


def pack_sweep(sweep: Sweep, predictions: Sequence[Prediction], examples: Sequence[AnyExample]) -> PageExamples:
    """Returns what a sweep's page embeds; `examples` are the predictions' examples."""
    return pack_examples([SweepToShow(sweep, predictions, example_texts(examples))])


def example_texts(examples: Iterable[AnyExample]) -> dict[str, ExampleTexts]:
    """Returns these examples' questions and answers, by their ids."""
    return {example.id: ExampleTexts(example.question, example.answers) for example in examples}


def pack_folders(evidence: Sequence[Evidence]) -> PageExamples:
    """Returns what the page of finished sweeps embeds; the questions are read from the sweeps' own pages, if these
    exist."""
    return pack_examples(
        [SweepToShow(each.sweep, read_predictions(each.path), read_texts(each.path)) for each in evidence]
    )


def read_texts(path: Path) -> dict[str, ExampleTexts]:
    """Reads its examples' texts, by id, from a sweep's page; `path` is the sweep's folder or `sweep.json`; nothing if
    there is no page, or another one."""
    page = (path if path.is_dir() else path.parent) / SWEEP_PAGE
    try:
        embedded = dict(_EMBEDDED.findall(read_text(page)))
        ids = _Map.model_validate_json(_unpack(embedded["map"])).ids
        lines = map(_AnswersLine.model_validate_json, _unpack(embedded["answers"]).splitlines())
        return {ids[line.at]: ExampleTexts(line.q, line.a) for line in lines}
    except (PosgapError, ValueError, KeyError, IndexError, zlib.error):
        return {}


class _Map(Record):
    ids: list[str]


class _AnswersLine(Record):
    at: int
    q: str
    a: list[str]


def _align_cells(sweeps: Sequence[SweepToShow]) -> list[list[_Cells]]:
    """The rows of each sweep by example `[E]`, in the order of the first sweep's; the same example has one content."""
    by_sweep = []
    for each in sweeps:
        column = {tuple(placement): at for at, placement in enumerate(each.sweep.placements)}
        by_content: dict[str, _Cells] = {}
        for row in swept_rows(each.predictions):
            cells = by_content.setdefault(row["content"], [[] for _ in column])
            cells[column[tuple(row["placement"])]].append(row)
        by_sweep.append(by_content)
    return [[of_sweep[content] for content in by_sweep[0]] for of_sweep in by_sweep]


def _mean_score(cell: Sequence[Prediction]) -> float:
    return sum(row["correct"] for row in cell) / len(cell)


def _map(
    sweeps: Sequence[SweepToShow], cells: Sequence[Sequence[_Cells]], scores: Sequence[Sequence[Sequence[float]]]
) -> dict[str, Any]:
    """Scores from 0 to 1 by example and placement, and which prompts were not answered: (example, placement, how), by
    the first such sample."""
    sweep = sweeps[0].sweep
    models = []
    for each, of_sweep, of_model in zip(sweeps, cells, scores):
        unanswered: list[tuple[int, int, str]] = []
        for at, of_example in enumerate(of_sweep):
            for column, cell in enumerate(of_example):
                endings = [outcome for outcome in map(outcome_of, cell) if outcome != "answered"]
                if endings:
                    unanswered.append((at, column, endings[0]))
        named = {"label": each.sweep.label, "metric": each.sweep.metric}
        models.append(named | {"scores": of_model, "unanswered": unanswered})
    return {
        "placements": sweep.placements,
        "names": sweep.placement_names,
        "regions": regions(sweep.placements, sweep.categories),
        "n_docs": sweep.n_docs,
        "ids": [of_example[0][0]["id"] for of_example in cells[0]],
        "models": models,
    }


def _answers_line(at: int, example: ExampleTexts | None, by_model: Sequence[_Cells], samples: int) -> bytes:
    """Returns question, answers, and responses by model, placement and sample: indices into the example's own texts."""
    strings: dict[str, int] = {}

    def index(text: str) -> int:
        return strings.setdefault(text, len(strings))

    def encode(row: Prediction) -> int | dict[str, Any]:
        more: dict[str, Any] = {name: index(row[name]) for name in ("thoughts", "reason") if row.get(name)}
        if outcome_of(row) != "answered":
            more["outcome"] = outcome_of(row)
        more |= {name: True for name in ("cut", "echo") if row.get(name)}
        if samples > 1:
            more["score"] = float(row["correct"])
        text = index(row["response"])
        return {"text": text, **more} if more else text

    responses = [[list(map(encode, cell)) for cell in cells] for cells in by_model]
    line = {"at": at, "q": example.question if example else "", "a": example.answers if example else []}
    return json.dumps(line | {"t": list(strings), "r": responses}, separators=(",", ":")).encode() + b"\n"


def _pack(text: bytes) -> str:
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()


def _unpack(text: str) -> bytes:
    packed = base64.b64decode(text)
    return zlib.decompressobj(wbits=31).decompress(packed, max(EXPANSION * len(packed), FREE))
