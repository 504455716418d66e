"""LPES on the demo's own models, at twice their length: the figures `demo-scaling` of docs/results.md.

    python benchmarks/demo_scaling.py [--data FILE] [--seeds 0] [--out runs/results]

Makes the models as `benchmarks/demo_seeds.py` does, in the same folder, and reuses what is complete there. Each is
searched on the first 60 lines of the data with the cubic Bezier curve, and swept on lines 101 to 300.
"""

import argparse
import os
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import mean

import torch
from demo_seeds import run
from report import ROOT, write_section

from posgap.data.config import ImportConfig
from posgap.data.verbs import import_examples
from posgap.demo import tiny_model
from posgap.demo.config import DemoConfig
from posgap.demo.run import examples
from posgap.foundation.tables import markdown
from posgap.measurement.config import SweepConfig
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.mitigating.config import ApplyConfig
from posgap.scaling.config import ScaleSearchConfig
from posgap.stages.apply import apply
from posgap.stages.scale_search import scale_search
from posgap.stages.sweep import sweep
from posgap.tasks.placements import spaced_positions

N_DOCS, SEARCHED, SWEPT, LINES = 40, 7, 10, 60


def scaled(model: Path, name: str, folder: Path, searched: Path, held_out: Path) -> tuple[Sweep, Sweep]:
    """The sweeps of a model before and after its search, at `N_DOCS` records."""
    asked = {"model": str(model), "max_new_tokens": 2, "n_docs": N_DOCS}

    def swept(model: Path, label: str) -> Sweep:
        places = spaced_positions(N_DOCS, SWEPT)
        given = asked | {"model": str(model), "examples": held_out, "positions": places, "label": label}
        return read_sweep(sweep(SweepConfig(**given, out=folder / f"sweep-{label}-{N_DOCS}")))

    found = scale_search(
        ScaleSearchConfig(
            **asked,
            examples=searched,
            exclude=held_out,
            positions=spaced_positions(N_DOCS, SEARCHED),
            population=14,
            generations=6,
            limit=LINES,
            holdout=0,  # lines 101 to 300 tell what it gains
            out=folder / f"scaling-{name}-{N_DOCS}",
        )
    )
    applied = apply(ApplyConfig(model=str(model), found=found, out=folder / f"{name}-scaled-{N_DOCS}"))
    return swept(model, name), swept(applied, f"{name}-scaled")


def table(results: dict[str, Sequence[tuple[Sweep, Sweep]]], seeds: Sequence[int]) -> str:
    lines = []
    for name, pairs in results.items():
        for seed, (before, after) in zip(seeds, pairs):
            for label, each in ((name, before), (f"{name}, scaled", after)):
                low, high = each.gap_ci95
                gap = [f"{each.gap:.1f}", f"{low:.1f} to {high:.1f}"]
                lines.append([label, str(seed), f"{each.mean:.1f}", f"{each.worst.accuracy:.1f}", *gap])
    return markdown(["model", "seed", "mean", "worst", "gap", "gap, 95 %"], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    out = options.out.absolute()
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{out}/mlflow.db")
    results: dict[str, list[tuple[Sweep, Sweep]]] = {"base": [], "Pos2Distill-R1": []}
    for seed in options.seeds:
        folder = out / f"seed-{seed}"
        run(seed, folder, options.data)
        _, held_out = examples(DemoConfig(out=folder, seed=seed, data=options.data), folder)
        cut = {"key_digits": tiny_model.KEY_DIGITS, "value_digits": tiny_model.VALUE_DIGITS, "seed": seed}
        source = options.data or next(folder.glob("kv*.jsonl.gz"))
        searched = import_examples(ImportConfig(input=source, out=folder / "search.jsonl.gz", last=LINES, **cut))
        for name, model in (("base", folder / "model"), ("Pos2Distill-R1", folder / "r1")):
            short = "base" if name == "base" else "r1"
            results[name].append(scaled(model, short, folder, searched, held_out))
    said = "; ".join(
        f"that of {'the base' if name == 'base' else name} from {mean(a.mean for a, _ in pairs):.0f} to "
        f"{mean(b.mean for _, b in pairs):.0f}"
        for name, pairs in results.items()
    )
    write_section(
        "results",
        "demo-scaling",
        RESULTS.format(
            date=date.today(),
            said=said,
            table=table(results, options.seeds),
            n=N_DOCS,
            lines=LINES,
            seeds=", ".join(map(str, options.seeds)),
        ),
    )


RESULTS = """\
## The demo's own models, scaled at twice their length

Written by `benchmarks/demo_scaling.py` on {date}, one thread of a machine at other work, seeds {seeds}. The demo's
models were trained at 20 records and not for scaling, and are asked with {n}. LPES is a cubic Bezier curve, searched on
{lines} examples. It brings the mean of 200 held-out examples at ten positions:
{said}.

{table}
"""


if __name__ == "__main__":
    main()
