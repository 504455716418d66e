"""What the rollout verbs find: known answers, the quick experiment, the tiny model before and after R1 and LPES.

    python benchmarks/rollout_results.py --data FILE [--seeds 3] [--scaling runs/scaling] [--out runs/rollout]
    python benchmarks/rollout_results.py --preset figure8 [--seeds 1]

Writes the section `rollout` of docs/results.md and its pictures. Runs the stages themselves; what is
complete is reused: the models are those of `scaling_results.py`, whose `--out` is `--scaling`. With `--preset` an
experiment of the paper's at its sizes (hours on a CPU), in a section of its own.
"""

import argparse
import logging
import os
import shutil
import time
from datetime import date
from pathlib import Path

import numpy as np
from distillation_results import retrieval_bench
from report import ROOT, write_section
from scaling_results import Scalings

from posgap import files
from posgap.config import RolloutCompareConfig, RolloutExperimentConfig, RolloutMeasureConfig
from posgap.config import RolloutPredictConfig as PredictConfig
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.rollout.architecture import Architecture
from posgap.rollout.attention import Mask
from posgap.rollout.experiment_summary import gap_table, sink_table
from posgap.rollout.files import Measurement, read_measurement
from posgap.rollout.presets import PRESETS
from posgap.stages.rollout_compare import rollout_compare
from posgap.stages.rollout_experiment import rollout_experiment
from posgap.stages.rollout_measure import rollout_measure
from posgap.stages.rollout_predict import rollout_predict
from posgap.tables import markdown

KNOWN = ROOT.parent / "shared" / "theory" / "known_answers.json"
# Models by the number of records in a prompt: R1 is trained at 20, and LPES helps beyond.
MEASURED = {20: ("base", "R1"), 40: ("base", "LPES", "R1", "R1 + LPES")}
CHANGES = (("base", "R1"), ("base", "LPES"), ("R1", "R1 + LPES"))
FOUND = {
    "first-position bias of causal masking without encodings at depth 2": ("none, depth 2", "first,last", 1),
    "recency of decay": ("decay, depth 2", "first,last", -1),
    "both ends over the middle, sinusoidal: first over middle": ("causal mask, sin", "first,middle", 1),
    "both ends over the middle, sinusoidal: last over middle": ("causal mask, sin", "middle,last", -1),
    "both ends over the middle, RoPE: first over middle": ("causal mask, rope", "first,middle", 1),
    "both ends over the middle, RoPE: last over middle": ("causal mask, rope", "middle,last", -1),
    "without encodings only the first end is learned: middle over last": ("causal mask, none", "middle,last", 1),
}


def known_answers() -> str:
    """A row a case: the greatest error of any entry."""
    rows = []
    for case in files.read_json(KNOWN)["cases"]:
        n = case["sequence_length"]
        mask = {
            "causal": Mask.causal(n),
            "window": Mask.window(case["window"] or 1),
            "prefix": Mask.prefixed(n, case["prefix"] or 0),
        }[case["mask"]]
        row = Architecture(
            n, mask, case["lambdas"], np.array(case["alibi_slopes"]), diagonal=np.array(case["diagonal_scores"])
        ).rollout()
        stated = np.array(case["last_row"])
        rows.append([case["name"], f"{np.abs(row - stated).max():.0e}", f"{np.abs(row / stated - 1).max():.0e}"])
    return markdown(["case", "absolute", "relative"], rows)


def experiment(out: Path, seeds: int) -> tuple[str, str]:
    """The quick preset's gaps, and whether every finding's sign is the paper's."""
    folder = rollout_experiment(RolloutExperimentConfig(out=out / "quick", seeds=seeds))
    shutil.copyfile(folder / "experiment.png", ROOT / "docs" / "rollout-experiment.png")
    summary = files.read_json(folder / "experiment.json")["summary"]
    by_name = {cell["name"]: cell["gaps"] for cell in summary}
    signs = []
    for claim, (name, pair, sign) in FOUND.items():
        values = by_name[name][pair]["values"]
        agrees = "yes" if all(sign * v > 0 for v in values) else "no"
        signs.append([claim, "above 0" if sign > 0 else "below 0", ", ".join(f"{v:+.1f}" for v in values), agrees])
    depths = {name: gaps["first,last"]["values"] for name, gaps in by_name.items() if name.startswith("none, depth")}
    values = list(zip(*depths.values()))
    signs.append(
        [
            f"growth with depth ({' < '.join(name.split()[-1] for name in depths)})",
            "rising",
            "; ".join(", ".join(f"{v:+.1f}" for v in seed) for seed in values),
            "yes" if all(list(seed) == sorted(seed) for seed in values) else "no",
        ]
    )
    return gap_table(summary), markdown(["finding", "expected", "each seed", "every seed"], signs)


