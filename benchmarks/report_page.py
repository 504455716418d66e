"""The report of a sweep as a file and in a browser: how large it is, and how soon it is seen.

    python benchmarks/report_page.py [--quick] [--write]

For 200 and 2,000 examples at 20 positions the page of a sweep is written and opened from disk in a headless Chromium,
in a window of 1,400 x 900 pixels. The median of five times counts. Documents have 100 words, drawn by Zipf's law from
20,000, which gzip packs a little worse than it packs English. Responses have some 20 words, and those to one example
differ where they are wrong.

The last line is JSON: for each number of examples `megabytes` of the page, `first_paint` and `map` (milliseconds until
the first figures are seen, and until the map is), and `read_back` (whether the accuracies that the page computes of its
cells are those of sweep.json).
"""

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from report import ROOT, conclude

from posgap.measurement.explored import explored_sweep
from posgap.measurement.report import write_page
from posgap.measurement.sweeps import Asked, Prediction, Sweep, summarize
from posgap.tasks.examples import Document, Example
from posgap.tasks.placements import swept_placements

sys.path.append(str(ROOT / "tests"))
from chromium import Page, browser, program

N_DOCS, WORDS, VOCABULARY, TIMES = 20, 100, 20_000, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20 and 200 examples: under a minute on two cores")
    parser.add_argument("--write", action="store_true", help="write the table into build/results/")
    options = parser.parse_args()
    if not program():
        raise SystemExit("no Chromium on PATH")
    lines = [
        "| examples | written in s | page, MB | first paint, ms | map, ms |",
        "|---|---:|---:|---:|---:|",
    ]
    figures = {}
    with tempfile.TemporaryDirectory() as folder, browser() as page:
        for n_examples in (20, 200) if options.quick else (200, 2000):
            figure = measured(n_examples, Path(folder) / f"{n_examples}.html", page)
            lines.append(
                f"| {n_examples:,} | {figure['seconds']:.1f} | {figure['megabytes']:.2f} | "
                f"{figure['first_paint']:.0f} | {figure['map']:.0f} |"
            )
            figures[str(n_examples)] = figure
    text = f"## The report in a browser\n\n`python benchmarks/report_page.py`, {{date}}, two CPU cores.\n{_explained()}"
    conclude("report-page", text, lines, figures, options.write)


def _explained() -> str:
    return (__doc__ or "").split("\n\n")[2]


def measured(n_examples: int, file: Path, page: Page) -> dict[str, float | bool]:
    """The figures of the page of so many examples."""
    sweep, predictions, examples = swept(n_examples)
    started = time.perf_counter()
    explored = explored_sweep(sweep, predictions, examples)
    write_page([sweep], file, f"{sweep.label}: position gap {sweep.gap:.1f} points", explored)
    seconds = time.perf_counter() - started
    paints, maps = [], []
    for _ in range(TIMES):
        page.open("about:blank#")
        page.open(f"{file.as_uri()}#examples")
        page.wait(
            "performance.getEntriesByName('map').length === 1 && performance.getEntriesByType('paint').length > 0"
        )
        paints.append(page.js("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        maps.append(page.js("performance.getEntriesByName('map')[0].startTime"))
    page.settle()
    accuracy = page.js("[...document.querySelectorAll('.column')].map((column) => Number(column.dataset.accuracy))")
    return {
        "seconds": round(seconds, 1),
        "megabytes": round(file.stat().st_size / 1e6, 2),
        "first_paint": round(median(paints)),
        "map": round(median(maps)),
        "read_back": bool(np.allclose(accuracy, sweep.accuracy)) and not page.complaints,
    }


def swept(n_examples: int) -> tuple[Sweep, list[Prediction], list[Example]]:
    """A sweep that is lost in the middle, with its predictions and examples."""
    draw, rng = random.Random(0), np.random.default_rng(0)
    vocabulary = ["".join(draw.choices("etaoinshrdlucmfwyp", k=draw.randint(2, 9))) for _ in range(VOCABULARY)]
    weights = [1 / rank for rank in range(1, VOCABULARY + 1)]

    def words(count: int) -> str:
        return " ".join(draw.choices(vocabulary, weights, k=count))

    examples = [
        Example(
            id=f"nq-{i}",
            question=words(9),
            answers=[words(2)],
            gold=[Document(title=words(3), text=words(WORDS))],
            distractors=[Document(title=words(3), text=words(WORDS)) for _ in range(N_DOCS - 1)],
        )
        for i in range(n_examples)
    ]
    placements = [list(p.positions) for p in swept_placements(N_DOCS, 1)]
    # Each example has a difficulty; the curve is a U.
    skill = 0.55 + 0.4 * (np.linspace(-1, 1, N_DOCS) ** 2)
    right = rng.normal(size=(n_examples, 1)) * 0.35 + skill + 0.15 * rng.normal(size=(n_examples, N_DOCS)) > 0.5
    predictions: list[Prediction] = [
        {
            "id": example.id,
            "content": f"{at:064x}",
            "placement": placement,
            "response": f"{example.answers[0]} {example.question}" if right[at, column] else words(20),
            "correct": bool(right[at, column]),
        }
        for at, example in enumerate(examples)
        for column, placement in enumerate(placements)
    ]
    asked = Asked(prompt="", template="", question="after", shuffle=0, max_new_tokens=100, decoding="greedy")
    sweep = Sweep(
        **{"task": "qa", "model": "made", "label": "made", "scaling": None, "metric": "litm", "n_docs": N_DOCS},
        **summarize(right, placements, 0),
        **{"examples_digest": "", "model_digest": "", "prompt_digest": "", "asked": asked, "settings": {}},
    )
    return sweep, predictions, examples


if __name__ == "__main__":
    main()
