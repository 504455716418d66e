"""The paper's study on one GPU: NaturalQuestions with 20 documents, the ablation of Pos2Distill, LPES, and the gate.

    python benchmarks/gpu.py [--model Qwen/Qwen2.5-1.5B-Instruct] [--size 1.5b] [--hours 4]
    python benchmarks/gpu.py --dry
    python benchmarks/gpu.py --quick

The rows run one after another until the hours are over, and the same command goes on with what is missing. Each keeps
its figures in benchmarks/study/gpu-<size>-<row>.json, of which the table of methods is made. `--dry` runs the same
commands on SmolLM2 with a few short examples, on a CPU, and keeps nothing: it shows that they work. `--quick` runs
nothing: the last line is JSON, how many `commands` there are, all of which the command line takes.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import real_models
import study
from report import write_table
from study import Row

from posgap.data.fetching import fetch_source
from posgap.data.sources import SOURCES


class Size(NamedTuple):
    """How much is asked: the commands that make the examples to train on and those to sweep, and options."""

    train: tuple[str, ...]  # the last one makes what is trained on
    swept: tuple[str, ...]
    of: str  # task, documents, and how many examples are swept
    positions: str
    training: str
    plan: str
    search: str


def of_questions(questions: Path) -> Size:
    """The paper's: 300 questions to train on, 500 to sweep, 20 documents in a prompt."""

    def made(name: str, first: int, last: int) -> tuple[str, ...]:
        oracle = f"{{runs}}/{name}-oracle.jsonl"
        return (
            f"data import --format litm-qa --input {questions} --first {first} --last {last} --force --out {oracle}",
            f"data make qa --examples {oracle} --n-docs 20 --force --out {{runs}}/{name}.jsonl",
        )

    positions = "1,5,10,15,20"
    return Size(
        made("train", 801, 1600),
        made("swept", 1, 800),
        "--task qa --n-docs 20 --limit 500",
        positions,
        "--gradient-checkpointing",
        "--prompt-tokens 3200 --response-tokens 60",
        f"--limit 60 --positions {positions} --generations 6",
    )


def of_records(name: str, seed: int) -> tuple[str, ...]:
    """A few examples of two short records."""
    made = f"{{runs}}/{name}-made.jsonl"
    return (
        f"data make kv --n-docs 2 --n-examples 16 --seed {seed} --force --out {made}",
        f"data import --format litm-kv --input {made} --key-digits 8 --value-digits 8 --force "
        f"--out {{runs}}/{name}.jsonl",
    )


DRY = Size(
    of_records("train", 1),
    of_records("swept", 0),
    "--task kv --n-docs 2 --limit 10",
    "1,2",
    "--epochs 1 --k 1 --batch-size 8 --learning-rate 1e-5",
    "--epochs 1 --k 1 --batch-size 8 --n-examples 16 --prompt-tokens 120 --response-tokens 12",
    "--limit 4 --positions 1,2 --generations 1 --population 2",
)


def rows(name: str, size: Size) -> Iterator[Row]:
    """The rows of a study, whose names begin with `name`."""
    base, task = f"{name}-base", size.of.partition(" --limit ")[0]
    sweep = (
        f"sweep --model {{model}} {size.of} --examples {{runs}}/swept.jsonl --positions {size.positions} --out {{out}}"
    )
    yield Row(base, name, (*size.swept, sweep), study.sweep_figures)
    yield from study.trained(base, name, size.of, "swept", size.train, size.positions, size.training, plan=size.plan)
    scaled = f"{{runs}}/{name}-lpes-model"
    search = (
        f"scale search --model {{model}} {task} --examples {size.train[-1].split()[-1]} {size.search} "
        f"--out {{runs}}/{name}-lpes-search"
    )
    yield Row(
        f"{name}-lpes",
        name,
        (
            search,
            f"apply --model {{model}} --found {{runs}}/{name}-lpes-search --out {scaled}",
            sweep.replace("{model}", scaled),
            f"compare {{runs}}/{base} {{out}} --out {{out}}-compared",
            f"gate --candidate {{out}} --base {{runs}}/{base} --examples {{runs}}/swept.jsonl --out {{out}}-gate",
        ),
        study.trained_figures,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="Qwen/Qwen2.5-1.5B-Instruct", help="folder, or name on the hub")
    parser.add_argument("--size", default="1.5b", help="what rows and table call it (1.5b)")
    parser.add_argument("--hours", type=float, default=4.0, help="no row is begun after so many (4)")
    parser.add_argument("--questions", type=Path, help="nq-open-oracle.jsonl.gz; else it is downloaded")
    parser.add_argument("--dry", action="store_true", help="the same commands on SmolLM2, and nothing is kept")
    parser.add_argument("--quick", action="store_true", help="run nothing, and check the commands")
    options = parser.parse_args()
    if options.quick:
        all_rows = [*rows("gpu-dry", DRY), *rows("gpu", of_questions(Path("questions.jsonl.gz")))]
        print(json.dumps({"commands": study.taken(all_rows)}))
        return
    if options.dry:
        model = str(real_models.folder("smollm2"))
        with tempfile.TemporaryDirectory() as folder:
            study.STORE = Path(folder) / "store"
            for row in study.in_time(list(rows("gpu-dry", DRY)), options.hours):
                study.run(row, model, "SmolLM2, dry", Path(folder))
            print(study.methods(), study.plans(), sep="\n\n")
        return
    size = of_questions(options.questions or fetch_source(SOURCES["nq-oracle"]))
    missing = [row for row in rows(f"gpu-{options.size}", size) if not study.is_kept(row)]
    for row in study.in_time(missing, options.hours):
        study.run(row, options.model, options.model, study.RUNS / f"gpu-{options.size}")
    for name in ("study-methods", "study-plans"):
        write_table(name, study.TABLES[name]())


if __name__ == "__main__":
    main()
