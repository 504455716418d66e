"""The tiny model's accuracy by length and depth, before and after R1: the figures `lengths` of docs/results.md.

    python benchmarks/length_map.py --data FILE [--seed 0] [--out runs/lengths]

FILE is the lost-in-the-middle key-value file of 140 keys (300 lines). The base model is trained where posgap's cache
does not have it, and R1 on lines 1 to 100; both are swept on lines 101 to 300 at five lengths and five depths. The
section says, too, whether the figures at one of the lengths are those of a sweep by hand with as many documents.
"""

import argparse
import os
import shutil
from datetime import date
from pathlib import Path

import torch
from bench import R1, Bench, retrieval_bench
from report import ROOT, write_section

from posgap.foundation.tables import markdown
from posgap.measurement.config import SweepConfig
from posgap.measurement.lengths import LengthMap, folder_at, read_lengths
from posgap.measurement.sweeps import read_sweep
from posgap.stages.sweep import sweep

DOCUMENTS = (10, 20, 30, 40, 60)
MAX_GAP = 20  # points
TRAINED = 20  # documents in a prompt of the model's training
RECORD, AROUND = 4, 6  # tokens of a record, and of all else in a prompt


def mapped(bench: Bench, model: Path, name: str) -> Path:
    """The folder of a model's sweeps at all lengths."""
    lengths = [RECORD * n + AROUND + bench.max_new_tokens for n in DOCUMENTS]
    asked = {"examples": bench.held_out, "max_new_tokens": bench.max_new_tokens, "lengths": lengths, "label": name}
    asked["most_gap"] = MAX_GAP
    return sweep(SweepConfig(model=str(model), out=bench.folder / f"lengths-{name}", **asked))


def is_by_hand(bench: Bench, lengths: LengthMap, folder: Path) -> bool:
    """Whether the column of the length that the model was trained at is what a sweep of as many documents says."""
    at = DOCUMENTS.index(TRAINED)
    column, places = read_sweep(folder_at(folder, lengths.tokens[at])), (1, 6, 10, 15, 20)
    plain = bench.base(TRAINED)
    by_position = dict(zip(plain.positions, plain.accuracy))
    return column.accuracy == lengths.accuracy[at] == [by_position[place] for place in places]


def table(maps: list[LengthMap]) -> str:
    """A row a length: gap and mean of each model."""
    rows = []
    for at, tokens in enumerate(maps[0].tokens):
        cells = [f"{tokens}", f"{maps[0].documents[at]}", f"{100 * tokens / maps[0].context:.0f} %"]
        for of_model in maps:
            low, high = of_model.gap_ci95[at]
            cells += [f"{of_model.gap[at]:.1f} ({low:.1f} to {high:.1f})", f"{of_model.mean[at]:.1f}"]
        rows.append(cells)
    named = [f"{of_model.label}: {what}" for of_model in maps for what in ("gap", "mean")]
    return markdown(["tokens", "records", "of the context", *named], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "lengths")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{options.out.absolute()}/mlflow.db")
    options.out.mkdir(parents=True, exist_ok=True)
    bench = retrieval_bench(options.out, options.data, "standard", options.seed)
    r1 = bench.distilled("r1", alignment="paper", anchoring=1.0)
    folders = [mapped(bench, bench.model, "base"), mapped(bench, r1, "R1")]
    maps = [read_lengths(folder) for folder in folders]
    shutil.copy(folders[0] / "lengths.png", ROOT / "docs" / "length-map.png")
    text = RESULTS.format(
        date=date.today(),
        method=R1,
        source=options.data.name,
        seed=options.seed,
        examples=maps[0].n_examples,
        table=table(maps),
        base=maps[0].effective.sentence(maps[0].tokens),
        r1=maps[1].effective.sentence(maps[1].tokens),
        same="the same" if is_by_hand(bench, maps[0], folders[0]) else "NOT the same",
    )
    write_section("results", "lengths", text)


RESULTS = """\
## Accuracy by length and depth

Written by `benchmarks/length_map.py` on {date}, one thread of a machine at other work, seed {seed}. Key-value retrieval
on {source}, lines 101-300 ({examples} examples); the tiny model, trained at 20
records, and what R1 makes of it with lines 1-100. `posgap sweep --lengths 50,90,130,170,250`, five depths.

![The base's accuracy by length and depth](length-map.png)

{table}

Base: {base}
R1: {r1}
At 20 records the figures of the base's column are {same} as those of a sweep by hand at positions 1, 6, 10, 15 and 20.

What the base loses goes by the distance from the end and not by depth. It finds best what stands some 20 to 25 records
from the end, wherever that is in a longer prompt. In prompts as long as those it was trained on, that is the beginning.
"""


if __name__ == "__main__":
    main()
