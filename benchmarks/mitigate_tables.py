"""`posgap mitigate` on the tiny models: the figures `mitigate` of docs/results.md, and its pictures.

    python benchmarks/mitigate_tables.py --data FILE [--seed 0] [--budget 6m] [--deep-budget 4m] [--only base-20]
        [--write] [--out runs/results]

FILE is the lost-in-the-middle key-value file (300 lines). The demo's model and its R1 model are made as
`benchmarks/demo_seeds.py` makes them, in the same folder, and the model of eight layers where posgap's cache does not
have it. Each is compared at a time; what is complete is reused, and what was interrupted goes on. `--write` puts the
tables of those that are complete into the page.
"""

import argparse
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import NamedTuple

import torch
from demo_seeds import run
from report import ROOT, WRITTEN, write_section

from posgap.demo.config import DemoConfig
from posgap.demo.run import examples
from posgap.foundation.tables import markdown
from posgap.mitigating.config import MitigateConfig
from posgap.mitigating.page import gains
from posgap.mitigating.report import MITIGATE_FILE, Found, Mitigate, advice, read_mitigate
from posgap.stages.mitigate import mitigate
from posgap.tasks.placements import spaced_positions

sys.path.append(str(ROOT / "tests"))
import tiny_recipes

POSITIONS = 7


class Compared(NamedTuple):
    """A model, how many records it is asked with, and which part of the budget it may take."""

    name: str
    said: str
    n_docs: int
    deep: bool = False


MODELS = (
    Compared("base-20", "The demo's model, at the 20 records that it was trained for", 20),
    Compared("r1-20", "Its R1 model, at 20 records", 20),
    Compared("base-40", "The demo's model, at 40 records, twice what it was trained for", 40),
    Compared("r1-40", "Its R1 model, at 40 records", 40),
    Compared("deep-40", "The model of eight layers, at 40 records, twice what it was trained for", 40, deep=True),
)


def folder_of(compared: Compared, folder: Path) -> Path:
    return folder / f"mitigate-{compared.name}"


def model_of(compared: Compared, seed: int, folder: Path, data: Path) -> Path:
    if compared.deep:
        return tiny_recipes.kept("deep", seed)
    if not (folder / "model").is_dir():  # the same as the demo trains, which the cache may have
        shutil.copytree(tiny_recipes.kept("standard", seed).parent, folder, dirs_exist_ok=True)
    if compared.name.startswith("r1"):
        run(seed, folder, data)
        return folder / "r1"
    return folder / "model"


def compare(compared: Compared, seed: int, folder: Path, data: Path, budget: str) -> Path:
    """The folder of a model's comparison."""
    _, held_out = examples(DemoConfig(out=folder, seed=seed, data=data), folder)
    return mitigate(
        MitigateConfig(
            examples=held_out,
            model=str(model_of(compared, seed, folder, data)),
            out=folder_of(compared, folder),
            n_docs=compared.n_docs,
            max_new_tokens=2,
            positions=spaced_positions(compared.n_docs, POSITIONS),
            budget=budget,
            seed=seed,
        )
    )


def signed(value: float | None, ci95: Sequence[float] = ()) -> str:
    if value is None:
        return "–"
    return f"{value:+.1f}" + (f" ({ci95[0]:+.1f} to {ci95[1]:+.1f})" if ci95 else "")


def row(found: Found) -> list[str]:
    name = f"`{found.name}`" + (f", {found.curve}" if found.curve else "")
    tried = [str(found.tried), signed(found.search_gain), signed(found.selection_gain)]
    if not found.measured:
        return [name, *tried, "", "", "", "", found.reason]
    m, d = found.measured, found.measured.difference
    gain, gap = signed(d.mean, d.mean_ci95), f"{m.gap:.1f}"
    return [name, *tried, gain, gap, signed(d.gap, d.gap_ci95), f"{m.cost.prefill:.2f} / {m.cost.decode:.2f}", ""]


