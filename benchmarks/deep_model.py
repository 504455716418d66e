"""The tiny model of eight layers, over seeds: the figures `deep` of docs/results.md.

    python benchmarks/deep_model.py --data FILE [--seeds 0 1 2] [--out runs/deep]

FILE is the lost-in-the-middle key-value file (300 lines). Each seed's model is made where posgap's cache does not have
it (`python tests/tiny_recipes.py deep --seed N`), and swept on lines 101 to 300.
"""

import argparse
import os
from datetime import date
from pathlib import Path

import torch
from bench import Bench, retrieval_bench
from report import ROOT, spread, write_section

from posgap.foundation.files import read_json
from posgap.foundation.tables import markdown
from posgap.measurement.sweeps import Sweep

POSITIONS = {20: (1, 5, 10, 15, 20), 40: (1, 10, 20, 30, 40)}
# The least accuracy, in points, of a model that retrieves wherever the record stands; guessing gives 6.
RETRIEVES = 20
# The least gap, in points, of a model that has lost the middle; a flat one measures some points too.
LOST = 20


def cells(sweep: Sweep, n: int) -> list[float]:
    accuracy = dict(zip(sweep.positions, sweep.accuracy))
    return [*(accuracy[i] for i in POSITIONS[n]), sweep.mean, sweep.gap]


def table(benches: list[Bench], n: int) -> str:
    """A row a seed."""
    rows = {bench.seed: cells(bench.base(n), n) for bench in benches}
    lines = [[str(seed), *(f"{value:.1f}" for value in row)] for seed, row in rows.items()]
    if len(rows) > 1:
        lines.append(["all", *map(spread, zip(*rows.values()))])
    return markdown(["seed", *(f"pos {i}" for i in POSITIONS[n]), "mean", "gap"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "deep")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{options.out.absolute()}/mlflow.db")
    options.out.mkdir(parents=True, exist_ok=True)
    benches = [retrieval_bench(options.out, options.data, "deep", seed) for seed in options.seeds]
    retrieving = [bench.seed for bench in benches if bench.base().worst.accuracy >= RETRIEVES]
    losing = [bench.seed for bench in benches if bench.base().gap >= LOST]
    seconds = [read_json(bench.model.parent / "model.json")["seconds"] for bench in benches]
    text = RESULTS.format(
        date=date.today(),
        source=options.data.name,
        seconds=", ".join(f"{s:.0f}" for s in seconds),
        seeds=", ".join(map(str, options.seeds)),
        retrieving=", ".join(map(str, retrieving)) or "none",
        least=RETRIEVES,
        losing=", ".join(map(str, losing)) or "none",
        lost=LOST,
        short=table(benches, 20),
        long=table(benches, 40),
    )
    write_section("results", "deep", text)


RESULTS = """\
## A tiny model of eight layers

Written by `benchmarks/deep_model.py` on {date}, one thread of a machine at other work, seeds {seeds}. Key-value
retrieval on {source}: lines 101-300, trained at up to 20 records.

    python tests/tiny_recipes.py deep --seed 0

makes it once, keeps it in posgap's cache (`POSGAP_CACHE`, else `~/.cache/posgap`) and prints its folder. It took
{seconds} seconds. The recipe is `DEEP` in `tests/tiny_recipes.py`; a shortened one gave the same bits twice, on
one machine and one thread. Positions were scaled at random throughout, so that it tolerates layer scaling. At every
position of 20 it answers {least} % or more (guessing: 6 %) with seeds {retrieving}.

It loses the middle (a gap of {lost} points or more at n = 20) with seeds {losing}. From the other seeds the biased
steps did not take it, and they show a gap only in prompts that are longer than those they were trained on.

n = 20:

{short}

n = 40, twice what it was trained for:

{long}
"""


if __name__ == "__main__":
    main()
