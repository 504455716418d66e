"""What posgap finds on pretrained models: each row is a command, and its figures are kept.

    python benchmarks/study.py [--rows smollm2-kv ...] [--hours 1] [--again]
    python benchmarks/study.py --tables

The rows run one after another until the hours are over; a row that is kept is not run again, so the same command goes
on another day. Each keeps its figures in benchmarks/study/<row>.json, with commands, day, machine and seconds.
`--tables` alone makes the tables of the pages of these files; a test holds them against each other.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import real_models
from report import ROOT, machine, write_table

from posgap.foundation.files import atomic, read_json
from posgap.foundation.tables import markdown
from posgap.measurement.sweeps import read_sweep
from posgap.rollout.documents import PARTS
from posgap.rollout.files import read_measurement

STORE = ROOT / "benchmarks" / "study"
RUNS = ROOT / "runs" / "study"
TITLES = {"smollm2": "SmolLM2-135M-Instruct", "qwen": "Qwen2.5-Coder-0.5B-Instruct", "gemma": "Gemma 3 270M, base"}


def sweep_figures(out: Path) -> dict[str, Any]:
    """What is kept of a sweep."""
    swept = read_sweep(out)
    names = ("n_docs", "n_examples", "positions", "accuracy", "mean", "mean_ci95", "gap", "gap_ci95")
    kept = {name: getattr(swept, name) for name in names} | {"flatness_p": swept.flatness.p}
    if swept.outcomes:
        kept |= {name: [getattr(of, name) for of in swept.outcomes.by_placement] for name in ("cut", "echo")}
    return kept


def why_figures(out: Path) -> dict[str, Any]:
    """What is kept of `rollout measure` beside a sweep."""
    measured = read_measurement(out)
    assert measured.documents and measured.telling
    return {
        "n_texts": measured.n_texts,
        "shortest": measured.shortest,
        "longest": measured.sequence_length,
        "measures": measured.documents["measures"],
        "telling": measured.telling,
        "summary": measured.summary,
    }


class Row(NamedTuple):
    """A row of the study: what is run, of which the last command writes the row's folder, and what is kept of that."""

    name: str
    model: str
    commands: Sequence[str]  # {model}, {out} of this row, {runs} of all
    kept: Callable[[Path], dict[str, Any]]


_SHORT = (
    "data make kv --n-keys 10 --n-examples 200 --force --out {runs}/uuids.jsonl",
    "data import --format litm-kv --input {runs}/uuids.jsonl --key-digits 8 --value-digits 8 --force "
    "--out {runs}/kv10.jsonl",
)
_SHOTS = ("data make shots --n-docs 20 --n-examples 100 --force --out {runs}/shots.jsonl",)
_KV = "--task kv --n-docs 10 --limit 100"
_OF_SHOTS = "--task shots --n-docs 20 --limit 100"


def _sweep(of: str, examples: str, positions: str) -> str:
    return f"sweep --model {{model}} {of} --examples {{runs}}/{examples} --positions {positions} --out {{out}}"


def _why(of: str, examples: str, sweep: str, label: str) -> str:
    return (
        f"rollout measure --model {{model}} {of} --texts {{runs}}/{examples} --sweep {{runs}}/{sweep} --label {label} "
        "--out {out}"
    )


ROWS = (
    Row("smollm2-kv", "smollm2", (*_SHORT, _sweep(_KV, "kv10.jsonl", "1,3,5,8,10")), sweep_figures),
    Row("smollm2-why", "smollm2", (_why(_KV, "kv10.jsonl", "smollm2-kv", "SmolLM2"),), why_figures),
    Row("gemma-kv", "gemma", (*_SHORT, _sweep(_KV, "kv10.jsonl", "1,3,5,8,10")), sweep_figures),
    Row("gemma-why", "gemma", (_why(_KV, "kv10.jsonl", "gemma-kv", "Gemma"),), why_figures),
    Row("qwen-shots", "qwen", (*_SHOTS, _sweep(_OF_SHOTS, "shots.jsonl", "1,5,10,15,20")), sweep_figures),
    Row("qwen-why", "qwen", (_why(_OF_SHOTS, "shots.jsonl", "qwen-shots", "Qwen"),), why_figures),
)


