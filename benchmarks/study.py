"""What posgap finds on pretrained models: each row is a command, and its figures are kept.

    python benchmarks/study.py [--rows smollm2-kv ...] [--hours 1] [--again]
    python benchmarks/study.py --tables
    python benchmarks/study.py --quick

The rows run one after another until the hours are over; a row that is kept is not run again, so the same command goes
on another day. Each keeps its figures in benchmarks/study/<row>.json, with commands, day, machine and seconds.
`--tables` alone makes the tables of the pages of these files; a test holds them against each other. `--quick` runs and
writes nothing: the command line takes every command, and the tables are made. The last line is JSON: `commands`,
`kept`, how many rows have figures, and `identical`, whether the tables are those of the pages.
"""

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date
from fnmatch import fnmatch
from functools import partial
from importlib import metadata
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import matplotlib.pyplot as plt
import numpy as np
import real_models
from matplotlib.figure import Figure
from report import ROOT, machine, write_table
from report import TABLES as WRITTEN_TABLES
from scipy.stats import t as student

from posgap.data.synthetic import favorite_examples
from posgap.foundation.files import atomic, read_json, read_jsonl, write_jsonl
from posgap.foundation.tables import markdown
from posgap.measurement.comparison import read_comparison
from posgap.measurement.lengths import read_lengths
from posgap.measurement.plots import COLORS, save_picture, trim_axes
from posgap.measurement.summary import p_value
from posgap.measurement.sweeps import read_sweep
from posgap.mitigations.search.report import read_mitigate
from posgap.rollout.documents import PARTS
from posgap.rollout.files import read_measurement

STORE = ROOT / "benchmarks" / "study"
RUNS = ROOT / "runs" / "study"
_ON_GPU = shutil.which("nvidia-smi") is not None
NOT_ADMITTED = (3, 7)  # exit codes of a gate that refuses, or has too little to judge by
TITLES = {"smollm2": "SmolLM2-135M-Instruct", "qwen": "Qwen2.5-Coder-0.5B-Instruct", "gemma": "Gemma 3 270M, base"}


def sweep_figures(out: Path) -> dict[str, Any]:
    """What is kept of a sweep."""
    swept = read_sweep(out)
    names = ("n_docs", "n_examples", "positions", "accuracy", "mean", "mean_ci95", "gap", "gap_ci95")
    kept = {name: getattr(swept, name) for name in names}
    kept |= {"flatness_p": swept.flatness.p, "dtype": swept.asked.dtype}
    if swept.outcomes:
        kept |= {name: [getattr(of, name) for of in swept.outcomes.by_placement] for name in ("cut", "echo")}
    return kept


def lengths_figures(out: Path) -> dict[str, Any]:
    """What is kept of a sweep over lengths."""
    found = read_lengths(out)
    names = ("n_examples", "tokens", "documents", "depths", "accuracy", "mean", "mean_ci95", "gap", "gap_ci95")
    return {name: getattr(found, name) for name in names}


def why_figures(out: Path) -> dict[str, Any]:
    """What is kept of `rollout measure` beside a sweep."""
    measured = read_measurement(out)
    assert measured.documents
    return {
        "n_texts": measured.n_texts,
        "shortest": measured.shortest,
        "longest": measured.sequence_length,
        "measures": measured.documents["measures"],
        "summary": measured.summary,
    }


def mitigate_figures(out: Path) -> dict[str, Any]:
    """What is kept of `mitigate`: what it spent of its budget, and what came of each mitigation."""
    found = read_mitigate(out)
    rows = []
    for each in found.found:
        row: dict[str, Any] = {name: getattr(each, name) for name in ("name", "tried", "selection_gain", "reason")}
        if measured := each.measured:
            difference = measured.difference
            row |= {name: getattr(difference, name) for name in ("mean", "mean_ci95", "gap", "gap_ci95")}
            row |= {"price": measured.price, "helps": each.helps}
        rows.append(row)
    base = {name: getattr(found, f"base_{name}") for name in ("mean", "gap", "gap_ci95")}
    return {"budget": found.budget, "seconds": found.seconds, "examples": found.examples, "base": base, "rows": rows}


def trained_figures(out: Path) -> dict[str, Any]:
    """What is kept of a model that was made of another: its sweep, how it differs from the base's, and the verdict."""
    (difference,) = read_comparison(out.with_name(f"{out.name}-compared")).differences
    verdict = read_json(out.with_name(f"{out.name}-gate") / "gate.json")
    steps = out.with_name(f"{out.name}-model") / "history.jsonl"  # where it was trained
    updates = {"updates": sum(1 for _ in read_jsonl(steps))} if steps.is_file() else {}
    return (
        sweep_figures(out)
        | {
            "difference": {name: getattr(difference, name) for name in ("mean", "mean_ci95", "gap", "gap_ci95")},
            "verdict": verdict["outcome"],
            "rules": {rule["name"]: rule["outcome"] for rule in verdict["rules"]},
        }
        | updates
    )


