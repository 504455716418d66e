"""A training that the nearest numbers lose and rounding at random keeps: the figures `rounding` of docs/results.md.

    python benchmarks/rounding.py --data FILE [--seed 0] [--out runs/rounding]

FILE is the lost-in-the-middle key-value file (300 lines). One training, and a sweep of every rounded model; every step
is a stage, so that what is complete is reused.
"""

import argparse
import logging
import os
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch
from bench import Bench, retrieval_bench
from report import ROOT, write_section
from torch import Tensor

from posgap.demo import tiny_model
from posgap.distillation.export import FILE, MIN_KEPT
from posgap.foundation import files
from posgap.foundation.tables import markdown
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.mitigations.in_force import load_model
from posgap.models.loading import save_model
from posgap.models.rounding import UpdateRetention, stochastic

OFFSETS = (0, 4, 8, 12)
POSITIONS = (1, 3, 6, 10, 14, 18, 20)
TRAINING = {"learning_rate": 5e-4, "epochs": 6, "k": 4, "batch_size": 80, "save_steps": 0}
EXAMPLES = 500
State = dict[str, Tensor]


def state(model: Path) -> State:
    return {name: weight.detach() for name, weight in load_model(str(model), "float32").named_parameters()}


def to_nearest(weights: State) -> State:
    return {name: weight.to(torch.bfloat16) for name, weight in weights.items()}


def at_random(weights: State) -> State:
    return {name: stochastic(weight, torch.bfloat16, 0, name) for name, weight in weights.items()}


ROUNDINGS = {"nearest": to_nearest, "at random": at_random}


def swept(bench: Bench, name: str, weights: State) -> Sweep:
    """The sweep of the bench's model with these weights, in the precision that they have."""
    out = bench.folder / f"model-{name}"
    if not out.is_dir():
        model = load_model(str(bench.model), "float32").to(next(iter(weights.values())).dtype)
        model.load_state_dict(weights, strict=False)  # the head is the embedding
        with files.atomic(out) as partial:
            save_model(model, tiny_model.tokenizer(), partial)
    return read_sweep(bench.swept(out, name, positions=POSITIONS))


def row(name: list[str], sweep: Sweep, kept: UpdateRetention | None = None) -> list[str]:
    shares = [f"{100 * kept.update:.1f} %", f"{100 * kept.numbers:.1f} %"] if kept else ["", ""]
    return [*name, *shares, *scores(sweep)]


def scores(sweep: Sweep) -> list[str]:
    return [f"{x:.1f}" for x in (sweep.accuracy[0], sweep.mean, sweep.worst.accuracy, sweep.gap)]


def rows(bench: Bench) -> list[list[str]]:
    """A row a model: in float32, and for each offset the stored base and the trained model in both roundings."""
    trained = bench.distilled("float32", count=EXAMPLES, preset={}, export_dtype="float32", **TRAINING)
    base, after = state(bench.model), state(trained)
    lines = [
        row(["", "base", "float32"], swept(bench, "base", base)),
        row(["", "trained", "float32"], swept(bench, "trained", after)),
    ]
    for offset in OFFSETS:
        stored = to_nearest({name: weight + offset for name, weight in base.items()})
        lines.append(row([str(offset), "base", "nearest"], swept(bench, f"base-{offset}", stored)))
        moved = {name: weight.float() + (after[name] - base[name]) for name, weight in stored.items()}
        for how, rounded in ROUNDINGS.items():
            weights, kept = rounded(moved), UpdateRetention()
            for name in moved:
                kept.add(stored[name].float(), moved[name], weights[name].float())
            sweep = swept(bench, f"{how.replace(' ', '-')}-{offset}", weights)
            lines.append(row([str(offset), "trained", how], sweep, kept))
    return lines


def by_the_stage(bench: Bench) -> list[str]:
    """A row of the model that `distill` makes of the base with the greatest offset, in its precision."""
    stored = bench.folder / f"model-base-{OFFSETS[-1]}"
    moved = replace(bench, folder=bench.folder / "by-the-stage", model=stored)
    made = moved.distilled("bfloat16", count=EXAMPLES, preset={}, **TRAINING)
    figures = files.read_json(made / FILE)
    assert (figures["dtype"], figures["rounding"]) == ("bfloat16", "stochastic")
    kept = [f"{100 * figures[name]:.1f} %" for name in ("kept_update", "kept_numbers")]
    sweep = read_sweep(moved.swept(made, "bfloat16", positions=POSITIONS))
    return [str(OFFSETS[-1]), "distill's", "at random", *kept, *scores(sweep)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "rounding")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("posgap").setLevel(logging.WARNING)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{options.out.absolute()}/mlflow.db")
    bench = retrieval_bench(options.out.absolute(), options.data, "olmo", options.seed)
    lines = rows(bench)
    base, nearest, at_random = (line[-1] for line in lines[-len(ROUNDINGS) - 1 :])
    lines.append(by_the_stage(bench))
    head = ["added", "model", "rounded", "update kept", "numbers kept", "pos 1", "mean", "worst", "gap"]
    text = RESULTS.format(
        date=date.today(),
        seed=options.seed,
        source=options.data.name,
        n=bench.base().n_examples,
        positions=", ".join(map(str, POSITIONS)),
        rate=TRAINING["learning_rate"],
        epochs=TRAINING["epochs"],
        examples=EXAMPLES,
        least=f"{100 * MIN_KEPT:.0f}",
        most=OFFSETS[-1],
        base=base,
        nearest=nearest,
        at_random=at_random,
        table=markdown(head, lines),
    )
    write_section("results", "rounding", text)


RESULTS = """\
## Rounding to bfloat16: to the nearest numbers, and at random

Written by `benchmarks/rounding.py` on {date}, one thread, seed {seed}. A model of 100,000 weights must move them far
for its gap to close, and bfloat16 holds such steps. A model of billions need not, and loses nearly all of its training
to the nearest numbers ([distillation.md](distillation.md)).

That case is made here in OLMo's architecture, whose layer normalisation takes the mean away and has no weights. There a
number added to **all** of the model's weights changes nothing but how finely bfloat16 stores them: in steps of 0.0005
around 0.1, and of 0.06 around 12.

R1 is trained once, in float32, on {examples} questions ({epochs} epochs, learning rate {rate:g}, K = 4). Its update is
put on a base that was stored in bfloat16 after the number was added, and rounded in both ways. Key-value retrieval on
{source}, {n} held-out examples at positions {positions} of 20.
"Numbers kept" are those of the weights that differ from the base's.

With {most} added, rounding to the nearest numbers leaves the gap of {base} at {nearest}, and rounding at random brings
it to {at_random}. In the last row `posgap distill` itself has trained that base and written it in bfloat16: it writes
no less than {least} % of an update, and so rounded at random without being asked.

{table}
"""


if __name__ == "__main__":
    main()
