"""What the rollout verbs find: known answers, and three questions asked of the tiny models before and after R1.

    python benchmarks/rollout_results.py --data FILE [--seeds 0 1 2] [--out runs/rollout]
    python benchmarks/rollout_results.py --preset learned [--networks 1]

FILE is the lost-in-the-middle key-value file (300 lines). Writes the figures `rollout-theory` of docs/results.md and
its pictures. Runs the stages themselves on the models of posgap's cache; what is complete is reused. With `--preset` a
controlled experiment in a section of its own.
"""

import argparse
import logging
import os
import shutil
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib.pyplot as plt
import numpy as np
import torch
from bench import R1, Bench, retrieval_bench
from report import ROOT, write_section

from posgap.foundation import files
from posgap.foundation.tables import markdown
from posgap.measurement.plots import COLORS, save_picture
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.rollout.architecture import Architecture
from posgap.rollout.attention import Mask
from posgap.rollout.config import RolloutExperimentConfig, RolloutMeasureConfig
from posgap.rollout.config import RolloutPredictConfig as PredictConfig
from posgap.rollout.distributions import binned, mean_interval, spearman
from posgap.rollout.documents import gold_shares
from posgap.rollout.experiment_summary import gap_table, sink_table
from posgap.rollout.files import Measurement, read_document_shares, read_measurement, read_prediction
from posgap.rollout.plots import styled
from posgap.rollout.trials import PRESETS
from posgap.stages.rollout_experiment import rollout_experiment
from posgap.stages.rollout_measure import rollout_measure
from posgap.stages.rollout_predict import rollout_predict

KNOWN = ROOT.parent / "shared" / "theory" / "known_answers.json"
N_DOCS = 20
PROMPTS = 200  # ten at each gold position
SAID = {"standard": "two layers", "deep": "eight layers"}
STRETCHES = {"positions 1 to 4": range(1, 5), "7 to 13": range(7, 14), "17 to 20": range(17, 21)}
# What of the architecture a prediction knows, each beside what those before it know.
PARTS: dict[str, dict[str, Any]] = {
    "mask": {"residual_strength": 1.0},
    "and residuals": {"residual": "measured"},
    "and RoPE": {"residual": "measured", "encoding": "measured"},
    "and content": {"residual": "measured", "encoding": "measured", "content": "heads"},
}
TITLES = {"quick": "The controlled study, quick", "learned": "The controlled study where its task is learned"}


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


def figure(out: Path, preset: str, networks: int) -> None:
    """An experiment, written into its section."""
    folder = rollout_experiment(RolloutExperimentConfig(preset=preset, out=out / preset, seeds=networks))
    shutil.copyfile(folder / "experiment.png", ROOT / "docs" / f"rollout-{preset}.png")
    experiment, chosen = files.read_json(folder / "experiment.json"), PRESETS[preset]
    text = FIGURE.format(
        date=date.today(), preset=preset, title=TITLES[preset],
        networks=networks or chosen.seeds, of=chosen.seeds, iterations=f"{chosen.training.iterations:,}",
        tests=f"{chosen.training.tests:,}", summary=experiment["summary"],
        gaps=gap_table(experiment["means"]), sinks=sink_table(experiment["means"]),
    )  # fmt: skip
    write_section("results", f"rollout-{preset}", text)


class Looked(NamedTuple):
    """A model with its sweep, its measurement, and predictions by what they know [N]."""

    label: str
    sweep: Sweep
    measured: Measurement
    shares: np.ndarray  # the gold document's share of the rollout, [E]
    positions: np.ndarray  # its position, [E]
    predicted: dict[str, np.ndarray]