def replicate_figures(out: Path, base: bool = False) -> dict[str, Any]:
    """What is kept of a replicate's model: every answer to prompts of five documents and of ten, the nats that plain
    text takes, and of the training the updates, losses and temperature."""
    figures = answers(out)
    model = real_models.folder("smollm2") if base else out.with_name(f"{out.name}-model")
    figures |= {"ten": answers(out.with_name(f"{out.name}-ten")), "nats": licence_nats(model)}
    history = model / "history.jsonl"
    if history.is_file():
        steps = [step for _, step in read_jsonl(history)]
        figures |= {"updates": len(steps), "losses": [steps[0]["loss"], steps[-1]["loss"]]}
        figures |= {name: steps[0][name] for name in ("teacher_temperature",) if name in steps[0]}
    return figures


def answers(out: Path) -> dict[str, Any]:
    """What is kept of a sweep in a replicate: every answer, a 1 where it was right, by question and in the order of the
    positions, from which all curves are made, and by which any two rows of a replicate can be compared later."""
    swept = read_sweep(out)
    right: dict[str, dict[int, str]] = {}
    for _, answer in read_jsonl(out / "predictions.jsonl"):
        right.setdefault(answer["id"], {})[answer["placement"][0]] = str(int(answer["correct"]))
    figures: dict[str, Any] = {"n_docs": swept.n_docs, "positions": swept.positions, "right": {}}
    for question, by_position in right.items():
        figures["right"][question] = "".join(by_position[position] for position in swept.positions)
    if swept.outcomes:
        figures["cut"] = [of.cut for of in swept.outcomes.by_placement]
    return figures


LICENCES = ("numpy", "matplotlib", "jinja2", "click", "safetensors", "pydantic", "requests", "sympy")
LICENCE_TOKENS = 256


def licence_nats(model: Path) -> dict[str, float]:
    """The mean nats of a token, in the first tokens of the licence of each of some packages: what training costs text
    that has nothing to do with it."""
    import torch  # late: other rows do not need it
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(model)
    nats = {}
    for package in LICENCES:
        files = metadata.files(package) or []
        licence = next(file for file in files if file.name.startswith("LICENSE"))
        ids = tokenizer(licence.read_text(), return_tensors="pt").input_ids[:, :LICENCE_TOKENS]
        with torch.no_grad():
            nats[package] = round(float(network(input_ids=ids, labels=ids).loss), 5)
    return nats


def teacher_figures(out: Path) -> dict[str, Any]:
    """What is kept of a teacher's responses."""
    return read_json(out / "teacher.json")


class Row(NamedTuple):
    """A row of the study: what is run, of which the last `sweep`, `measure` or `teacher` writes the row's folder, and
    what is kept of that."""

    name: str
    model: str
    commands: Sequence[str]  # {model}, {out} of this row, {runs} of all
    kept: Callable[[Path], dict[str, Any]]
    after: str = ""  # the row whose folder it reads, which is run again where that is not there
    prepare: Callable[[Path], None] | None = None  # writes into {runs} what no command makes
    keeps_model: bool = True  # else the model that it trained is removed once its figures are kept


# Examples of ten records, whose keys and values have eight digits.
_SHORT = (
    "data make kv --n-docs 10 --n-examples 200 --force --out {runs}/uuids.jsonl",
    "data import --format litm-kv --input {runs}/uuids.jsonl --key-digits 8 --value-digits 8 --force "
    "--out {runs}/kv10.jsonl",
)
_TRAIN = (
    "data make kv --n-docs 10 --n-examples 400 --seed 1 --force --out {runs}/train-uuids.jsonl",
    "data import --format litm-kv --input {runs}/train-uuids.jsonl --key-digits 8 --value-digits 8 --force "
    "--out {runs}/train10.jsonl",
)
# Multiple choice among four sentences, whose letters stay where they are.
_CHOICE = ("data make choice --n-docs 4 --n-examples 200 --force --out {runs}/choice.jsonl",)
_TRAIN_CHOICE = ("data make choice --n-docs 4 --n-examples 400 --seed 1 --force --out {runs}/train-choice.jsonl",)
# NaturalQuestions whose distractors are what BM25 ranks highest among the other questions' passages.
_NQ = (
    "data import --input nq-oracle --force --out {runs}/oracle.jsonl",
    "data make qa --examples {runs}/oracle.jsonl --distractors bm25 --n-docs 10 --force --out {runs}/nq.jsonl",
)
# In float32 on every processor: at `auto` those that multiply in bfloat16 do so, and rows would differ by that.
_KV = "--task kv --n-docs 10 --dtype float32 --limit 100"
_QA = "--task qa --dtype float32 --max-new-tokens 24"
_OPTIONS = "--task options --n-docs 4 --dtype float32 --limit 100"


# For two cores, and at a rate above the paper's, at which so small a model does not move.
_TRAINED = "--limit 128 --k 2 --epochs 1 --batch-size 6 --learning-rate 5e-5"
_IN_FOURS = _TRAINED.replace("--batch-size 6", "--batch-size 4")


def _planned(training: str) -> str:
    """What `plan distill` is told of such a training on ten short records."""
    return (
        f"--prompt-tokens 240 --response-tokens 12 {training.replace('--limit', '--n-examples').rpartition(' --')[0]}"
    )


