"""LPES and its baselines on the tiny model, as the tables of docs/results-scaling.md.

    python benchmarks/scaling_results.py --data FILE [--seeds 0 1 2] [--lengths 20 30 40] [--out runs/scaling]

FILE is the lost-in-the-middle key-value file (300 lines), or what `posgap data make kv` writes. For each
seed: the base model and its R1 model; at each length every method is searched on the first 60 lines and
swept on lines 101 to 300. Every step is a stage: what is complete is reused.
"""

import argparse
import logging
import os
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from statistics import mean, stdev

from posgap.pipelines import smoke

from posgap.config import DistillConfig, ImportConfig, ScaleApplyConfig, ScaleSearchConfig, SweepConfig, TeacherConfig
from posgap.demo import tiny_model
from posgap.files import atomic
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.scaling.scaling_file import read_scaling
from posgap.stages.distill import distill
from posgap.stages.scale_apply import scale_apply
from posgap.stages.scale_search import scale_search
from posgap.stages.sweep import sweep
from posgap.stages.teacher import teacher
from posgap.tasks.data import import_examples
from posgap.tasks.placements import spaced_positions

ROOT = Path(__file__).resolve().parents[1]
METHODS = {
    "uniform": {"curve": "uniform"},
    "Ms-PoE": {"strategy": "ms_poe"},
    "linear": {"curve": "linear"},
    "step": {"curve": "step", "order": 1},
    "Bezier": {"curve": "bezier"},
    "Bezier, CMA-ES": {"curve": "bezier", "strategy": "cma"},
    "free": {"curve": "free"},
}
ON_R1 = ("uniform", "Bezier")  # the methods that are also searched on the R1 model


class Seed:
    """The models, scalings and sweeps of one seed, each made once, in `folder`."""

    def __init__(self, seed: int, folder: Path, data: Path, settings: argparse.Namespace):
        self.seed, self.folder, self.settings = seed, folder, settings
        cut = {
            "key_digits": tiny_model.KEY_DIGITS,
            "value_digits": tiny_model.VALUE_DIGITS,
            "input": data,
            "seed": seed,
        }
        self.searched = import_examples(ImportConfig(out=folder / "search.jsonl.gz", last=60, **cut))
        self.held_out = import_examples(ImportConfig(out=folder / "eval.jsonl.gz", first=101, **cut))
        self.train = import_examples(ImportConfig(out=folder / "train.jsonl.gz", last=100, queries=10, **cut))
        self.base = folder / "base"
        if not self.base.is_dir():
            with atomic(self.base) as partial:
                tiny_model.write(partial, seed)

    def sweep(self, model: Path, n: int) -> Sweep:
        positions = spaced_positions(n, self.settings.positions)
        config = SweepConfig(
            examples=self.held_out, n_docs=n, positions=positions, limit=self.settings.examples, **self._common(model)
        )
        return read_sweep(sweep(config.model_copy(update={"out": self.folder / f"sweep-{model.name}-{n}"})))

    def scaled(self, model: Path, method: str, n: int) -> tuple[Path, int]:
        """The model scaled by a method at a length, and the forward passes that took."""
        name = f"{model.name}-{method.lower().replace(', ', '-')}-{n}"
        searched = scale_search(
            ScaleSearchConfig(
                examples=self.searched,
                exclude=self.held_out,
                n_docs=n,
                positions=spaced_positions(n, 7),
                limit=self.settings.search_examples,
                population=self.settings.population,
                generations=self.settings.generations,
                **self._common(model) | {"out": self.folder / f"scaling-{name}"},
                **METHODS[method],
            )
        )
        out = self.folder / name
        scale_apply(ScaleApplyConfig(model=str(model), scaling=searched, out=out, seed=self.seed))
        return out, read_scaling(searched).forward_passes

    def distilled(self, model: Path) -> Path:
        """The model after R1 at the length it was trained for, with the demo's parameters."""
        common = {key: value for key, value in self._common(model).items() if key != "out"}
        responses = teacher(
            TeacherConfig(examples=self.train, advantageous=1, **common, out=self.folder / f"teacher-{model.name}")
        )
        chosen = {key: smoke.PARAMETERS[key] for key in smoke.PARAMETERS.keys() & DistillConfig.model_fields.keys()}
        trained = DistillConfig(
            **chosen | {"epochs": self.settings.epochs},
            examples=self.train,
            responses=responses,
            model=str(model),
            out=self.folder / f"{model.name}-r1",
            seed=self.seed,
        )
        return distill(trained)

    def _common(self, model: Path) -> dict:
        return {"model": str(model), "max_new_tokens": 2, "seed": self.seed, "out": self.folder}


