"""Mitigations of prompts on the tiny models, over seeds: the figures `prompts` of docs/results.md.

    python benchmarks/prompt_mitigations.py --data FILE [--recipe deep] [--seeds 0 1 2] [--out runs/prompts] [--write]

FILE is the lost-in-the-middle key-value file (300 lines). Each seed's model is made where posgap's cache does not have
it. Every sweep is a stage, of the same held-out examples: what is complete is reused.
"""

import argparse
import os
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import torch
from bench import Bench, retrieval_bench
from report import ROOT, spread, write_section

from posgap.foundation.tables import markdown
from posgap.measurement.comparison import compare_sweeps
from posgap.measurement.sweeps import Evidence
from posgap.tasks.placements import spaced_positions

ASKED: dict[str, dict] = {
    "as it is": {},
    "reversed": {"mitigation": "reversed"},
    "reordering, first": {"mitigation": "reordering", "mitigation_settings": {"most": "first"}},
    "reordering, last": {"mitigation": "reordering", "mitigation_settings": {"most": "last"}},
    "reordering, ends": {"mitigation": "reordering"},
    **{
        f"permutation, {orders}": {"mitigation": "permutation", "mitigation_settings": {"orders": orders}}
        for orders in (1, 3, 5)
    },
}


def evidence(bench: Bench, name: str, n_docs: int, swept: int, limit: int) -> Evidence:
    """The sweep of a seed's model that is asked so."""
    how = ASKED[name] | {"positions": [str(i) for i in spaced_positions(n_docs, swept)], "limit": limit}
    return Evidence(bench.swept(bench.model, name.replace(", ", "-").replace(" ", "-"), n_docs, **how))


def row(name: str, every: Sequence[Evidence], base: Sequence[Evidence]) -> list[str]:
    """Over the seeds: mean, worst, gap, how many seeds are surely better or worse in the mean than without, and how
    many times the tokens and the seconds an answer takes."""
    sweeps = [each.sweep for each in every]
    differences = [compare_sweeps([old, new]).differences[0].mean_ci95 for old, new in zip(base, every)]
    spent = [(new.sweep.spent, old.sweep.spent) for new, old in zip(every, base)]
    tokens = [(n.prompt_tokens + n.completion_tokens) / (o.prompt_tokens + o.completion_tokens) for n, o in spent]
    cells = [[sweep.mean for sweep in sweeps], [sweep.worst.accuracy for sweep in sweeps], [s.gap for s in sweeps]]
    better, worse = sum(low > 0 for low, _ in differences), sum(high < 0 for _, high in differences)
    return [
        name,
        *map(spread, cells),
        f"{better} / {worse}",
        f"{sum(tokens) / len(tokens):.1f}",
        f"{sum(n.seconds / o.seconds for n, o in spent) / len(spent):.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--recipe", default="deep")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--n-docs", type=int, default=20)
    parser.add_argument("--swept", type=int, default=7, help="positions")
    parser.add_argument("--limit", type=int, default=100, help="examples")
    parser.add_argument("--asked", nargs="+", choices=ASKED, default=list(ASKED), help="in these ways alone")
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "prompts")
    parser.add_argument("--write", action="store_true", help="into build/results/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{options.out.absolute()}/mlflow.db")
    options.out.mkdir(parents=True, exist_ok=True)
    benches = [retrieval_bench(options.out, options.data, options.recipe, seed) for seed in options.seeds]
    swept = {
        name: [evidence(bench, name, options.n_docs, options.swept, options.limit) for bench in benches]
        for name in dict.fromkeys(["as it is", *options.asked])
    }
    rows = [row(name, every, swept["as it is"]) for name, every in swept.items()]
    table = markdown(["asked", "mean", "worst", "gap", "seeds surely better / worse", "tokens", "seconds"], rows)
    text = SECTION.format(
        date=date.today(), recipe=options.recipe, n=options.n_docs, positions=options.swept, examples=options.limit,
        seeds=", ".join(map(str, options.seeds)), source=options.data.name, table=table,
    )  # fmt: skip
    if options.write:
        write_section("results", "prompts", text)
    else:
        print(text)


SECTION = """\
Measured by `benchmarks/prompt_mitigations.py` on {date}: the tiny model `{recipe}`, seeds {seeds}, on {examples}
held-out examples of {source} at {positions} of {n} positions. The first columns are mean, worst position and gap in
points over the seeds (± standard deviation). The next says in how many seeds the mean surely differs from that of the
model as it is, by the paired 95 % interval. The last two say how many times as many tokens and seconds an answer takes,
prompts that are read for their attention included.

{table}
"""

if __name__ == "__main__":
    main()