def _sweep(of: str, examples: str, positions: str) -> str:
    return f"sweep --model {{model}} {of} --examples {{runs}}/{examples} --positions {positions} --out {{out}}"


def _why(of: str, examples: str, sweep: str, label: str) -> str:
    return (
        f"rollout measure --model {{model}} {of} --texts {{runs}}/{examples} --sweep {{runs}}/{sweep} --label {label} "
        "--out {out}"
    )


def _mitigate(of: str, examples: str, positions: str) -> str:
    task = of.partition(" --limit ")[0]
    return (
        f"mitigate --model {{model}} {task} --positions {positions} --examples {{runs}}/{examples} --budget 30m "
        "--out {out}"
    )


def _asked_by(model: str, mitigation: str, base: str, of: str, examples: str, positions: str) -> Row:
    """The model of a row, or a base as it is, asked by a mitigation of prompts with its options: compared with that
    row, and judged beside the sweep `base`."""
    folder = "{model}" if model == base else f"{{runs}}/{model}-model"
    name, _, settings = mitigation.partition(" ")
    swept = f"{_sweep(of, examples, positions)} --mitigation {name}".replace("{model}", folder)
    commands = (
        f"{swept} --mitigation-settings {settings}" if settings else swept,
        f"compare {{runs}}/{model} {{out}} --out {{out}}-compared",
        f"gate --candidate {{out}} --base {{runs}}/{base} --examples {{runs}}/{examples} --out {{out}}-gate",
    )
    kind = model.partition("-")[0]
    return Row(f"{kind if model == base else model}-{name}", kind, commands, trained_figures)


def _applied(mitigation: str, model: str, base: str, of: str, examples: str, positions: str) -> Row:
    """A mitigation in a model that is asked by another one, of prompts; compared with the model as it is."""
    row = _asked_by(f"{model}-{mitigation}", "reordering", base, of, examples, positions)
    apply = f"apply --model {{model}} --mitigation {mitigation} --force --out {{runs}}/{model}-{mitigation}-model"
    sweep, _, gate = row.commands
    return row._replace(commands=(apply, sweep, f"compare {{runs}}/{base} {{out}} --out {{out}}-compared", gate))


# The paper's ablation, by the options of `distill`; each is trained on the same responses, as often.
METHODS = {
    "sft": "--method sft",
    "seqkd": "--method seqkd",
    "kl": "--method r1 --alignment none --anchoring 0",
    "align": "--method r1 --alignment paper --anchoring 0",
    "r1": "--method r1",
}


def trained(
    base: str,
    model: str,
    of: str,
    examples: str,
    train: Sequence[str],
    positions: str,
    settings: str,
    methods: Sequence[str] = tuple(METHODS),
    plan: str = "",
) -> list[Row]:
    """The rows of a model's training: the teacher's responses to examples that the commands `train` make, and each
    method's model, swept on `examples`, compared with the sweep `base`, and judged. `of` is the task, the number of
    documents, and how many examples are swept. Before each training `plan distill` says by its options `plan` what it
    will take."""
    teacher = f"{model}-teacher"
    task = of.partition(" --limit ")[0]
    made, swept = train[-1].split()[-1], f"{examples}.jsonl"
    asked = f"teacher --model {{model}} {task} --examples {made} --sweep {{runs}}/{base} --out {{out}}"
    rows = [Row(teacher, model, (*train, asked), teacher_figures)]
    for name in methods:
        row = f"{model}-{name}"
        commands = (
            *((f"plan distill --model {{model}} --gpus {{gpus}} {plan} --json",) if plan else ()),
            f"distill --model {{model}} {' '.join(task.split()[:2])} --examples {made} "
            f"--responses {{runs}}/{teacher} {METHODS[name.partition('-')[0]]} {settings} --out {{runs}}/{row}-model",
            _sweep(of, swept, positions).replace("{model}", f"{{runs}}/{row}-model"),
            f"compare {{runs}}/{base} {{out}} --out {{out}}-compared",
            f"gate --candidate {{out}} --base {{runs}}/{base} --examples {{runs}}/{swept} --out {{out}}-gate",
        )
        rows.append(Row(row, model, commands, trained_figures, teacher))
    return rows


# Each method makes as many updates, of two questions: an update of those with an anchor counts the two anchors too.
METHODS_OF_REPLICATES = {
    "kl": "--method r1 --teacher-temperature 1 --alignment none --anchoring 0 --batch-size 4",
    "r1": "--method r1 --teacher-temperature 1 --alignment paper --anchoring 1 --batch-size 6",
    "sft": "--method sft --batch-size 4",
    "seqkd": "--method seqkd --batch-size 4",
    "anchor": "--method r1 --teacher-temperature 1 --alignment none --anchoring 1 --batch-size 6",
    "align": "--method r1 --teacher-temperature 1 --alignment paper --anchoring 0 --batch-size 4",
    "r1-sure": "--method r1 --alignment paper --anchoring 1 --batch-size 6",  # at the temperature that is chosen
    "kl-sure": "--method r1 --alignment none --anchoring 0 --batch-size 4",
}
RATES = {"fast": "3e-4", "slow": "3e-5"}  # three times the rate of the others, and a third of it
for _method, _rate in product(("kl", "r1", "seqkd"), RATES):
    METHODS_OF_REPLICATES[f"{_method}-{_rate}"] = METHODS_OF_REPLICATES[_method]