def figure(out: Path, preset: str, seeds: int) -> None:
    """An experiment at the paper's sizes, written into its section."""
    started = time.perf_counter()
    folder = rollout_experiment(RolloutExperimentConfig(preset=preset, out=out / preset, seeds=seeds))
    shutil.copyfile(folder / "experiment.png", ROOT / "docs" / f"rollout-{preset}.png")
    experiment, sizes = files.read_json(folder / "experiment.json"), PRESETS[preset].training
    text = FIGURE.format(
        date=date.today(), preset=preset, title=f"Figure {preset.removeprefix('figure')}", seeds=seeds,
        of=PRESETS[preset].seeds, iterations=f"{sizes.iterations:,}", tests=f"{sizes.tests:,}",
        minutes=(time.perf_counter() - started) / 60, reading=experiment["reading"],
        gaps=gap_table(experiment["summary"]), sinks=sink_table(experiment["summary"]),
    )  # fmt: skip
    write_section("results", f"rollout-{preset}", text)


class Models:
    """The tiny model before and after R1, scaling, and both, measured at one length; what is complete is reused."""

    def __init__(self, scalings: Scalings, n: int, out: Path):
        self.scalings, self.n, self.out = scalings, n, out

    def model(self, label: str) -> Path:
        start = self.scalings.r1 if label.startswith("R1") else self.scalings.bench.model
        return self.scalings.scaled(start, "Bezier", self.n) if label.endswith("LPES") else start

    def picture(self, label: str) -> str:
        return f"rollout-{label.lower().replace(' + ', '-')}-{self.n}.png"

    def measured(self, label: str) -> tuple[Measurement, Sweep, dict]:
        """The measurement, the sweep, and how the architecture's prediction fits; leaves the picture in docs."""
        model, name = self.model(label), Path(self.picture(label)).stem
        folder = rollout_measure(
            RolloutMeasureConfig(
                texts=self.scalings.bench.held_out, model=str(model), task="kv", n_docs=self.n, label=label, limit=100,
                out=self.out / f"measured-{name}",
            )
        )  # fmt: skip
        predicted = rollout_predict(
            PredictConfig(
                measurement=folder, encoding="measured", residual="measured", content="heads",
                label=f"predicted for {label}", out=self.out / f"predicted-{name}",
            )
        )  # fmt: skip
        swept = self.scalings.sweep_folder(model, self.n)
        compared = rollout_compare(
            RolloutCompareConfig(
                prediction=predicted, measurement=folder, sweep=swept, out=self.out / f"compared-{name}"
            )
        )  # fmt: skip
        shutil.copyfile(compared / "comparison.png", ROOT / "docs" / self.picture(label))
        return read_measurement(folder), read_sweep(swept), files.read_json(compared / "comparison.json")


def row(n: int, label: str, measured: Measurement, sweep: Sweep, compared: dict) -> list[str]:
    """A model's figures."""
    gradient, rollout = measured.descriptions["gradient"], measured.descriptions["rollout"]
    return [
        f"{label}, n = {n}",
        f"{sweep.mean:.1f}",
        f"{sweep.gap:.1f}",
        " ".join(f"{v:.2f}" for v in measured.lambdas),
        " ".join(f"{np.mean(v):.3f}" for v in measured.first_mass),
        f"{gradient['first_token_times_uniform']:.2f}",
        f"{gradient['trough_times_uniform']:.2f}",
        f"{gradient['last_token_times_uniform']:.1f}",
        f"{rollout['first_token_times_uniform']:.2f}",
        *(f"{compared['figures'][name]['spearman']:.2f}" for name in ("rollout", "gradient")),
    ]


