"""Whether alignment gains anything in the miniature, over a grid: the figures `alignment` of docs/results.md.

    python benchmarks/alignment.py --data FILE [--standard 0 1 2 3] [--deep 0] [--out runs/alignment]

FILE is the lost-in-the-middle key-value file (300 lines). `--standard` and `--deep` are seeds of the tiny models of two
and of eight layers. Each cell of the grid is trained twice on the same prompts, by KL alone and with alignment, and
takes half a minute (a minute and more with eight layers); every step is a stage, so what is complete is reused.
"""

import argparse
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import mean, stdev

import torch
from bench import Bench, retrieval_bench
from report import ROOT, write_section
from scipy.stats import t

from posgap.foundation.tables import markdown
from posgap.measurement.sweeps import Sweep, read_sweep

POSITIONS = (1, 3, 6, 10, 14, 18, 20)
PROMPTS_A_STEP, EXAMPLES = 80, 640
# With eight layers a part of it, since they take four times as long.
GRID = {"standard": [(8, 1), (8, 4), (32, 1), (32, 4), (128, 4)], "deep": [(8, 4), (32, 4)]}
LAYERS = {"standard": 2, "deep": 8}
FIGURES: dict[str, Callable[[Sweep], float]] = {
    "mean": lambda sweep: sweep.mean,
    "worst": lambda sweep: sweep.worst.accuracy,
    "gap": lambda sweep: sweep.gap,
}
PAPER = 1.6  # points that alignment adds to KL's mean (Qwen1.5-7B on NQ)