N_REPLICATES = 8
_IN_REPLICATES = "--task qa --n-docs 5 --max-new-tokens 16 --dtype float32"


def replicates() -> list[Row]:
    """The rows of all replicates in the order in which they are run: first the four methods of each of four replicates,
    one replicate after another, then the other cells of alignment by anchoring and other rates, then four more."""
    rows = []
    first = ("kl", "r1", "sft", "seqkd")
    for numbers in (range(1, 5), range(5, N_REPLICATES + 1)):
        for number in numbers:
            rows += [*_untrained(number), *(_trained_in(number, method) for method in first)]
        for number in numbers:
            rows += [_trained_in(number, method) for method in METHODS_OF_REPLICATES if method not in first]
    return rows


def _write_questions(number: int, runs: Path) -> None:
    """Writes a replicate's training and held-out questions, of seeds that no other replicate has."""
    for name, count, seed, n_docs in (("train", 72, 100, 5), ("held", 40, 200, 5), ("ten", 40, 300, 10)):
        rows = [example.model_dump() for example in favorite_examples(count, n_docs, seed + number)]
        write_jsonl(runs / f"replicate-{number}-{name}.jsonl", rows)


def _untrained(number: int) -> list[Row]:
    """The teacher and the base of a replicate, whose training questions and held-out questions are its own."""
    name = f"replicate-{number}"
    asked = f"--examples {{runs}}/{name}-train.jsonl --advantageous 1 --out {{out}}"
    teacher = f"teacher --model {{model}} {_IN_REPLICATES} {asked}"
    base = _sweep(_IN_REPLICATES, f"{name}-held.jsonl", "1,2,3,4,5")
    ten = _sweep_ten(number, f"{name}-base")
    prepare = partial(_write_questions, number)
    return [
        Row(f"{name}-teacher", "smollm2", (teacher,), teacher_figures, prepare=prepare),
        Row(f"{name}-base", "smollm2", (ten, base), partial(replicate_figures, base=True), prepare=prepare),
    ]


def _trained_in(number: int, method: str) -> Row:
    """A model that is trained by one method on the teacher's answers of a replicate, and swept on its held-out
    questions."""
    name = f"replicate-{number}"
    row = f"{name}-{method}"
    rate = RATES.get(method.partition("-")[2], "1e-4")
    training = (
        f"distill --model {{model}} --task qa --examples {{runs}}/{name}-train.jsonl "
        f"--responses {{runs}}/{name}-teacher {METHODS_OF_REPLICATES[method]} --limit 48 --k 2 --epochs 1 "
        f"--learning-rate {rate} --dtype float32 --save-steps 0 --seed {number} --out {{runs}}/{row}-model"
    )
    sweep = _sweep(_IN_REPLICATES, f"{name}-held.jsonl", "1,2,3,4,5").replace("{model}", f"{{runs}}/{row}-model")
    prepare = partial(_write_questions, number)
    ten = _sweep_ten(number, row).replace("{model}", f"{{runs}}/{row}-model")
    commands = (training, ten, sweep)
    return Row(row, "smollm2", commands, replicate_figures, f"{name}-teacher", prepare, keeps_model=False)


def _sweep_ten(number: int, row: str) -> str:
    """The sweep of prompts twice as long as those that were learned."""
    of = _IN_REPLICATES.replace("--n-docs 5", "--n-docs 10")
    return _sweep(of, f"replicate-{number}-ten.jsonl", "1,5,10").replace("{out}", f"{{runs}}/{row}-ten")