def change(before: tuple[Measurement, Sweep, dict], after: tuple[Measurement, Sweep, dict]) -> str:
    """What moved from one model to another: clearly, by a tenth or more, or hardly."""
    figures = []
    for measured, sweep, compared in (before, after):
        gradient = measured.descriptions["gradient"]
        figures.append(
            {
                "mean accuracy": sweep.mean,
                "the gap": sweep.gap,
                "the share of the weakest stretch": gradient["trough_times_uniform"],
                "that of token 1": gradient["first_token_times_uniform"],
                "that of the last token": gradient["last_token_times_uniform"],
                "the last layer's residual strength": measured.lambdas[-1],
                "Spearman's correlation of accuracy and measured shares": compared["sweep"]["spearman"]["measured"],
            }
        )
    said = []
    for what, now in figures[1].items():
        was = figures[0][what]
        verb = "stays at about" if abs(now - was) < 0.1 * abs(was) else "rises to" if now > was else "falls to"
        said.append(f"{what} {verb} {now:.2f} (from {was:.2f})")
    return "; ".join(said)


def measured(out: Path, scalings: Scalings) -> tuple[str, str, str]:
    """Figures of each model, readings of each and of what changed, and pictures."""
    rows, readings, changes, pictures = [], [], [], []
    for n, labels in MEASURED.items():
        models = Models(scalings, n, out)
        seen = {label: models.measured(label) for label in labels}
        for label, (measured, sweep, compared) in seen.items():
            rows.append(row(n, label, measured, sweep, compared))
            readings.append(f"- **{label}, n = {n}**: {measured.reading}. Compared: {compared['reading']}.")
            pictures.append(f"![{label}, n = {n}]({models.picture(label)})")
        for first, label in CHANGES:
            if {first, label} <= seen.keys():
                changes.append(f"- **From {first} to {label}, n = {n}**: {change(seen[first], seen[label])}.")
    head = ["model", "mean", "gap", "lambda by layer", "mass on token 1", "gradient: token 1", "trough", "last"]
    table = markdown([*head, "rollout: token 1", "Spearman, rollout", "gradient"], rows)
    return table, "\n".join([*readings, *changes]), "\n\n".join(pictures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="lost-in-the-middle key-value file")
    parser.add_argument(
        "--preset", choices=sorted(PRESETS.keys() - {"quick"}), help="this experiment alone, at the paper's sizes"
    )
    parser.add_argument("--seeds", type=int, default=3, help="of the experiment")
    parser.add_argument("--scaling", type=Path, default=ROOT / "runs" / "scaling", help="models, made where missing")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "rollout")
    options = parser.parse_args()
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{out}/mlflow.db")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("posgap").setLevel(logging.INFO)
    if options.preset:
        return figure(out, options.preset, options.seeds)
    if options.data is None:
        parser.error("--data: not given: give the key-value file, or a --preset")
    gaps, signs = experiment(out, options.seeds)
    bench = retrieval_bench(options.scaling, options.data, "scalable", 0)
    table, readings, pictures = measured(out, Scalings(bench, options.data, list(MEASURED)))
    text = TEXT.format(
        date=date.today(), seeds=options.seeds, known=known_answers(), gaps=gaps, signs=signs,
        table=table, readings=readings, pictures=pictures,
    )  # fmt: skip
    write_section("results", "rollout", text)


TEXT = """\
## Rollout theory

Written by `benchmarks/rollout_results.py` on {date}, two CPU cores.

### Known answers

Greatest error of any entry of the last row against `theory/known_answers.json`, which states ten digits.

{known}

### The quick experiment

`posgap rollout experiment --preset quick`: {seeds} seeds, networks and training far smaller than the paper's (see
`src/posgap/rollout/presets.py`), so signs are compared and not sizes. Gaps [a, b] - [b, a] in points, mean ± standard
deviation over seeds. Chance is a copier's accuracy, who names any label of the sequence: a setting that does not
exceed it shows which places a copier prefers, not which item a network that solves the task would.

![Gaps](rollout-experiment.png)

{gaps}

{signs}

### The tiny model before and after R1 and LPES

`posgap rollout measure` over 100 held-out key-value prompts of n records, the model of the section on scaling (seed 0),
gold records at every position in turn. Shares are relative to a uniform one and, where nothing else is said, the
gradient's. The last two columns: Spearman's correlation over positions of what the architecture predicts (RoPE with its
factors, measured lambdas and content) with what was measured.

{table}

{readings}

{pictures}
"""

FIGURE = """\
## {title} of the controlled study, at the paper's size

Written by `benchmarks/rollout_results.py --preset {preset} --seeds {seeds}` on {date}, one CPU thread beside other
work, {minutes:.0f} minutes: {iterations} iterations, {tests} sequences a test, {seeds} of the paper's {of} seeds.

{reading}.

![{title}](rollout-{preset}.png)

{sinks}

{gaps}
"""


if __name__ == "__main__":
    main()