def rows(seed: Seed, lengths: Sequence[int]) -> dict[tuple[str, int], list[float]]:
    """(model, length): mean, worst, gap, and forward passes of the search."""
    found: dict[tuple[str, int], list[float]] = {}

    def measure(name: str, model: Path, n: int, cost: int = 0) -> None:
        swept = seed.sweep(model, n)
        found[name, n] = [swept.mean, swept.worst.accuracy, swept.gap, cost]

    r1 = seed.distilled(seed.base)
    bezier = {}
    for n in lengths:
        measure("base", seed.base, n)
        for method in METHODS:
            scaled, cost = seed.scaled(seed.base, method, n)
            measure(f"base, {method}", scaled, n, cost)
            if method == "Bezier":
                bezier[n] = scaled
        measure("R1", r1, n)
        for method in ON_R1:
            scaled, cost = seed.scaled(r1, method, n)
            measure(f"R1, {method}", scaled, n, cost)
    longest = max(lengths)
    after = seed.distilled(bezier[longest])
    for n in lengths:
        measure(f"Bezier of n = {longest}, then R1", after, n)
        for searched, scaled in bezier.items():
            measure(f"Bezier of n = {searched}", scaled, n)
    return found


def table(found: dict[int, dict[tuple[str, int], list[float]]], n: int, names: Sequence[str]) -> str:
    """Markdown: a row a model, mean and spread over seeds, the means of single seeds, the gain over its base."""
    seeds = list(found)
    head = ["model", "mean", *(f"seed {s}" for s in seeds), "gain", "worst", "gap", "forward passes"]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for name in names:
        figures = [found[seed][name, n] for seed in seeds]
        start = "R1" if name.startswith("R1") else "base"
        means = [row[0] for row in figures]
        gains = [f"{row[0] - found[seed][start, n][0]:+.1f}" for seed, row in zip(seeds, figures)]
        spread = f" ± {stdev(means):.1f}" if len(means) > 1 else ""
        others = [f"{mean(column):.1f}" for column in list(zip(*figures))[1:3]]
        cost = f"{mean(row[3] for row in figures):,.0f}" if figures[0][3] else "-"
        cells = [name, f"{mean(means):.1f}{spread}", *(f"{m:.1f}" for m in means), " ".join(gains), *others, cost]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def carries_over(found: dict[int, dict], lengths: Sequence[int]) -> str:
    """Markdown: the gain in mean, over seeds, of the Bezier scaling of each length at each length."""
    lines = ["| searched at | " + " | ".join(f"n = {n}" for n in lengths) + " |", "|---" * (len(lengths) + 1) + "|"]
    for searched in lengths:
        cells = []
        for n in lengths:
            gain = mean(rows[f"Bezier of n = {searched}", n][0] - rows["base", n][0] for rows in found.values())
            cells.append(f"{gain:+.1f}" + (" **does not carry over**" if gain < 0 else ""))
        lines.append(f"| n = {searched} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--lengths", type=int, nargs="+", default=[20, 30, 40])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "scaling")
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "results-scaling.md")
    parser.add_argument("--population", type=int, default=14)
    parser.add_argument("--generations", type=int, default=6)
    parser.add_argument("--search-examples", type=int, default=60)
    parser.add_argument("--examples", type=int, default=200, help="held-out examples a position")
    parser.add_argument("--positions", type=int, default=10, help="positions a sweep asks, evenly spaced")
    parser.add_argument("--epochs", type=int, default=smoke.PARAMETERS["epochs"], help="of R1")
    settings = parser.parse_args()
    logging.basicConfig(format="posgap | %(message)s")
    logging.getLogger("posgap").setLevel(logging.INFO)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{settings.out.absolute()}/mlflow.db")
    settings.out.mkdir(parents=True, exist_ok=True)
    found = {}
    for seed in settings.seeds:
        found[seed] = rows(Seed(seed, settings.out / f"seed-{seed}", settings.data, settings), settings.lengths)
    names = ["base", *(f"base, {m}" for m in METHODS), "R1", *(f"R1, {m}" for m in ON_R1)]
    names.append(f"Bezier of n = {max(settings.lengths)}, then R1")
    text = RESULTS.format(
        date=date.today(),
        source=settings.data.name,
        settings=settings,
        tables="\n\n".join(f"## n = {n}\n\n{table(found, n, names)}" for n in settings.lengths),
        transfer=carries_over(found, settings.lengths),
    )
    with atomic(settings.results) as partial:
        partial.write_text(text)
    print(text)


RESULTS = """\
# Results: scaling

Written by `benchmarks/scaling_results.py` on {date}, two CPU cores; do not edit.

Key-value retrieval on {source}, tiny model (two layers, trained at n = 20). Scalings are searched on
{settings.search_examples} examples at seven positions, factors in [1, 2], population {settings.population}, at most
{settings.generations} generations. Figures are of {settings.examples} held-out examples at {settings.positions}
positions, in points. `mean` is over seeds, ± their standard deviation; `gain` is each seed's mean less that of
its unscaled model (base or R1); `worst` and `gap` are averaged over seeds. With two layers, linear, step,
Bezier and free curves can reach the same factors, and differ in how they are searched.

{tables}

## Transfer

Gain in mean of the base model's Bezier scaling, searched at one length, at others:

{transfer}
"""


if __name__ == "__main__":
    main()