def run(row: Row) -> None:
    """Runs a row, and keeps its figures."""
    RUNS.mkdir(parents=True, exist_ok=True)
    names = {"model": str(real_models.folder(row.model)), "runs": str(RUNS), "out": str(RUNS / row.name)}
    began = time.monotonic()
    for command in row.commands:
        words = shlex.split(command.format(**names))
        print("posgap", shlex.join(words), flush=True)
        subprocess.run([sys.executable, "-m", "posgap", *words], cwd=ROOT, check=True)
    kept = {
        "model": TITLES[row.model],
        "commands": [f"posgap {command}" for command in row.commands],
        "date": str(date.today()),
        "machine": machine(),
        "seconds": round(time.monotonic() - began),
        "figures": row.kept(RUNS / row.name),
    }
    STORE.mkdir(exist_ok=True)
    with atomic(STORE / f"{row.name}.json") as partial:
        partial.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def kept(*names: str) -> list[dict[str, Any]]:
    """The rows of these names that are kept."""
    return [read_json(file) for name in names if (file := STORE / f"{name}.json").is_file()]


def between(value: float, interval: Sequence[float] | None, form: str = ".1f") -> str:
    """A figure with its interval."""
    return f"{value:{form}}" + (f" ({interval[0]:{form}} to {interval[1]:{form}})" if interval else "")


def curves() -> str:
    """A row for each sweep of a model as it is."""
    rows = []
    for each in kept("smollm2-kv", "gemma-kv", "qwen-shots"):
        of = each["figures"]
        by_position = ", ".join(f"{at}: {score:.0f}" for at, score in zip(of["positions"], of["accuracy"]))
        means = [between(of[name], of[f"{name}_ci95"]) for name in ("mean", "gap")]
        rows.append([each["model"], str(of["n_docs"]), str(of["n_examples"]), by_position, *means, hours(each)])
    return markdown(["model", "n", "examples", "accuracy by position", "mean", "gap", "day, minutes"], rows, left=1)


def shares() -> str:
    """What the parts of prompts draw, and which shape the documents' shares have, by model and measure."""
    rows = []
    for each in kept("smollm2-why", "gemma-why", "qwen-why"):
        for name, of in each["figures"]["measures"].items():
            parts = [f"{100 * of['parts'][part]:.1f}" for part in PARTS]
            rows.append([each["model"], name.replace("_", " "), *parts, f"{of['shape']} (p {of['flatness_p']:.3f})"])
    return markdown(["model", "measure", *PARTS, "among documents"], rows, left=2)


def telling() -> str:
    """What tells right answers, beside the position alone."""
    rows = []
    for each in kept("smollm2-why", "gemma-why", "qwen-why"):
        told = each["figures"]["telling"]
        title = f"{each['model']}, {told['prompts']} prompts, {told['accuracy']:.0f} % right"
        if "position" in told:
            rows.append([title, "the position alone", between(*told["position"], ".2f"), "", ""])
        for name, of in told["features"].items():
            within = "" if of["auc_within_position"] is None else f"{of['auc_within_position']:.2f}"
            gain = "" if of["gain"] is None else between(of["gain"], of["gain_ci95"], "+.2f")
            area = "" if of["auc"] is None else between(of["auc"], of["auc_ci95"], ".2f")
            rows.append(["", name.replace("_", " "), area, within, gain])
    return markdown(["model", "what tells", "AUC", "at one position", "gain beside the position"], rows, left=2)


def hours(row: dict[str, Any]) -> str:
    return f"{row['date']}, {row['seconds'] / 60:.0f}"


TABLES = {"study-curves": curves, "why-shares": shares, "why-telling": telling}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [row.name for row in ROWS]
    parser.add_argument("--rows", nargs="+", choices=names, default=names, help="only these")
    parser.add_argument("--hours", type=float, default=1.0, help="no row is begun after so many (1)")
    parser.add_argument("--again", action="store_true", help="run rows that are kept, too")
    parser.add_argument("--tables", action="store_true", help="run nothing, and make the tables")
    options = parser.parse_args()
    began = time.monotonic()
    for row in ROWS:
        late = time.monotonic() - began > 3600 * options.hours
        there = (STORE / f"{row.name}.json").is_file() and not options.again
        if not (options.tables or late or there) and row.name in options.rows:
            run(row)
    for name, table in TABLES.items():
        write_table(name, table())


if __name__ == "__main__":
    main()