ROWS = (
    Row("smollm2-kv", "smollm2", (*_SHORT, _sweep(_KV, "kv10.jsonl", "1,3,5,8,10")), sweep_figures),
    Row("smollm2-why", "smollm2", (_why(_KV, "kv10.jsonl", "smollm2-kv", "SmolLM2"),), why_figures),
    Row("gemma-kv", "gemma", (*_SHORT, _sweep(_KV, "kv10.jsonl", "1,3,5,8,10")), sweep_figures),
    Row("gemma-why", "gemma", (_why(_KV, "kv10.jsonl", "gemma-kv", "Gemma"),), why_figures),
    Row("qwen-options", "qwen", (*_CHOICE, _sweep(_OPTIONS, "choice.jsonl", "1,2,3,4")), sweep_figures),
    Row("qwen-why", "qwen", (_why(_OPTIONS, "choice.jsonl", "qwen-options", "Qwen"),), why_figures),
    Row("smollm2-nq", "smollm2", (*_NQ, _sweep(f"{_QA} --n-docs 5 --limit 60", "nq.jsonl", "1,3,5")), sweep_figures),
    Row(
        "smollm2-needle",
        "smollm2",
        (
            "data make needle --n-examples 60 --force --out {runs}/needle.jsonl",
            f"sweep --model {{model}} {_QA} --limit 12 --examples {{runs}}/needle.jsonl --lengths 1k,2k --depths 3 "
            "--out {out}",
        ),
        lengths_figures,
    ),
    Row(
        "qwen-judge",
        "qwen",
        (
            "data make choice --n-docs 2 --n-examples 200 --force --out {runs}/pairs.jsonl",
            _sweep("--task judge --n-docs 2 --dtype float32 --limit 100", "pairs.jsonl", "1,2"),
        ),
        sweep_figures,
    ),
    Row(
        "qwen-two-hop",
        "qwen",
        (
            "data make two-hop --n-docs 5 --n-examples 100 --force --out {runs}/two-hop.jsonl",
            "sweep --model {model} --task multihop-cot --n-docs 5 --dtype float32 --limit 20 --examples "
            "{runs}/two-hop.jsonl --out {out}",
        ),
        sweep_figures,
    ),
    *(
        Row(f"{model}-mitigate", model, (_mitigate(of, examples, positions),), mitigate_figures)
        for model, of, examples, positions in (
            ("smollm2", _KV, "kv10.jsonl", "1,3,5,8,10"),
            ("gemma", _KV, "kv10.jsonl", "1,3,5,8,10"),
            ("qwen", _OPTIONS, "choice.jsonl", "1,2,3,4"),
        )
    ),
    *(
        row
        for model in ("smollm2", "gemma")
        for row in trained(f"{model}-kv", model, _KV, "kv10", _TRAIN, "1,3,5,8,10", _TRAINED, plan=_planned(_TRAINED))
    ),
    # R1 reads each example at its best position too, and so makes 64 updates of 6 prompts, of 2 examples each. These
    # are as many, of the same examples, and name the method by what stands before the number.
    *trained(
        "smollm2-kv",
        "smollm2",
        _KV,
        "kv10",
        _TRAIN,
        "1,3,5,8,10",
        _IN_FOURS,
        ("kl-64",),
        _planned(_IN_FOURS),
    )[1:],
    # Adapters, since all of Qwen takes 18 GB beside a checkpoint.
    *trained(
        "qwen-options",
        "qwen",
        _OPTIONS,
        "choice",
        _TRAIN_CHOICE,
        "1,2,3,4",
        "--limit 128 --epochs 1 --batch-size 6 --learning-rate 5e-4 --lora-rank 16",
        ("sft",),
    ),
    _asked_by("smollm2-seqkd", "reordering", "smollm2-kv", _KV, "kv10.jsonl", "1,3,5,8,10"),
    _applied("ms-poe", "qwen", "qwen-options", _OPTIONS, "choice.jsonl", "1,2,3,4"),
    _asked_by("qwen-options", """permutation '{{"orders": 3}}'""", "qwen-options", _OPTIONS, "choice.jsonl", "1,2,3,4"),
    *replicates(),
)


def run(row: Row, model: str, title: str, runs: Path) -> None:
    """Runs a row on a model, and keeps its figures."""
    runs.mkdir(parents=True, exist_ok=True)
    names = {"model": model, "runs": str(runs), "out": str(runs / row.name), "gpus": str(int(_ON_GPU))}
    if row.prepare:
        row.prepare(runs)
    began, took, foretold = time.monotonic(), [], {}
    for command in row.commands:
        words = shlex.split(command.format(**names))
        print("posgap", shlex.join(words), flush=True)
        code, printed, taken = measured(words)
        if code not in ((0, *NOT_ADMITTED) if words[0] == "gate" else (0,)):
            raise SystemExit(f"{row.name}: `posgap {shlex.join(words)}` ended with {code}")
        took.append(taken)
        if words[0] == "plan":
            foretold = {name: json.loads(printed)[name] for name in ("updates", "hours", "memory_gb")}
    kept = {
        "model": title,
        "commands": [f"posgap {command}" for command in row.commands],
        "date": str(date.today()),
        "machine": machine(),
        "seconds": round(time.monotonic() - began),
        "took": took,
        **({"foretold": foretold} if foretold else {}),
        "figures": row.kept(runs / row.name),
    }
    STORE.mkdir(exist_ok=True)
    with atomic(STORE / f"{row.name}.json") as partial:
        partial.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    if not row.keeps_model:
        shutil.rmtree(runs / f"{row.name}-model", ignore_errors=True)


def measured(words: Sequence[str]) -> tuple[int, str, dict[str, float]]:
    """Runs posgap: its exit code, what it printed if that is JSON, and what it took of seconds and of memory, in GB:
    that of the processor, and with a GPU all that is taken of that one."""
    began, on_gpu = time.monotonic(), 0.0
    with tempfile.TemporaryFile("w+") as printed:
        output = printed if "--json" in words else None
        process = subprocess.Popen([sys.executable, "-m", "posgap", *words], cwd=ROOT, stdout=output)
        while True:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if _ON_GPU:
                asked = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "--id=0"]
                on_gpu = max(on_gpu, float(subprocess.check_output(asked, text=True)) * 2**20 / 1e9)
            time.sleep(0.5)
        process.returncode = os.waitstatus_to_exitcode(status)  # it was waited for behind its back
        printed.seek(0)
        taken = {"seconds": round(time.monotonic() - began), "memory_gb": round(used.ru_maxrss * 1024 / 1e9, 2)}
        return process.returncode, printed.read(), taken | ({"gpu_gb": round(on_gpu, 2)} if _ON_GPU else {})


