"""A pipeline that was killed on this machine, given again: it goes on where it was, and MLflow is told the truth.

With `CHAOS_FUZZ_SECONDS` it is killed at ten moments, and not at four.
"""

import os
import re
import shutil
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from examples import kv_example
from kfp import dsl
from mlflow import MlflowClient
from warm import SERVER
from warm_forks import calling

from posgap.components.table import distill, report, sweep, teacher
from posgap.data.reading import write_examples
from posgap.pipelines.local import run_locally
from posgap.pipelines.resumed_steps import _Places
from posgap.tracking.parents import PIPELINE, STAGE_TAG
from posgap.tracking.server import EXPERIMENT

CHECKPOINTS = (1, 3, 6, 8, 11, 13, 17, 20) if "CHAOS_FUZZ_SECONDS" in os.environ else (2, 7)  # at which it is killed
ASKED = {"task": "kv", "n_docs": 4, "max_new_tokens": 2, "max_unanswered": 100}
TAUGHT = {"task": "kv", "n_docs": 4, "max_new_tokens": 2, "advantageous": "1", "keep_incorrect": True}
TRAINED = {"task": "kv", "method": "r1", "k": 1, "batch_size": 4, "epochs": 2, "save_steps": 1, "learning_rate": 1e-4}


@dsl.pipeline
def training(examples: str, model: str):
    """sweep -> teacher -> distill, and a report at the end."""
    with dsl.ExitHandler(report(registered_name="nothing").set_caching_options(False)):
        data = dsl.importer(artifact_uri=examples, artifact_class=dsl.Dataset).output
        base = dsl.importer(artifact_uri=model, artifact_class=dsl.Model).output
        swept = sweep(examples=data, model=base, settings=ASKED).outputs["out"]
        taught = teacher(examples=data, model=base, sweep=swept, settings=TAUGHT).outputs["out"]
        distill(examples=data, responses=taught, model=base, settings=TRAINED)


def begin(folder: Path, model: Path) -> BaseProcess:
    """A process that runs the pipeline in a folder."""
    environment = os.environ | {"MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    process = SERVER.Process(target=calling, args=(partial(run, folder, model), folder / "shown", environment))
    process.start()
    return process


def run(folder: Path, model: Path) -> None:
    values = {"examples": str(folder / "examples.jsonl"), "model": str(model)}
    run_locally(training, values, folder / "steps", folder / "cache", folder / "log")


def last_checkpoint(folder: Path) -> int:
    """The newest step that is whole. `os.walk` passes over folders that are gone as they are looked into."""
    whole = (Path(at).name for at, _, files in os.walk(folder) if "files.json" in files)
    return max((int(name[5:]) for name in whole if name.startswith("step-")), default=0)


def has_checkpoint(folder: Path, step: int) -> bool:
    return last_checkpoint(folder) >= step


@pytest.mark.nightly  # a pipeline whole, killed and resumed, for minutes
def test_a_killed_pipeline_goes_on_where_it_was(tmp_path, model_folder, empty_store):
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    write_examples(tmp_path / "examples.jsonl", [kv_example(i) for i in range(24)])
    moments: list[Callable[[], object]] = [
        lambda: [*tmp_path.glob("steps/*/teacher/.posgap-out")],
        *(partial(has_checkpoint, tmp_path, step) for step in CHECKPOINTS),
        lambda: [*tmp_path.glob("steps/*/distill/executor_output.json")],
    ]
    kept = []
    for reached in moments:
        process, deadline = begin(tmp_path, model_folder), time.monotonic() + 300
        while not reached():
            assert process.is_alive() and time.monotonic() < deadline, shown(tmp_path)
            time.sleep(0.01)
        process.kill()
        process.join()
        kept.append(last_checkpoint(tmp_path))
    (last := begin(tmp_path, model_folder)).join()
    assert last.exitcode == 0, shown(tmp_path)

    client = MlflowClient(f"sqlite:///{tmp_path}/mlflow.db")
    (experiment,) = [each.experiment_id for each in client.search_experiments() if each.name == EXPERIMENT]
    runs = client.search_runs([experiment], order_by=["attributes.start_time ASC"])
    by_stage: dict[str, list[str]] = {}
    for each in runs:
        by_stage.setdefault(each.data.tags[STAGE_TAG], []).append(each.info.status)
    assert by_stage.pop(PIPELINE) == ["KILLED"] * len(moments) + ["FINISHED"], shown(tmp_path)
    assert {stage: ended.count("FINISHED") for stage, ended in by_stage.items()} == dict.fromkeys(by_stage, 1)
    assert set().union(*by_stage.values()) <= {"FINISHED", "KILLED"} and by_stage["sweep"] == ["FINISHED"]

    # Each goes on from the newest checkpoint, which a step may have added that died a moment after its run.
    gone_on = [int(step) for step in re.findall(r"resuming from the checkpoint of step (\d+)", shown(tmp_path))]
    assert len(gone_on) == len(CHECKPOINTS) and gone_on == sorted(set(gone_on))
    assert all(left <= step for left, step in zip(kept[1:-1], gone_on)), (kept, gone_on)
    assert not [*tmp_path.rglob(".posgap-*"), *tmp_path.glob("cache/*.under-way")]


def shown(folder: Path) -> str:
    return (folder / "shown").read_text()


def test_a_step_is_run_where_it_was_begun_and_never_twice_at_once(tmp_path):
    places = _Places(tmp_path / "cache")
    first, second = tmp_path / "steps" / "run-1" / "distill", tmp_path / "steps" / "run-2" / "distill"
    with places.place("key", first) as folder:
        assert folder == first
        with places.place("key", second) as at_once, places.place("other", second) as other:
            assert at_once == other == second
    with places.place("key", second) as folder, places.place("", first) as never_cached:
        assert folder == first == never_cached
    shutil.move(tmp_path / "cache", tmp_path / "moved" / "cache")
    with _Places(tmp_path / "moved" / "cache").place("key", second) as folder:
        assert folder == tmp_path / "moved" / "steps" / "run-1" / "distill"