def table(result: Mitigate) -> str:
    head = ["mitigation", "tried", "searched", "selected", "held out, 95 %", "gap", "change of gap, 95 %"]
    base = ["as it is", "", "", "", f"mean {result.base_mean:.1f}", f"{result.base_gap:.1f}", "", "1 / 1", ""]
    return markdown([*head, "prompt / token", "not measured since"], [base, *map(row, result.found)])


def compared_anew(result: Mitigate) -> Mitigate:
    """With the advice that follows from its figures by the rules as they are now."""
    return result.model_copy(update={"advice": advice(result.found)})


def said(result: Mitigate) -> str:
    """What the comparison advises, in words."""
    helping = [each.name for each in result.measured if each.helps]
    spoken = f"For certain better: {', '.join(helping)}." if helping else "Nothing is for certain better than it is."
    wider = [e.name for e in result.measured if e.measured and e.measured.difference.gap_ci95[0] > 0]
    if wider:
        spoken += f" The gap is for certain larger with {', '.join(wider)}."
    taken = "; ".join(f"{a.purpose}: {a.name or 'nothing'}" for a in result.advice)
    shrunk = [
        (e.search_gain, e.measured.difference.mean) for e in result.measured if e.measured and e.search_gain is not None
    ]
    if shrunk:
        searched, held_out = (sum(values) / len(shrunk) for values in zip(*shrunk))
        spoken += (
            f" Of the {len(shrunk)} measured, the mean gain was {searched:+.1f} on the examples by which settings were "
            f"searched, and {held_out:+.1f} on those held out."
        )
    free = [a.why for a in result.advice if a.purpose == "one call that takes no longer" and not a.name]
    if free and helping:
        spoken += f" In one call that takes no longer nothing gains: {free[0]}."
    return f"{spoken}\n\nTo take: {taken}."


def section(compared: Compared, result: Mitigate) -> str:
    parts = result.examples
    return f"""\
### {compared.said}

{parts["search"]} examples to search on, {parts["selection"]} to select on, {parts["held_out"]} held out, at {POSITIONS}
positions; {result.seconds:.0f} s of a budget of {result.budget}. {said(result)}

![Gap against the time of an answer](mitigate-{compared.name}.png)

{table(result)}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--budget", default="6m")
    parser.add_argument("--deep-budget", default="4m")
    parser.add_argument(
        "--only", nargs="*", choices=[each.name for each in MODELS], help="compare these; none: no more"
    )
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("posgap").setLevel(logging.INFO)
    out = options.out.absolute()
    folder = out / f"seed-{options.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{out}/mlflow.db")
    for compared in MODELS:
        if options.only is None or compared.name in options.only:
            budget = options.deep_budget if compared.deep else options.budget
            compare(compared, options.seed, folder, options.data, budget)
    done = [each for each in MODELS if (folder_of(each, folder) / MITIGATE_FILE).is_file()]
    results = {each: compared_anew(read_mitigate(folder_of(each, folder))) for each in done}
    text = RESULTS.format(
        date=date.today(),
        source=options.data.name,
        seed=options.seed,
        sections="\n\n".join(section(each, result) for each, result in results.items()),
    )
    if options.write:
        write_section("results", "mitigate", text)
        for each, result in results.items():
            gains(result).savefig(WRITTEN / f"mitigate-{each.name}.png", metadata={"Software": None})
    else:
        print(text)


RESULTS = """\
## `posgap mitigate` on the tiny models

Written by `benchmarks/mitigate_tables.py` on {date}, one thread of a machine at other work, seed {seed}. Key-value
retrieval on {source}, lines 101-300, split as `posgap mitigate` splits them. The tables
have gains in mean accuracy, in points, beside the model as it is. There are three of them: on
the examples by which settings were searched (the best of all `tried`, so too high), on those by which the finalists
were selected, and on those held out, which had no say.

A prompt's and a token's time are multiples of the model's as it is, on prompts so short that other
work on the machine moves them by as much as half: LPES costs nothing. All that was tried stands in the tables; where
the budget, which is short here, did not reach, they say so. What relevance puts in order (`reordering`)
gains much on this task since BM25 finds the very key that is asked for: on questions in words it finds less.

{sections}
"""


if __name__ == "__main__":
    main()
