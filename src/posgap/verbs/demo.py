"""The demo: makes data and a tiny model, runs the pipeline on them with KFP's local runner, and sums up."""

import hashlib
import logging
import os
import sys
import time
from itertools import takewhile
from pathlib import Path

import posgap
from posgap.data.readers import read_litm_kv
from posgap.data.reading import write_examples
from posgap.demo import tiny_model
from posgap.demo.summary import steps, summarize, table
from posgap.foundation import files
from posgap.foundation.errors import PosgapError
from posgap.foundation.interruption import resumable
from posgap.foundation.printing import show
from posgap.measurement.evidence import Evidence
from posgap.measurement.length_comparison import (
    COMPARED_LENGTHS_FILE,
    COMPARED_LENGTHS_PAGE,
    LengthComparison,
    compare_lengths,
    table_text,
    write_length_comparison,
)
from posgap.measurement.page_examples import pack_folders
from posgap.measurement.report import write_report
from posgap.options.data_import import ImportConfig
from posgap.options.data_make import MakeConfig
from posgap.options.demo import DemoConfig
from posgap.options.sweep import SweepConfig
from posgap.pipelines import smoke
from posgap.pipelines.forked_steps import begin_server
from posgap.pipelines.local import run_locally
from posgap.storage.datasets import dataset_at
from posgap.storage.outputs import RunFolder
from posgap.tasks.placements import spaced_positions
from posgap.tracking.runs import PARENT_VARIABLE, link, start_run
from posgap.tracking.server import track_at
from posgap.tracking.sweeps import log_sweep
from posgap.verbs.data_import import data_import
from posgap.verbs.data_make import data_make
from posgap.verbs.sweep import sweep_model

log = logging.getLogger(__name__)
SHOWN = ("summary.json", "curves.png", "curves.html", COMPARED_LENGTHS_FILE, COMPARED_LENGTHS_PAGE)
CANDIDATE = "Pos2Distill-R1"
EXAMPLES_ELSEWHERE = 40  # asked at each of three positions of prompts of other lengths
QUERIES_PER_LINE = 30  # training questions made of one line of the data file; 10 are too few for several lengths


@resumable()
def demo(config: DemoConfig) -> None:
    """Runs everything and prints the summary; parts that are complete in `config.out` are reused."""
    with RunFolder(config, "demo") as output:
        _demo(config, output)


def _demo(config: DemoConfig, output: RunFolder) -> None:
    started = time.monotonic()
    out = output.out
    track_at(f"sqlite:///{out}/mlflow.db")
    # Results are reused only while the code that made them is unchanged.
    work = out / f"{'smoke' if config.smoke else 'seed'}-{config.seed}-{_code_digest()[:8]}"
    # Trained at one length the model forgets longer prompts, so half of its prompts are twice as long.
    at_two_lengths = {"settings": smoke.OVERRIDES | {"mix_docs": [2 * smoke.PARAMETERS["n_docs"]]}}
    parameters = smoke.PARAMETERS | (smoke.SMALLEST if config.smoke else at_two_lengths)
    data_train, data_eval = make_examples(config, work)
    recipe = tiny_model.QUICK if config.smoke else tiny_model.STANDARD
    model, seconds = tiny_model.base_model(work, config.seed, recipe)
    begin_server()
    places = {"data_train": str(data_train), "data_eval": str(data_eval), "base_model": str(model)}
    with start_run("demo", {"posgap.seed": config.seed}, out) as run:
        if run.id:
            os.environ[PARENT_VARIABLE] = run.id
            os.environ.pop("MLFLOW_RUN_ID", None)  # else a stage would join this run instead of opening a child
        ran = run_locally(
            smoke.pipeline,
            parameters | places | {"seed": config.seed},
            root=work / "pipeline",
            cache=work / "cache",
            log=out / "pipeline.log",
        )
        folders = steps(ran)
        summary = summarize(folders, parameters["registered_name"], {"tiny_model": seconds})
        files.write_json(out / "summary.json", summary)
        base = Evidence(folders["merge_base"])
        candidate = Evidence(folders["merge_candidate"])
        candidate.sweep = candidate.sweep.model_copy(update={"label": CANDIDATE})
        sweeps = [base.sweep, candidate.sweep]
        title = f"Position gap before and after {CANDIDATE}"
        write_report(sweeps, out / "curves.png", out / "curves.html", title, pack_folders([base, candidate]))
        elsewhere = _compare_elsewhere(base, candidate, data_eval, work / "elsewhere")
        write_length_comparison(elsewhere, sweeps, out)
        for data, use in ((data_train, "training"), (data_eval, "evaluation")):
            run.dataset(dataset_at(data, use))
        log_sweep(sweeps[1], run)
        for name in SHOWN:
            run.artifact(out / name)
        output.write_manifest(SHOWN, folders)
        read = f"{table(summary)}\n{table_text(elsewhere)}\n"
        show(f"{read}\n{_where_to_look(out, run.id, time.monotonic() - started)}", summary)


