"""LPES and its baselines on the tiny model, over seeds: the figures `scaling` of docs/results.md.

    python benchmarks/scaling_results.py --data FILE [--seeds 0 1 2] [--lengths 20 30 40] [--out runs/scaling]
    python benchmarks/scaling_results.py --data FILE --only Ms-PoE    these methods' rows, of the base model alone

FILE is the lost-in-the-middle key-value file (300 lines), or what `posgap data make kv` writes. At each
length every method is searched on the first 60 lines and swept on lines 101 to 300. Every step is a
stage: what is complete is reused.
"""

import argparse
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import date
from functools import cached_property
from pathlib import Path
from statistics import mean

from distillation_results import Bench, retrieval_bench
from report import ROOT, spread, write_section

from posgap.data.config import ImportConfig
from posgap.data.verbs import import_examples
from posgap.demo import tiny_model
from posgap.foundation.tables import markdown
from posgap.generation.setup import builder_of
from posgap.measurement.comparison import Difference, compare_sweeps
from posgap.measurement.sweeps import Evidence, Sweep, read_sweep
from posgap.mitigating.config import ApplyConfig
from posgap.mitigations.in_force import load_model
from posgap.models.head_scaling import ms_poe_factors
from posgap.scaling.config import ScaleSearchConfig
from posgap.scaling.scaling_file import read_scaling
from posgap.stages.apply import apply
from posgap.stages.scale_search import scale_search
from posgap.tasks.placements import spaced_positions, swept_placements
from posgap.tasks.reading import read_examples

METHODS = {
    "uniform": {"curve": "uniform"},
    "Ms-PoE": {},  # measured over the searched prompts, not searched
    "linear": {"curve": "linear"},
    "step": {"curve": "step", "order": 1},
    "Bezier": {"curve": "bezier"},
    "free": {"curve": "free"},
}
ON_R1 = ("uniform", "Bezier")  # the methods that are also searched on the R1 model
# Nothing is kept aside of the 60: lines 101 to 300 tell what a scaling gains.
SEARCH = {"population": 14, "generations": 6, "limit": 60, "holdout": 0, "batch_tokens": 2048}
SEARCHED, SWEPT = 7, 10  # positions
PASSES = "passes"
Row = dict[str, float]  # mean, worst, gap, and the forward passes of the search


