"""The recipes of `posgap distill` side by side in the miniature, and what each difference between them does.

    python benchmarks/recipes.py --data kv-retrieval-75_keys.jsonl.gz --out build/recipes [--seeds 0,1,2]

A row for each recipe, and a row for each value in which the authors' differs, put alone into the paper's. Both learn at
1e-3: a model of 100,000 parameters does not move at their 3e-6. Prints the figures `recipes` of docs/results.md.
"""

import argparse
import os
from pathlib import Path
from statistics import mean, stdev

import torch
from bench import Bench, retrieval_bench

from posgap.distillation.recipes import RECIPES
from posgap.foundation import files
from posgap.foundation.tables import markdown
from posgap.measurement.sweeps import read_sweep

RATE = {"learning_rate": 1e-3, "save_steps": 0}
POSITIONS = ("1", "5", "10", "15", "20")


def variants() -> dict[str, dict]:
    """What is given to `distill` in each row."""
    paper, authors = (RECIPES[name].values() for name in ("pos2distill", "pos2distill-authors"))
    differing = {name: value for name, value in authors.items() if value != paper[name]}
    # A final rate is one of a schedule that falls to it, so the two go together.
    course = {name: differing.pop(name) for name in ("schedule", "final_rate")}
    rows = {"pos2distill": {}, "pos2distill-authors": {"recipe": "pos2distill-authors"}}
    rows |= {f"with {name} {value}": {name: value} for name, value in differing.items()}
    return rows | {f"with {' '.join(f'{n} {v}' for n, v in course.items())}": course}


def row(bench: Bench, name: str, model: Path) -> list[float]:
    """Position 1, mean and gap over five positions."""
    swept = read_sweep(bench.swept(model, name, positions=POSITIONS))
    return [swept.accuracy[0], swept.mean, swept.gap]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True, help="lost-in-the-middle key-value file")
    parser.add_argument("--out", type=Path, default=Path("build/recipes"))
    parser.add_argument("--seeds", default="0,1,2")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["MLFLOW_TRACKING_URI"] = f"sqlite:///{options.out.resolve()}/mlflow.db"
    options.out.mkdir(parents=True, exist_ok=True)
    figures: dict[str, list[list[float]]] = {}
    steps: dict[str, int] = {}
    for seed in map(int, options.seeds.split(",")):
        bench = retrieval_bench(options.out, options.data, "standard", seed)
        figures.setdefault("base", []).append(row(bench, "base", bench.model))
        for label, how in variants().items():
            name = label.replace(" ", "-")
            model = bench.distilled(name, preset={}, **RATE | how)
            figures.setdefault(label, []).append(row(bench, name, model))
            steps[label] = sum(1 for _ in files.read_jsonl(model / "history.jsonl"))
            print(f"seed {seed}, {label}: {figures[label][-1]}", flush=True)
    rows = [
        [
            label,
            str(steps.get(label, "")),
            *(f"{mean(x):.1f} ± {stdev(x) if len(x) > 1 else 0:.1f}" for x in zip(*each)),
        ]
        for label, each in figures.items()
    ]
    print(markdown(["", "updates", "position 1", "mean", "gap"], rows))


if __name__ == "__main__":
    main()
