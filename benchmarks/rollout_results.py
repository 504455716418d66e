"""What the rollout verbs find: known answers, the quick experiment, the tiny model before and after training.

    python benchmarks/rollout_results.py [--data FILE] [--seeds 3] [--model LABEL=FOLDER ...] [--out runs/rollout]

Writes docs/results-rollout.md and its pictures. Runs the stages themselves; what is complete is reused.
Without `--model` it trains the tiny model and distils it with R1; with it, the models named are
measured (a scaled one, say), the first of them as what the others are compared with.
"""

import argparse
import logging
import os
import shutil
from datetime import date
from pathlib import Path

import numpy as np
from distillation_results import METHODS, R1, Bench, retrieval_bench
from report import ROOT, markdown

from posgap import files
from posgap.config import MakeKVConfig, RolloutCompareConfig, RolloutExperimentConfig, RolloutMeasureConfig
from posgap.config import RolloutPredictConfig as PredictConfig
from posgap.demo import tiny_model
from posgap.rollout.architecture import Architecture
from posgap.rollout.attention import Mask
from posgap.rollout.files import read_measurement
from posgap.stages.rollout_compare import rollout_compare
from posgap.stages.rollout_experiment import rollout_experiment
from posgap.stages.rollout_measure import rollout_measure
from posgap.stages.rollout_predict import rollout_predict
from posgap.tasks.data import make_kv

KNOWN = ROOT.parent / "shared" / "theory" / "known_answers.json"
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
    rows = []
    for cell in summary:
        gaps = [f"{gap['mean']:+.1f} ± {gap['sd']:.1f}" for gap in cell["gaps"].values()]
        rows.append([f"{cell['panel']}: {cell['name']}", *gaps, f"{cell['accuracy']['any']:.1f}"])
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
    head = ["setting", "first vs. middle", "first vs. last", "middle vs. last", "accuracy, novel classes"]
    return markdown(head, rows), markdown(["finding", "expected", "each seed", "every seed"], signs)


def tiny(out: Path, data: Path) -> tuple[dict[str, Path], Bench]:
    """The tiny model before and after R1, and the bench with its held-out examples."""
    bench = retrieval_bench(out, data, tiny_model.STANDARD, "standard", 0)
    return {"base": bench.model, "R1": bench.distilled("R1", **METHODS[R1])}, bench


def measured(out: Path, models: dict[str, Path], bench: Bench) -> tuple[str, list[str]]:
    """Figures and readings of each model, and its comparison with what its architecture predicts."""
    rows, readings, seen = [], [], {}
    for label, model in models.items():
        folder = rollout_measure(
            RolloutMeasureConfig(
                texts=bench.held_out, model=str(model), task="kv", label=label, limit=100, out=out / f"measured-{label}"
            )
        )
        predicted = rollout_predict(
            PredictConfig(
                measurement=folder, encoding="measured", residual="measured", content="heads",
                label=f"predicted for {label}", out=out / f"predicted-{label}",
            )
        )  # fmt: skip
        swept = bench.sweep(model, label)
        compared = rollout_compare(
            RolloutCompareConfig(
                prediction=predicted, measurement=folder, sweep=bench.folder / f"sweep-{label}-20",
                out=out / f"compared-{label}",
            )
        )  # fmt: skip
        found, figures = read_measurement(folder), files.read_json(compared / "comparison.json")
        gradient, rollout = found.descriptions["gradient"], found.descriptions["rollout"]
        agreement = figures["figures"]
        rows.append(
            [
                label,
                f"{swept.gap:.1f}",
                " ".join(f"{v:.2f}" for v in found.lambdas),
                " ".join(f"{np.mean(v):.2f}" for v in found.first_mass),
                f"{gradient['first_token_times_uniform']:.2f}",
                f"{gradient['trough_times_uniform']:.2f}",
                f"{gradient['last_token_times_uniform']:.1f}",
                f"{rollout['first_token_times_uniform']:.2f}",
                *(f"{agreement[name]['spearman']:.2f}" for name in ("rollout", "gradient")),
            ]
        )
        readings += [f"- **{label}**: {found.reading}. Compared: {figures['reading']}."]
        seen[label] = {
            "gap": swept.gap,
            "share of the weakest stretch": gradient["trough_times_uniform"],
            "share of token 1": gradient["first_token_times_uniform"],
            "residual strength of the last layer": found.lambdas[-1],
        }
        shutil.copyfile(compared / "comparison.png", ROOT / "docs" / f"rollout-{label.lower()}.png")
    first, *others = seen
    for label in others:
        moved = [f"{name} {seen[first][name]:.2f} to {value:.2f}" for name, value in seen[label].items()]
        readings.append(f"- **From {first} to {label}** (gradient): {'; '.join(moved)}.")
    head = ["model", "gap", "lambda by layer", "mass on token 1", "gradient: token 1", "trough", "last"]
    return markdown([*head, "rollout: token 1", "Spearman, rollout", "gradient"], rows), readings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="lost-in-the-middle key-value file; default: made by posgap")
    parser.add_argument("--seeds", type=int, default=3, help="of the quick experiment")
    parser.add_argument("--model", action="append", default=[], metavar="LABEL=FOLDER", help="one more to measure")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "rollout")
    options = parser.parse_args()
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{out}/mlflow.db")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("posgap").setLevel(logging.INFO)
    gaps, signs = experiment(out, options.seeds)
    models, bench = tiny(out, options.data or make_kv(MakeKVConfig(out=out / "kv.jsonl.gz")))
    models |= {label: Path(folder) for label, folder in (text.split("=", 1) for text in options.model)}
    table, readings = measured(out, models, bench)
    with files.atomic(ROOT / "docs" / "results-rollout.md") as partial:
        partial.write_text(
            TEXT.format(
                date=date.today(), seeds=options.seeds, known=known_answers(), gaps=gaps, signs=signs, table=table,
                readings="\n".join(readings),
                pictures="\n\n".join(f"![{label}](rollout-{label.lower()}.png)" for label in models),
            )
        )  # fmt: skip


TEXT = """\
# Results: rollout theory

Written by `benchmarks/rollout_results.py` on {date}, two CPU cores; do not edit.

## Known answers

Greatest error of any entry of the last row against `theory/known_answers.json`, which states ten digits.

{known}

## The quick experiment

`posgap rollout experiment --preset quick`: {seeds} seeds, networks and training far smaller than the paper's (see
`src/posgap/rollout/presets.py`), so signs are compared and not sizes. Gaps [a, b] - [b, a] in points, mean ± standard
deviation over seeds.

![Gaps](rollout-experiment.png)

{gaps}

{signs}

## The tiny model, before and after

`posgap rollout measure` over 100 held-out key-value prompts, one model (seed 0), gold records at every position in
turn. Shares are relative to a uniform one. The last two columns: Spearman's correlation over positions of what the
architecture predicts (RoPE, measured lambdas and content) with what was measured. `--model LPES=FOLDER` adds a scaled
model.

{table}

{readings}

{pictures}
"""


if __name__ == "__main__":
    main()