class Scalings:
    """The scalings of one seed's models, each searched once."""

    def __init__(self, bench: Bench, source: Path, lengths: Sequence[int]):
        self.bench, self.lengths = bench, lengths
        cut = {"key_digits": tiny_model.KEY_DIGITS, "value_digits": tiny_model.VALUE_DIGITS, "seed": bench.seed}
        self.questions = import_examples(
            ImportConfig(input=source, out=bench.folder / "search.jsonl.gz", last=SEARCH["limit"], **cut)
        )

    def asked(self, model: Path, method: str, n: int) -> ScaleSearchConfig:
        bench = self.bench
        return ScaleSearchConfig(
            **SEARCH,
            **METHODS[method],
            model=str(model),
            examples=self.questions,
            exclude=bench.held_out,
            n_docs=n,
            positions=spaced_positions(n, SEARCHED),
            max_new_tokens=2,
            seed=bench.seed,
            out=bench.folder / f"scaling-{_name(model, method, n)}",
        )

    def searched(self, model: Path, method: str, n: int) -> Path:
        return scale_search(self.asked(model, method, n))

    def scaled(self, model: Path, method: str, n: int) -> Path:
        """The model scaled by a method at a length."""
        how = {"found": self.searched(model, method, n)} if METHODS[method] else self.by_head(model, method, n)
        out = self.bench.folder / _name(model, method, n)
        return apply(ApplyConfig(model=str(model), **how, out=out))

    def by_head(self, model: Path, method: str, n: int) -> dict:
        """Ms-PoE's factors as `apply` takes them, from the prompts of the search."""
        config = self.asked(model, method, n)
        build, examples = builder_of(config), read_examples(config.examples)[: config.limit]
        prompts = [build(e, place) for e in examples for place in swept_placements(n, 1, config.positions)]
        factors = ms_poe_factors(load_model(str(model), config.dtype), prompts)
        return {"mitigation": "ms-poe-static", "mitigation_settings": {"factors": factors}}

    @cached_property
    def r1(self) -> Path:
        return self.bench.distilled("R1")

    @cached_property
    def r1_after(self) -> Path:
        """R1 trained on the base model as the Bezier curve of the greatest length scaled it."""
        scaled = self.scaled(self.bench.model, "Bezier", max(self.lengths))
        return replace(self.bench, folder=self.bench.folder / "after", model=scaled).distilled("R1")

    def sweep(self, model: Path, n: int) -> Sweep:
        return read_sweep(self.sweep_folder(model, n))

    def sweep_folder(self, model: Path, n: int) -> Path:
        is_own = model == self.bench.model or model.parent == self.bench.folder
        name = model.name if is_own else f"{model.parent.name}-{model.name}"
        return self.bench.swept(model, name, n, positions=spaced_positions(n, SWEPT))

    def rows(self, n: int) -> dict[str, Row]:
        """Figures of every model at length n."""
        rows = self.rows_of("base", self.bench.model, METHODS, n) | self.rows_of("R1", self.r1, ON_R1, n)
        return rows | {self.last_row: figures(self.sweep(self.r1_after, n))}

    def rows_of(self, start: str, model: Path, methods: Iterable[str], n: int) -> dict[str, Row]:
        """Figures of a model at length n, unscaled and scaled by some methods."""
        rows = {start: figures(self.sweep(model, n))}
        for method in methods:
            passes = read_scaling(self.searched(model, method, n)).forward_passes if METHODS[method] else 0
            rows[f"{start}, {method}"] = figures(self.sweep(self.scaled(model, method, n), n), passes)
        return rows

    @property
    def last_row(self) -> str:
        return f"Bezier of n = {max(self.lengths)}, then R1"

    def transfer(self, n: int) -> list[Difference]:
        """What the base model's Bezier scaling of length n changes at every length."""
        models = (self.bench.model, self.scaled(self.bench.model, "Bezier", n))
        pairs = [[Evidence(self.sweep_folder(model, to)) for model in models] for to in self.lengths]
        return [compare_sweeps(pair).differences[0] for pair in pairs]


def _name(model: Path, method: str, n: int) -> str:
    return f"{model.name}-{method.lower().replace(', ', '-')}-{n}"


def figures(sweep: Sweep, passes: int = 0) -> Row:
    return {"mean": sweep.mean, "worst": sweep.worst.accuracy, "gap": sweep.gap, PASSES: passes}


def start(name: str) -> str:
    """The unscaled model that a row is compared with."""
    return "R1" if name.startswith("R1") else "base"


def gains(seeds: Sequence[dict[str, Row]], name: str) -> list[float]:
    """What a row's mean gains over its unscaled model's, seed by seed."""
    return [rows[name]["mean"] - rows[start(name)]["mean"] for rows in seeds]


def table(seeds: Sequence[dict[str, Row]]) -> str:
    """One length: a row a model."""
    lines = []
    for name in seeds[0]:
        columns = [spread([rows[name][column] for rows in seeds]) for column in ("mean", "worst", "gap")]
        gained = "" if name == start(name) else ", ".join(f"{gain:+.1f}" for gain in gains(seeds, name))
        passes = mean(rows[name][PASSES] for rows in seeds)
        lines.append([name, *columns, gained, f"{passes:,.0f}" if passes else ""])
    return markdown(["model", "mean", "worst", "gap", "gain in mean, each seed", "forward passes"], lines)


def verdict(seeds: Sequence[dict[str, Row]], n: int) -> str:
    """Whether the Bezier curve gains ten points where contexts are longest, and beats one factor for all layers."""
    sentences = []
    for name in ("base, Bezier", "R1, Bezier"):
        gained = gains(seeds, name)
        reached = sum(gain >= 10 for gain in gained)
        uniform = [f"{a - b:+.1f}" for a, b in zip(gained, gains(seeds, name.replace("Bezier", "uniform")))]
        sentences.append(
            f"On the {start(name)} model at n = {n} the Bezier curve gains {', '.join(f'{g:+.1f}' for g in gained)} "
            f"points in the mean: ten or more on {reached} of {len(gained)} seeds. Over the best uniform factor it "
            f"gains {', '.join(uniform)}."
        )
    return "\n".join(sentences)