def is_kept(row: Row) -> bool:
    """Whether a row's figures are there."""
    return (STORE / f"{row.name}.json").is_file()


def in_time(rows: Sequence[Row], hours: float) -> Iterator[Row]:
    """The rows, of which none is begun after so many hours."""
    end = time.monotonic() + 3600 * hours
    for row in rows:
        if time.monotonic() > end:
            print(f"the time is over: {row.name} and what follows it are left", flush=True)
            return
        yield row


def kept(*names: str) -> list[dict[str, Any]]:
    """The rows of these names that are kept."""
    return [read_json(file) for name in names if (file := STORE / f"{name}.json").is_file()]


def between(value: float, interval: Sequence[float] | None, form: str = ".1f") -> str:
    """A figure with its interval."""
    return f"{value:{form}}" + (f" ({interval[0]:{form}} to {interval[1]:{form}})" if interval else "")


# Rows of models as they are, and what they are asked where the task does not say it.
_AS_THEY_ARE = {
    **dict.fromkeys(("smollm2-kv", "gemma-kv", "qwen-options"), ""),
    "smollm2-nq": ", NaturalQuestions",
    "smollm2-needle": ", needles",
    "qwen-judge": "",
    "qwen-two-hop": "",
}


def curves() -> str:
    """A row for each sweep of a model as it is, and for each of its lengths."""
    rows = []
    for name, about in _AS_THEY_ARE.items():
        for each in kept(name):
            task = each["commands"][-1].partition("--task ")[2].split()[0] + about
            for of, of_length in _by_length(each["figures"]):
                at = zip(of["positions"], of["accuracy"])
                by_position = ", ".join(f"{place:g}: {score:.0f}" for place, score in at)
                if len(of["positions"]) > 10:
                    by_position = (
                        f"{len(of['positions'])} pairs: {min(of['accuracy']):.0f} to {max(of['accuracy']):.0f}"
                    )
                means = [between(of[name], of[f"{name}_ci95"]) for name in ("mean", "gap")]
                counts = [str(of["n_docs"]), str(of["n_examples"])]
                rows.append([each["model"], task + of_length, *counts, by_position, *means, hours(each)])
    heads = ["model", "task", "documents", "examples", "accuracy by position", "mean", "gap", "day, minutes"]
    return markdown(heads, rows, left=2)