@dataclass(frozen=True)
class Setting:
    """A cell of the grid: the kind of model, the number of updates, and K."""

    recipe: str
    updates: int
    k: int

    def sweep(self, bench: Bench, alignment: str) -> Sweep:
        """The sweep of the model that is trained so."""
        name = f"{self.updates}-{self.k}-{alignment}"
        a_step = PROMPTS_A_STEP // self.k
        examples = min(EXAMPLES, self.updates * a_step)
        model = bench.distilled(
            name, count=EXAMPLES, preset={}, limit=examples, epochs=self.updates * a_step // examples, k=self.k,
            batch_size=PROMPTS_A_STEP, learning_rate=1e-3, warmup_steps=min(5, self.updates // 4),
            alignment=alignment, anchoring=0.0, save_steps=0,
        )  # fmt: skip
        return read_sweep(bench.swept(model, name, positions=POSITIONS))

    def row(self, benches: Sequence[Bench]) -> tuple[list[str], dict[str, list[float]]]:
        """The table's row, and what alignment adds to each figure, seed by seed."""
        pairs = [(self.sweep(bench, "none"), self.sweep(bench, "paper")) for bench in benches]
        gained = {name: [figure(b) - figure(a) for a, b in pairs] for name, figure in FIGURES.items()}
        figures = [mean(figure(a) for a, _ in pairs) for figure in FIGURES.values()]
        start = [str(LAYERS[self.recipe]), str(len(pairs)), str(self.updates), str(self.k)]
        return [*start, *(f"{x:.1f}" for x in figures), *map(shown, gained.values())], gained


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean over seeds, by Student's t; of one seed it is infinite."""
    if len(values) < 2:
        return float("-inf"), float("inf")
    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / len(values) ** 0.5
    return mean(values) - half, mean(values) + half


def shown(values: Sequence[float]) -> str:
    low, high = interval(values)
    return f"{mean(values):+.1f}" + (f" ({low:+.1f} to {high:+.1f})" if len(values) > 1 else "")


def verdict(gained: dict[Setting, dict[str, list[float]]]) -> str:
    """In how many settings the interval of the mean's gain lies above 0, below it, and below the paper's; and the gain
    over all settings of a kind of model, seed by seed."""
    intervals = [interval(each["mean"]) for each in gained.values()]
    above, below = sum(low > 0 for low, _ in intervals), sum(high < 0 for _, high in intervals)
    lesser = sum(high < PAPER for _, high in intervals)
    by_setting = [mean(each["mean"]) for each in gained.values()]
    pairs = [gain for each in gained.values() for gain in each["mean"]]
    lines = [
        f"Alignment shows a gain in {above or 'none'} of the grid's {len(gained)} settings: the 95 % interval of what "
        f"it adds to the mean lies\nabove 0 in {above}, below 0 in {below}, and below the paper's {PAPER:+.1f} in "
        f"{lesser}. The settings' means go from {min(by_setting):+.1f} to {max(by_setting):+.1f} points.\n"
        f"Of {len(pairs)} pairs of models the aligned one has the higher mean in {sum(gain > 0 for gain in pairs)} and "
        f"the lower in {sum(gain < 0 for gain in pairs)}. Of a single seed there is no interval."
    ]
    for recipe, layers in LAYERS.items():
        if of_kind := [each["mean"] for setting, each in gained.items() if setting.recipe == recipe]:
            lines.append(
                f"Averaged over the settings with {layers} layers it adds {shown([*map(mean, zip(*of_kind))])}."
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--standard", type=int, nargs="*", default=[0, 1, 2, 3])
    parser.add_argument("--deep", type=int, nargs="*", default=[0])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "alignment")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("posgap").setLevel(logging.WARNING)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{options.out.absolute()}/mlflow.db")
    options.out.mkdir(parents=True, exist_ok=True)
    benches = {
        recipe: [retrieval_bench(options.out, options.data, recipe, seed) for seed in seeds]
        for recipe, seeds in {"standard": options.standard, "deep": options.deep}.items()
        if seeds
    }
    # Seed by seed, so that what is complete when it is interrupted is complete for some seeds.
    for recipe, seeds in benches.items():
        for bench in seeds:
            for updates, k in GRID[recipe]:
                gained = Setting(recipe, updates, k).row([bench])[1]
                print(f"{recipe}, seed {bench.seed}, {updates} updates, K = {k}: {gained}", flush=True)
    settings = [Setting(recipe, updates, k) for recipe in benches for updates, k in GRID[recipe]]
    rows, gains = zip(*(setting.row(benches[setting.recipe]) for setting in settings))
    gained = dict(zip(settings, gains))
    text = RESULTS.format(
        date=date.today(),
        source=options.data.name,
        positions=", ".join(map(str, POSITIONS)),
        prompts=PROMPTS_A_STEP,
        bases="; ".join(base(recipe, each) for recipe, each in benches.items()),
        n=benches[settings[0].recipe][0].base().n_examples,
        verdict=verdict(gained),
        table=markdown([*HEAD, *FIGURES, *(f"{name}: aligned - KL" for name in FIGURES)], list(rows)),
    )
    write_section("results", "alignment", text)


def base(recipe: str, benches: Sequence[Bench]) -> str:
    means = ", ".join(f"{bench.base().mean:.0f} ({bench.base().gap:.0f})" for bench in benches)
    return f"with {LAYERS[recipe]} layers, seeds {', '.join(str(bench.seed) for bench in benches)}: {means}"


HEAD = ["layers", "seeds", "updates", "K"]
RESULTS = """\
## Does alignment gain anything?

Written by `benchmarks/alignment.py` on {date}, one thread. In the paper, weighing placements by their losses
(alpha, `--alignment paper`) adds 1.6 points to KL's mean. Here each setting is trained twice on the same prompts, by KL
alone and with alignment, without anchoring: {prompts} prompts a step, learning rate 1e-3. Key-value retrieval on
{source}: {n} held-out examples at positions {positions} of 20. The bases' means
(and gaps: their positions are of unequal difficulty) are
{bases}.

{verdict}

Figures of KL alone, then what alignment adds: means over seeds, and their 95 % intervals (Student's t, paired by seed).

{table}
"""


if __name__ == "__main__":
    main()
