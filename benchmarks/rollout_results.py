"""Rollout theory: predictions beside known answers, and the controlled experiment.

    python benchmarks/rollout_results.py
    python benchmarks/rollout_results.py --preset learned

Writes the figures `rollout-theory` of docs/results.md, or an experiment's with its picture.
"""

import argparse
import logging
import os
import shutil
from datetime import date
from pathlib import Path

import numpy as np
import torch
from report import ROOT, write_section

from posgap.foundation import files
from posgap.foundation.tables import markdown
from posgap.rollout.architecture import Architecture
from posgap.rollout.attention import Mask
from posgap.rollout.config import RolloutExperimentConfig
from posgap.rollout.experiment_summary import gap_table, sink_table
from posgap.rollout.trials import PRESETS
from posgap.stages.rollout_experiment import rollout_experiment

KNOWN = ROOT.parent / "shared" / "theory" / "known_answers.json"
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


def figure(out: Path, preset: str) -> None:
    """An experiment, written into its section."""
    folder = rollout_experiment(RolloutExperimentConfig(preset=preset, out=out / preset))
    shutil.copyfile(folder / "experiment.png", ROOT / "docs" / f"rollout-{preset}.png")
    experiment, chosen = files.read_json(folder / "experiment.json"), PRESETS[preset]
    text = FIGURE.format(
        date=date.today(), preset=preset, title=TITLES[preset],
        networks=chosen.seeds, iterations=f"{chosen.training.iterations:,}",
        tests=f"{chosen.training.tests:,}", summary=experiment["summary"],
        gaps=gap_table(experiment["means"]), sinks=sink_table(experiment["means"]),
    )  # fmt: skip
    write_section("results", f"rollout-{preset}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--preset", choices=sorted(PRESETS.keys()), help="this experiment in place of the answers")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "rollout")
    options = parser.parse_args()
    out = options.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{out}/mlflow.db")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("posgap").setLevel(logging.INFO)
    if options.preset:
        figure(out, options.preset)
    else:
        write_section("results", "rollout-theory", TEXT.format(date=date.today(), known=known_answers()))


TEXT = """\
## Rollout theory

Written by `benchmarks/rollout_results.py` on {date}: the greatest error of any entry of the last row against
`theory/known_answers.json`, which states ten digits.

{known}
"""

FIGURE = """\
## {title}

Written by `benchmarks/rollout_results.py --preset {preset}` on {date}, one CPU thread beside
other work: {iterations} iterations, {tests} sequences a test, {networks}
seeds.

{summary}.

![{preset}](rollout-{preset}.png)

{sinks}

{gaps}
"""


if __name__ == "__main__":
    main()