def _by_length(figures: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """A sweep's figures, or those at each of several lengths, and that length in words."""
    if "tokens" not in figures:
        yield figures, ""
        return
    for index, tokens in enumerate(figures["tokens"]):
        of = {name: figures[name][index] for name in ("accuracy", "mean", "mean_ci95", "gap", "gap_ci95")}
        of |= {
            "positions": figures["depths"],
            "n_examples": figures["n_examples"],
            "n_docs": figures["documents"][index],
        }
        yield of, f", {tokens:,} tokens"


def shares() -> str:
    """What the parts of prompts draw, and which shape the documents' shares have, by model and measure."""
    rows = []
    for each in kept("smollm2-why", "gemma-why", "qwen-why"):
        for name, of in each["figures"]["measures"].items():
            parts = [f"{100 * of['parts'][part]:.1f}" for part in PARTS]
            rows.append([each["model"], name.replace("_", " "), *parts, f"{of['shape']} ({p_value(of['flatness_p'])})"])
    return markdown(["model", "measure", *PARTS, "among documents"], rows, left=2)


def mitigations() -> str:
    """What came of each mitigation of a model, on held-out examples."""
    rows = []
    for each in kept("smollm2-mitigate", "gemma-mitigate", "qwen-mitigate"):
        of = each["figures"]
        base = of["base"]
        spent = f"{of['budget']}: {of['seconds'] / 60:.1f} minutes"
        title = f"{each['model']}, budget {spent}, {of['examples']['held_out']} held out"
        rows.append([title, "as it is", f"{base['mean']:.1f}", between(base["gap"], base["gap_ci95"]), ""])
        for found in of["rows"]:
            if "mean" in found:
                figures = [between(found[name], found[f"{name}_ci95"], "+.1f") for name in ("mean", "gap")]
                rows.append(["", found["name"], *figures, found["price"]])
    return markdown(["model", "mitigation", "mean", "gap", "an answer takes"], rows, left=2)


_MADE_OF = (*METHODS, "kl-64", "seqkd-reordering", "ms-poe-reordering", "permutation", "lpes")


def methods() -> str:
    """A row for each method by which a model was trained."""
    rows = []
    for base in ("smollm2-kv", "gemma-kv", "qwen-options"):
        model = base.rpartition("-")[0]
        names = {"as it is": base} | {name: f"{model}-{name}" for name in _MADE_OF}
        for name, each in ((name, each) for name, row in names.items() for each in kept(row)):
            of = each["figures"]
            cells = [between(of[figure], of[f"{figure}_ci95"]) for figure in ("gap", "mean")]
            if difference := of.get("difference"):
                cells += [
                    between(difference[figure], difference[f"{figure}_ci95"], "+.1f") for figure in ("gap", "mean")
                ]
            rows.append([each["model"], name, *cells, *[""] * (4 - len(cells)), of.get("verdict", ""), hours(each)])
    heads = ["model", "trained by", "gap", "mean", "change of gap", "change of mean", "verdict", "day, minutes"]
    return markdown(heads, rows, left=2)


# Fixed before any replicate was run: weights of the methods' figures, which are paired within a replicate.
CONTRASTS = {
    "anchoring (both pairs of the 2 x 2)": {"anchor": 0.5, "r1": 0.5, "kl": -0.5, "align": -0.5},
    "alignment (both pairs of the 2 x 2)": {"align": 0.5, "r1": 0.5, "kl": -0.5, "anchor": -0.5},
    "anchoring and alignment: r1 - kl": {"r1": 1, "kl": -1},
    "words, not distributions: seqkd - kl": {"seqkd": 1, "kl": -1},
    "gold answers, not its own: sft - seqkd": {"sft": 1, "seqkd": -1},
    "r1 - base": {"r1": 1, "base": -1},
    # Fixed later, before any of these was run.
    "the teacher's temperature: r1-sure - r1": {"r1-sure": 1, "r1": -1},
    "words, not sure distributions: seqkd - r1-sure": {"seqkd": 1, "r1-sure": -1},
    "anchoring, position 1 drawn in both: r1-sure - kl-sure": {"r1-sure": 1, "kl-sure": -1},
}


def curves_of_replicates() -> dict[str, dict[int, np.ndarray]]:
    """The accuracies by position of each method, in points, by the number of the replicate, of what is kept."""
    curves: dict[str, dict[int, np.ndarray]] = {}
    for method in ("base", *METHODS_OF_REPLICATES):
        for number in range(1, N_REPLICATES + 1):
            for row in kept(f"replicate-{number}-{method}"):
                right = np.array([[int(answer) for answer in answers] for answers in row["figures"]["right"].values()])
                curves.setdefault(method, {})[number] = 100 * right.mean(axis=0)
    return curves


def over_replicates(values: Sequence[float], form: str = ".1f") -> str:
    """The mean of a figure over replicates, from three on with its t-interval of 95 %."""
    middle, half = float(np.mean(values)), half_width(np.array(values)) if len(values) > 2 else None
    return between(middle, None if half is None else (middle - half, middle + half), form)


def half_width(values: np.ndarray) -> Any:
    """Half of the t-interval of 95 % of the mean over the first axis, that of replicates."""
    n = len(values)
    return student.ppf(0.975, n - 1) * values.std(axis=0, ddof=1) / np.sqrt(n)


def first_over_others(curve: np.ndarray) -> float:
    """The first position, at which the teacher answered, minus the mean of the others. The best and the worst position
    of few questions are chosen by their noise, and these are not."""
    return float(curve[0] - curve[1:].mean())


def gap_over_replicates(curves: Sequence[np.ndarray]) -> str:
    """The gap of the mean curve; from three replicates on by the jackknife, which takes most of its bias away."""
    whole, n = np.array(curves), len(curves)
    gap = np.ptp(whole.mean(0))
    without = [np.ptp(np.delete(whole, left, 0).mean(0)) for left in range(n)] if n > 2 else []
    return over_replicates([n * gap - (n - 1) * left for left in without] or [gap])


def replicate_means() -> str:
    """A row for each method: what it came to over the replicates."""
    rows = []
    for method, by_number in curves_of_replicates().items():
        curves = list(by_number.values())
        cells = [
            ", ".join(f"{score:.0f}" for score in np.mean(curves, axis=0)),
            over_replicates([curve.mean() for curve in curves]),
            over_replicates([first_over_others(curve) for curve in curves], "+.1f"),
            gap_over_replicates(curves),
        ]
        rows.append([method, str(len(curves)), *cells])
    heads = ["trained by", "replicates", "mean curve", "mean", "first minus others", "gap of the mean curve"]
    return markdown(heads, rows, left=1)


def replicate_contrasts() -> str:
    """A row for each contrast of methods, over the replicates that have all of them."""
    curves, rows = curves_of_replicates(), []
    for title, weights in CONTRASTS.items():
        numbers = set.intersection(*(set(curves.get(method, {})) for method in weights))
        if numbers:
            contrasts = []
            for number in sorted(numbers):
                contrasts.append(sum(weight * curves[method][number] for method, weight in weights.items()))
            means = over_replicates([contrast.mean() for contrast in contrasts], "+.1f")
            shapes = over_replicates([first_over_others(contrast) for contrast in contrasts], "+.1f")
            rows.append([title, str(len(numbers)), means, shapes])
    return markdown(["contrast", "replicates", "mean", "first minus others"], rows, left=1)


def hours(row: dict[str, Any]) -> str:
    return f"{row['date']}, {row['seconds'] / 60:.0f}"


def plans() -> str:
    """What `plan distill` foretold of each training beside what it took; the plan is that of R1, which makes more
    updates than some methods, so its hours are those of the updates made."""
    rows = []
    for file in sorted(STORE.glob("*.json")):
        each = read_json(file)
        if foretold := each.get("foretold"):
            index = next(at for at, command in enumerate(each["commands"]) if command.startswith("posgap distill"))
            took = each["took"][index]
            made = each["figures"]["updates"]
            minutes = 60 * foretold["hours"] * made / foretold["updates"]
            memory = [foretold["memory_gb"], took.get("gpu_gb", took["memory_gb"])]
            cells = [f"{minutes:.0f}", f"{took['seconds'] / 60:.0f}", *(f"{gb:.1f}" for gb in memory)]
            rows.append([each["model"], file.stem.partition("-")[2], str(made), *cells])
    heads = ["model", "method", "updates", "minutes planned", "minutes taken", "GB planned", "GB taken"]
    return markdown(heads, rows, left=2)


_DRAWN = {
    "base": "SmolLM2-135M as it is",
    "r1-sure": "after R1 (Pos2Distill), by default",
    "r1": "after R1, teacher temperature 1",
    "sft": "after SFT on gold answers",
    "seqkd": "after SeqKD on its own answers",
}


def replicate_curves() -> Figure:
    """The mean curve over replicates of some methods, with its interval over these at each position."""
    figure, axes = plt.subplots(figsize=(8, 4.2), dpi=144, layout="constrained")
    curves = curves_of_replicates()
    for (method, label), color in zip(_DRAWN.items(), COLORS):
        whole = np.array(list(curves[method].values()))
        middle, half, at = whole.mean(axis=0), half_width(whole), range(1, whole.shape[1] + 1)
        axes.fill_between(at, middle - half, np.minimum(middle + half, 100), color=color, alpha=0.15, linewidth=0)
        axes.plot(at, middle, "o-", markersize=4, color=color, label=f"{label}: mean {middle.mean():.0f}")
    axes.set(xlabel="position of the gold document among 5", ylabel="accuracy, %", ylim=(0, 103), xticks=at)
    trim_axes(axes)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
    return figure


def pictures() -> None:
    """The curves of replicates, and what draws SmolLM2's attention, where that row's folder is there."""
    save_picture(replicate_curves(), ROOT / "docs" / "replicates.png")
    if (drawn := RUNS / "smollm2-why" / "influence.png").is_file():
        shutil.copyfile(drawn, ROOT / "docs" / "why-smollm2.png")


TABLES = {
    "study-curves": curves,
    "study-methods": methods,
    "study-replicates": replicate_means,
    "study-contrasts": replicate_contrasts,
    "why-shares": shares,
    "study-mitigations": mitigations,
    "study-plans": plans,
}


def taken(rows: Iterable[Row]) -> int:
    """How many commands the rows have, all of which the command line takes; what it raises otherwise."""
    from posgap.cli import main as cli  # late: it takes seconds

    places = {"model": "model", "runs": "runs", "out": "runs/out", "gpus": "0"}
    asked: list[object] = []
    with mock.patch.object(cli, "_work_of", lambda verb: asked.append):
        for command in (command for row in rows for command in row.commands):
            words = shlex.split(command.format(**places))
            cli.build().main(words, prog_name="posgap", standalone_mode=False)
    return len(asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows", nargs="+", default=["*"], help="only those of these names or patterns, like 'replicate-*'"
    )
    parser.add_argument("--hours", type=float, default=1.0, help="no row is begun after so many (1)")
    parser.add_argument("--again", action="store_true", help="run rows that are kept, too")
    parser.add_argument("--tables", action="store_true", help="run nothing, and make the tables")
    parser.add_argument("--quick", action="store_true", help="run and write nothing, and check commands and tables")
    options = parser.parse_args()
    if options.quick:
        written = {name: (WRITTEN_TABLES / f"{name}.md").read_text(encoding="utf-8").strip() for name in TABLES}
        identical = all(table().strip() == written[name] for name, table in TABLES.items())
        figures = {"commands": taken(ROWS), "kept": sum(map(is_kept, ROWS)), "identical": identical}
        print(json.dumps(figures))
        return
    if not options.tables:
        asked = [row for row in ROWS if any(fnmatch(row.name, pattern) for pattern in options.rows)]
        missing: list[Row] = []
        for row in asked:
            if options.again or not is_kept(row):
                before = [each for each in ROWS if each.name == row.after and not (RUNS / each.name).is_dir()]
                missing += [each for each in (*before, row) if each not in missing]
        for row in in_time(missing, options.hours):
            if options.again:  # what is complete would be reused, in no time
                for part in ("", "-model", "-compared", "-gate"):
                    shutil.rmtree(RUNS / f"{row.name}{part}", ignore_errors=True)
            run(row, str(real_models.folder(row.model)), TITLES[row.model], RUNS)
    for name, table in TABLES.items():
        write_table(name, table())
    pictures()


if __name__ == "__main__":
    main()