def carries_over(transfers: Sequence[dict[int, list[Difference]]], lengths: Sequence[int]) -> str:
    """The gain in mean of the scaling of each length at each, and on how many seeds it is not for certain a gain."""
    lines = []
    for searched in lengths:
        cells = []
        for i in range(len(lengths)):
            seeds = [transfer[searched][i] for transfer in transfers]
            unsure = sum(row.mean_ci95[0] <= 0 for row in seeds)
            cells.append(f"{mean(row.mean for row in seeds):+.1f}" + (f" (not on {unsure} seeds)" if unsure else ""))
        lines.append([f"n = {searched}", *cells])
    return markdown(["searched at", *(f"n = {n}" for n in lengths)], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--lengths", type=int, nargs="+", default=[20, 30, 40])
    parser.add_argument(
        "--only", nargs="+", choices=METHODS, help="rows of the base model by these, in a section of its own"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "scaling")
    options = parser.parse_args()
    logging.basicConfig(format="posgap | %(message)s")
    logging.getLogger("posgap").setLevel(logging.INFO)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{options.out.absolute()}/mlflow.db")
    options.out.mkdir(parents=True, exist_ok=True)
    benches = [retrieval_bench(options.out, options.data, "scalable", seed) for seed in options.seeds]
    scalings = [Scalings(bench, options.data, options.lengths) for bench in benches]
    if options.only:
        tables = []
        for n in options.lengths:
            some = [scaling.rows_of("base", scaling.bench.model, options.only, n) for scaling in scalings]
            tables.append(f"### {', '.join(options.only)}, n = {n}\n\n{table(some)}")
        seeds = ", ".join(map(str, options.seeds))
        text = ALONE.format(date=date.today(), seeds=seeds, names=", ".join(options.only), tables="\n\n".join(tables))
        write_section("results", f"scaling-{'-'.join(options.only).lower()}", text)
        return
    rows = {n: [scaling.rows(n) for scaling in scalings] for n in options.lengths}
    transfers = [{n: scaling.transfer(n) for n in options.lengths} for scaling in scalings]
    longest = max(options.lengths)
    write_section(
        "results",
        "scaling",
        RESULTS.format(
            date=date.today(),
            seeds=", ".join(map(str, options.seeds)),
            source=options.data.name,
            search=SEARCH,
            searched=SEARCHED,
            swept=SWEPT,
            verdict=verdict(rows[longest], longest),
            tables="\n\n".join(f"### n = {n}\n\n{table(rows[n])}" for n in options.lengths),
            transfer=carries_over(transfers, options.lengths),
        ),
    )


RESULTS = """\
## Scaling: LPES and its baselines

Written by `benchmarks/scaling_results.py` on {date}, two CPU cores, seeds {seeds}. Retrieval on {source}.
The base model is the tiny model trained at n = 20 with random position scales until the end (`tiny_recipes.SCALABLE`):
large models tolerate scales they have not seen, and a model of two layers does not. Scalings are searched on
{search[limit]} examples at {searched} positions with factors in [1, 2], population {search[population]}, at most
{search[generations]} generations; figures are of 200 held-out examples at {swept} positions. With two layers, linear,
step, Bezier and free curves reach the same factors, and differ in how they are searched. R1 is trained at n = 20.

{verdict}

{tables}

### Transfer

Gain in mean of the base model's Bezier scaling, searched at one length, at others (mean over seeds), and on how many
seeds `posgap compare` sees no gain there:

{transfer}
"""

ALONE = """\
## Scaling: {names} again

Written by `benchmarks/scaling_results.py --only {names}` on {date}, one thread of a machine at other work, seeds
{seeds}. The setting is that of the section on scaling. The base models were trained anew, by the code of that day and
on another processor, and came out otherwise: compare rows within a table. Heads are ranked once, over the searched
prompts.

{tables}
"""


if __name__ == "__main__":
    main()
