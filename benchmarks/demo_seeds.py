"""The demo over ten seeds, none of them chosen: the figures `demo` of docs/results.md.

    python benchmarks/demo_seeds.py [--data FILE] [--seeds 0 1 2 ...] [--out runs/results]
    python benchmarks/demo_seeds.py --quick

For each seed it makes what `posgap demo` makes (data, tiny model) and runs the demo's stages with the demo's
parameters, in this process, which takes half the time of the pipeline. A stage that is complete is reused.
`--quick` runs them for one seed on next to no data, as `posgap demo --smoke` does. The last line is JSON: the gaps
before and after, and the gate's `outcome`.
"""

import argparse
import json
import logging
import os
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

from report import ROOT, spread, write_section

from posgap.demo import tiny_model
from posgap.demo.config import DemoConfig
from posgap.demo.run import make_examples
from posgap.distillation.config import DistillConfig, TeacherConfig
from posgap.foundation.files import read_json, write_json
from posgap.foundation.tables import markdown
from posgap.gating.config import GateConfig
from posgap.gating.verdict import read_verdict
from posgap.measurement.config import SweepConfig
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.pipelines import smoke
from posgap.preflight.config import PreflightConfig
from posgap.preflight.form import settings
from posgap.stages.distill import distill
from posgap.stages.sweep import sweep
from posgap.stages.teacher import teacher
from posgap.workflows.admission import admit

POSITIONS = (1, 5, 10, 15, 20)


def run(seed: int, out: Path, data: Path | None, quick: bool = False) -> dict[str, Any]:
    """The figures of one seed: sweeps before and after, the gate's verdict, and seconds."""
    began = time.monotonic()
    train, held_out = make_examples(DemoConfig(out=out, seed=seed, data=data, smoke=quick), out)
    model, _ = tiny_model.base_model(out, seed, tiny_model.QUICK if quick else tiny_model.STANDARD)
    paths = {"data_train": str(train), "data_eval": str(held_out), "base_model": str(model)}
    parameters = smoke.PARAMETERS | (smoke.SMALLEST if quick else {})
    given = settings(PreflightConfig(**parameters, **paths, seed=seed, out=out / "preflight"))
    asked = {"examples": held_out, **given["sweep"]}
    base = sweep(SweepConfig(model=str(model), label="base", out=out / "base", **asked))
    learned = {"examples": train, "model": str(model)}
    responses = teacher(TeacherConfig(sweep=base, out=out / "responses", **learned, **given["teacher"]))
    taught = distill(DistillConfig(responses=responses, out=out / "r1", method="r1", **learned, **given["distill"]))
    candidate = sweep(SweepConfig(model=str(taught), label="r1", out=out / "candidate", **asked))
    judged = admit(GateConfig(candidate=candidate, base=base, out=out / "gate", **given["gate"]))
    kept = out / "seconds.json"  # of the first time, when nothing was there to be reused
    if not kept.is_file():
        write_json(kept, {"seconds": round(time.monotonic() - began)})
    return {
        "base": read_sweep(base),
        "candidate": read_sweep(candidate),
        "outcome": read_verdict(judged).outcome,
        "seconds": read_json(kept)["seconds"],
    }


def figures(sweep: Sweep) -> list[float]:
    by_position = dict(zip(sweep.positions, sweep.accuracy))
    return [*(by_position[i] for i in POSITIONS), sweep.mean, sweep.gap]


def table(results: dict[int, dict[str, Any]]) -> str:
    """A row per seed and model, then mean and spread over seeds."""
    head, lines = ["model", "seed", *(f"pos {i}" for i in POSITIONS), "mean", "gap", "gap, 95 %", "gate"], []
    for key, name in (("base", "base"), ("candidate", "Pos2Distill-R1")):
        rows = {seed: figures(result[key]) for seed, result in results.items()}
        for seed, values in rows.items():
            low, high = results[seed][key].gap_ci95
            verdict = "-" if key == "base" else results[seed]["outcome"]
            lines.append([name, str(seed), *(f"{v:.1f}" for v in values), f"{low:.1f} to {high:.1f}", verdict])
        lines.append([f"**{name}**", "all", *map(spread, zip(*rows.values())), "", ""])
    return markdown(head, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "results")
    parser.add_argument("--quick", action="store_true", help="one seed on next to no data: under a minute")
    arguments = parser.parse_args()
    if arguments.quick:
        with tempfile.TemporaryDirectory() as folder:
            os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/mlflow.db")
            found = run(0, Path(folder), None, quick=True)
        gaps = {name: found[name].gap for name in ("base", "candidate")}
        print(json.dumps(gaps | {"outcome": found["outcome"]}))
        return
    out = arguments.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{out}/mlflow.db")
    logging.basicConfig(format="%(message)s")
    logging.getLogger("posgap").setLevel(logging.WARNING)
    results = {}
    for seed in arguments.seeds:
        results[seed] = result = run(seed, out / f"seed-{seed}", arguments.data)
        gaps = f"gap {result['base'].gap:.1f} to {result['candidate'].gap:.1f}"
        print(f"seed {seed}: {gaps}, {result['outcome']}, {result['seconds']} s", flush=True)
    gains = [result["candidate"].accuracy[0] - result["base"].accuracy[0] for result in results.values()]
    text = RESULTS.format(
        source=arguments.data.name if arguments.data else "records made by `posgap data make kv`",
        n=results[arguments.seeds[0]]["candidate"].n_examples,
        date=date.today(),
        admitted=sum(result["outcome"] == "admitted" for result in results.values()),
        seeds=len(results),
        names=", ".join(map(str, results)),
        table=table(results),
        epochs=smoke.OVERRIDES["epochs"],
        anchoring=smoke.OVERRIDES["anchoring"],
        rate=smoke.OVERRIDES["learning_rate"],
        worst_first=min(gains),
        best_first=max(gains),
    )
    write_section("results", "demo", text)


RESULTS = """\
## The demo: key-value retrieval, tiny model

Written by `benchmarks/demo_seeds.py` on {date}, two CPU cores.

What `posgap demo` does on {source}: {n} held-out examples a position, 20 records a prompt, greedy,
sub_EM. Accuracy in points; the gap is the best minus the worst of all 20 positions; its 95 % interval is that
of `sweep.json`. The last row of each model is mean ± standard deviation over seeds. The tiny model
is trained from scratch for each seed, then distilled on 1,000 questions about 100 other lines of the file
(K = 4, lambda = {anchoring:g}, {epochs} epochs). None of the seeds ({names}) was chosen, and the gate admits
{admitted} of {seeds}.

{table}

A tiny model can only be distilled if it has learnt to retrieve before it loses the middle. Seed 3 had not: its initial
parameters stay on the plateau of guessing for a thousand steps. R1 then answered 90 % of its training questions and
63 % of the held-out ones, with a gap of 39. As many steps on 5,000 questions gave 68 and 70 %. Such a model now
begins again with other initial parameters.

Where the miniature departs from the paper: it learns at {rate:g} for {epochs} epochs with lambda = {anchoring:g}. The
paper has 3e-6, 2 epochs, lambda = 1 and 300 examples, at 7B. A model of 100,000 parameters does not move at 3e-6.
At position 1 the distilled models differ from their bases by {worst_first:+.1f} to {best_first:+.1f} points.
"""


if __name__ == "__main__":
    main()