def looked_at(bench: Bench, kind: str, trained: bool, out: Path) -> Looked:
    """Runs measure and predict on a model of a bench, as it was made or after R1."""
    label = f"{SAID[kind]}, seed {bench.seed}{', R1' if trained else ''}"
    name = f"{kind}-{bench.seed}{'-r1' if trained else ''}"
    model = bench.distilled(R1.replace(" ", "")) if trained else bench.model
    swept = bench.swept(model, "R1" if trained else "base", N_DOCS)
    folder = rollout_measure(
        RolloutMeasureConfig(
            texts=bench.held_out, model=str(model), task="kv", n_docs=N_DOCS, label=label, limit=PROMPTS,
            sweep=swept, out=out / f"measured-{name}",
        )
    )  # fmt: skip
    predicted = {
        what: rollout_predict(
            PredictConfig(
                measurement=folder,
                **how,
                label=what,
                out=out / f"predicted-{name}-{what.replace(' ', '-')}",
            )
        )
        for what, how in PARTS.items()
    }
    measured = read_measurement(folder)
    assert measured.documents is not None
    positions = np.array([position for _, position in measured.documents["asked"]])
    return Looked(
        label,
        read_sweep(swept),
        measured,
        gold_shares(read_document_shares(folder, measured)["rollout"], positions),
        positions,
        {what: np.array(read_prediction(path).distribution) for what, path in predicted.items()},
    )


def why(models: Iterable[Looked]) -> str:
    """What of the bias the shares of documents tell."""
    rows = []
    for each in models:
        assert each.measured.documents is not None
        by_position = np.array(each.measured.documents["measures"]["rollout"]["gold"])
        assert each.measured.telling is not None
        told = each.measured.telling["features"]
        told_by = [f"{told[f'{name} of the gold document']['auc']:.2f}" for name in ("rollout", "value_norm")]
        follows = spearman(by_position, np.array(each.sweep.accuracy))
        strengths = each.measured.lambdas
        rows.append(
            [
                each.label, f"{each.sweep.gap:.1f}", f"{each.sweep.mean:.1f}",
                f"{strengths[0]:.2f} to {strengths[-1]:.2f}",
                *(f"{100 * each.shares[np.isin(each.positions, where)].mean():.1f}" for where in STRETCHES.values()),
                f"{follows:.2f}", *told_by,
            ]
        )  # fmt: skip
    head = ["model", "gap", "mean", "residual strength", *STRETCHES, "accuracy follows shares"]
    return markdown([*head, "AUC: rollout", "value norm"], rows)


def parts(models: Iterable[Looked]) -> str:
    """How well predictions that know more and more of the architecture order the tokens as measured rollouts do."""
    rows = []
    for each in models:
        measured, bins = np.array(each.measured.influence["rollout"]), each.measured.bins
        by_place = [binned(row, bins) for row in each.predicted.values()]
        # Without the last place, where the last token keeps itself.
        rows.append([each.label, *(f"{spearman(row[:-1], measured[:-1]):.2f}" for row in by_place)])
    return markdown(["model", *PARTS], rows)


def training(pairs: Sequence[tuple[Looked, Looked]]) -> str:
    """Shares of the gold document before and after R1, with intervals over prompts."""
    rows = []
    for pair in pairs:
        for each in pair:
            shares = []
            for where in STRETCHES.values():
                group = 100 * each.shares[np.isin(each.positions, where)]
                low, high = mean_interval(group, np.random.default_rng(0))
                shares.append(f"{group.mean():.1f} ({low:.1f} to {high:.1f})")
            rows.append([each.label, f"{each.sweep.gap:.1f}", f"{each.sweep.mean:.1f}", *shares])
    return markdown(["model", "gap", "mean", *STRETCHES], rows)