def _compare_elsewhere(base: Evidence, candidate: Evidence, examples: Path, out: Path) -> LengthComparison:
    """Compares the candidate with the base at half, one and a half and twice the length that it was trained at."""
    trained = base.sweep.n_docs
    by_length = {}
    for n_docs in (trained // 2, trained, trained * 3 // 2, trained * 2):
        swept = [base, candidate]
        if n_docs != trained:
            swept = [_sweep_at(each, n_docs, examples, out / f"{each.sweep.label}-{n_docs}") for each in swept]
        by_length[f"{n_docs} records"] = swept
    return compare_lengths(by_length)


def _sweep_at(like: Evidence, n_docs: int, examples: Path, out: Path) -> Evidence:
    """Sweeps a model's first, middle and last position in prompts of this many documents, with otherwise unchanged
    settings."""
    asked = {name: like.sweep.settings[name] for name in ("task", "backend", "max_new_tokens", "dtype", "seed")}
    config = SweepConfig(
        **asked,
        model=like.sweep.model,
        label=like.sweep.label,
        examples=examples,
        n_docs=n_docs,
        positions=[str(position) for position in spaced_positions(n_docs, 3)],
        limit=EXAMPLES_ELSEWHERE,
        out=out,
    )
    return Evidence(Path(sweep_model(config)))


def make_examples(config: DemoConfig, work: Path) -> tuple[Path, Path]:
    """Training and evaluation examples from different lines of the data file."""
    source = config.data or Path(data_make(MakeConfig(kind="kv", out=work / "kv.jsonl.gz", seed=config.seed)))
    if not source.is_file():
        raise PosgapError(f"{source}: no such file")
    version = files.digest_path(source)[:8]
    lines, last = (3, 19) if config.smoke else (100, 0)  # training lines; the evaluation's last line (0: all)
    digits = {"key_digits": tiny_model.KEY_DIGITS, "value_digits": tiny_model.VALUE_DIGITS}
    train = work / f"train-{version}.jsonl.gz"
    numbered = read_litm_kv(source, queries=QUERIES_PER_LINE, seed=config.seed, **digits)
    write_examples(train, (example for _, example in takewhile(lambda each: each[0] <= lines, numbered)))
    held_out = work / f"eval-{version}.jsonl.gz"
    data_import(ImportConfig(input=source, out=held_out, first=lines + 1, last=last, **digits))
    return train, held_out


def _code_digest() -> str:
    sha = hashlib.sha256()
    for package in posgap, posgap.pipelines, posgap.components:
        for file in sorted(Path(package.__path__[0]).rglob("*.py")):
            sha.update(file.read_bytes())
    return sha.hexdigest()


def _where_to_look(out: Path, run_id: str, seconds: float) -> str:
    uri = os.environ["MLFLOW_TRACKING_URI"]
    lines = [f"done in {seconds:.0f} s", f"curves   {out}/curves.html", f"summary  {out}/summary.json"]
    if run_id and uri.startswith("sqlite:"):
        command = Path(sys.executable).with_name("mlflow")
        lines.append(f"MLflow   {command} ui --backend-store-uri {uri}")
    if run_id and (where := link(run_id, "http://127.0.0.1:5000" if uri.startswith("sqlite:") else "")):
        lines.append(f"         {where}")
    return "\n".join(lines)