def picture(pairs: dict[str, list[tuple[Looked, Looked]]]) -> None:
    """Accuracy, and the gold document's share of the rollout with its interval, by gold position, before and after."""
    figure, grid = plt.subplots(
        len(pairs), 2, squeeze=False, figsize=(9, 3.2 * len(pairs)), dpi=144, layout="constrained"
    )
    at = np.arange(1, N_DOCS + 1)
    for (accuracy, share), (title, of_kind) in zip(grid, pairs.items()):
        for models, word, color in zip(zip(*of_kind), ("as it was trained", "after R1"), COLORS):
            accuracy.plot(
                at, np.mean([each.sweep.accuracy for each in models], axis=0), "o-", ms=3, color=color, label=word
            )
            groups = [100 * np.concatenate([each.shares[each.positions == i] for each in models]) for i in at]
            low, high = np.transpose([mean_interval(group, np.random.default_rng(0)) for group in groups])
            share.plot(at, [group.mean() for group in groups], "o-", ms=3, color=color, label=word)
            share.fill_between(at, low, high, color=color, alpha=0.15, linewidth=0)
        styled(accuracy, title=title, xlabel="gold position", ylabel="accuracy, %", ylim=(0, 103))
        styled(share, title="rollout", xlabel="gold position", ylabel="the gold document's share, %")
        share.set_ylim(bottom=0)
        accuracy.legend(frameon=False, loc="lower left")
        for axes in (accuracy, share):
            axes.xaxis.get_major_locator().set_params(integer=True)
    save_picture(figure, ROOT / "docs" / "rollout-training.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, help="lost-in-the-middle key-value file")
    parser.add_argument("--preset", choices=sorted(PRESETS.keys()), help="this experiment alone")
    parser.add_argument("--networks", type=int, default=0, help="of each setting of --preset; 0: the preset's")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the models of two layers")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "rollout")
    options = parser.parse_args()
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{out}/mlflow.db")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("posgap").setLevel(logging.INFO)
    if options.preset:
        return figure(out, options.preset, options.networks)
    if options.data is None:
        parser.error("--data: not given: give the key-value file, or a --preset")
    pairs = {}
    for kind, seeds in (("standard", options.seeds), ("deep", [0])):
        benches = [retrieval_bench(out, options.data, kind, seed) for seed in seeds]
        pairs[SAID[kind]] = [
            (looked_at(bench, kind, False, out), looked_at(bench, kind, True, out)) for bench in benches
        ]
    every = [pair for of_kind in pairs.values() for pair in of_kind]
    picture({f"{kind}, {len(of_kind)} seed{'s' * (len(of_kind) > 1)}": of_kind for kind, of_kind in pairs.items()})
    for name, to in (("standard-0", "base"), ("standard-0-r1", "r1"), ("deep-0", "deep")):
        shutil.copyfile(out / f"measured-{name}" / "influence.png", ROOT / "docs" / f"rollout-documents-{to}.png")
    models = [each for pair in every for each in pair]
    text = TEXT.format(
        date=date.today(), source=options.data.name, known=known_answers(), why=why(models), parts=parts(models),
        training=training(every),
    )  # fmt: skip
    write_section("results", "rollout-theory", text)


TEXT = """\
## Rollout theory

Written by `benchmarks/rollout_results.py` on {date}, one CPU thread beside other work.

### Known answers

Greatest error of any entry of the last row against `theory/known_answers.json`, which states ten digits.

{known}

### Why is the model biased?

`posgap rollout measure --sweep` over 200 held-out key-value prompts of 20 records ({source},
lines 101 to 300), ten at each gold position. The table has:

- the gold document's share among documents, in percent, by the rollout, at gold positions in three stretches;
- Spearman's correlation, over the 20 positions, of accuracy with that share;
- prompt by prompt, how well the share tells a right answer from a wrong one (AUC; 0.5 tells nothing): the share by the
  rollout, and by attention weighted with the norms of values.

{why}

What of the architecture makes the rollout what it is? The next table has Spearman's correlation, over places of the
prompt but the last, of predictions with the measured rollout. From column to column the predictions know more. The
measured rollout is averaged over prompts, and so over gold positions. Under a causal mask alone residual strength
changes shares, but not their order.

{parts}

### What would change it?

[What can be predicted of a change](#what-can-be-predicted-of-a-change) has it: heads turned by their gates, with
predicted and measured effects.

### Did the training change it?

The same shares before and after R1, with 95 % intervals over prompts.

{training}

![Accuracy and the gold document's share of the rollout by gold position, before and after R1](rollout-training.png)

By document, of seed 0: two layers as trained, after R1, and eight layers.

![Two layers](rollout-documents-base.png)

![Two layers after R1](rollout-documents-r1.png)

![Eight layers](rollout-documents-deep.png)
"""

FIGURE = """\
## {title}

Written by `benchmarks/rollout_results.py --preset {preset} --networks {networks}` on {date}, one CPU thread beside
other work: {iterations} iterations, {tests} sequences a test, {networks} of the preset's {of}
seeds.

{summary}.

![{preset}](rollout-{preset}.png)

{sinks}

{gaps}
"""


if __name__ == "__main__":
    main()
