"""`pipeline run --smoke` stopped in the middle of its steps, all of it or one step alone: the same command goes on.

The command is a process of its own with a session of its own, as in a terminal: its steps are in its process group.
"""

import json
import os
import shutil
import signal
import sqlite3
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from examples import kv_example
from mlflow import MlflowClient
from mlflow_server import holders

from posgap.data.reading import write_examples
from posgap.foundation.files import digest_path, read_json
from posgap.options.verify import VerifyConfig
from posgap.pipelines.smoke import SMALLEST
from posgap.tracking import champions, leases, registry
from posgap.verbs.verify import verify

NAME = "tiny"
SETTINGS = SMALLEST["settings"] | {
    **{"max_new_tokens": 1, "max_unanswered": 100, "max_unclean": 100, "advantageous": "1", "keep_incorrect": True},
    **{"k": 1, "epochs": 2, "batch_size": 4, "save_steps": 1, "learning_rate": 1e-4},
}
PARAMETERS = {"n_docs": 4, "max_gap": 100, "registered_name": NAME, "settings": json.dumps(SETTINGS)}
# When a step is stopped: its folder's name, and what must be there by then.
SWEEP, TEACHER, SECOND_SWEEP, GATE = ("sweep", ""), ("teacher", ""), ("sweep-3", ""), ("gate-2", "")
DISTILL = ("distill", "a checkpoint")
REGISTERED, CROWNED = ("promote-2", "model_versions"), ("promote-2", "registered_model_aliases")
KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
STOPS = {
    "all of it": [(SWEEP, KILL), (TEACHER, INT), (DISTILL, TERM), (DISTILL, KILL), (GATE, KILL), (REGISTERED, TERM),
                  (REGISTERED, KILL), (CROWNED, KILL)],
    "the step alone": [(TEACHER, KILL), (DISTILL, TERM), (SECOND_SWEEP, KILL), (GATE, TERM), (REGISTERED, KILL),
                       (CROWNED, KILL)],
}  # fmt: skip
CODES = {TERM: 143, INT: 130, KILL: -9}
MAX_SECONDS = 600  # of one command


@dataclass
class Pipeline:
    """The command, and where it runs."""

    folder: Path
    model: Path

    def begin(self) -> psutil.Popen:
        places = {f"data_{name}": self.folder / f"{name}.jsonl" for name in ("train", "eval")}
        values = PARAMETERS | places | {"base_model": self.model}
        given = [word for name, value in values.items() for word in ("--param", f"{name}={value}")]
        command = [sys.executable, "-m", "posgap", "pipeline", "run", "--smoke", "--out", self.folder / "run", *given]
        environment = os.environ | {"MLFLOW_TRACKING_URI": self.store, leases.VARIABLE: "8"}
        with open(self.folder / "shown", "ab") as shown:
            return psutil.Popen(
                command, cwd=self.folder, env=environment, stdout=shown, stderr=shown, start_new_session=True
            )

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder}/mlflow.db"

    def await_step(self, process: psutil.Popen, name: str, what: str) -> psutil.Process:
        """Returns the process that has this step's output open, as soon as that is there."""
        deadline = time.monotonic() + MAX_SECONDS
        while True:
            for child in process.children(recursive=True) if self.has(what) else ():
                with suppress(psutil.Error):  # it has just ended
                    if any(f"/{name}/." in file.path for file in child.open_files()):
                        return child
            assert process.poll() is None and time.monotonic() < deadline, self.shown()
            time.sleep(0.01)

    def has(self, what: str) -> bool:
        """Whether there is a row in this table of the registry, or a whole checkpoint."""
        if what == "a checkpoint":
            return any("files.json" in files for _, _, files in os.walk(self.folder / "run" / "steps"))
        with closing(sqlite3.connect(f"file:{self.folder}/mlflow.db?mode=ro", uri=True)) as database:
            return not what or database.execute(f"select 1 from {what}").fetchone() is not None

    def shown(self) -> str:
        return (self.folder / "shown").read_text()[-3000:]


@pytest.fixture
def pipeline(tmp_path, model_folder, empty_store) -> Pipeline:
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    for name, first in (("train", 0), ("eval", 100)):
        write_examples(tmp_path / f"{name}.jsonl", [kv_example(first + i, 6) for i in range(24)])
    return Pipeline(tmp_path, model_folder)


def assert_one_champion(pipeline: Pipeline, monkeypatch) -> None:
    """One version is the champion, by one change; nothing is left open, and each output is as its manifest says."""
    client = MlflowClient(pipeline.store)
    model = client.get_registered_model(NAME)
    (version,) = client.search_model_versions(f"name='{NAME}'")
    assert [(each["before"], each["version"]) for each in champions.changes(model)] == [("", "1")]
    assert champions.alias_version(model, champions.CHAMPION) == str(version.version) == "1"
    assert champions.UNDER_WAY not in model.tags and not holders(model)
    runs = client.search_runs([each.experiment_id for each in client.search_experiments()], max_results=1000)
    assert {run.info.status for run in runs} <= {"FINISHED", "KILLED", "FAILED"}

    # What took its place is whole, in the runs that were stopped too; what was begun is gone or beside it.
    outs = [out for out in pipeline.folder.glob("run/steps/**/out") if (out / "manifest.json").is_file()]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", pipeline.store)
    verify(VerifyConfig(folders=outs))
    (trained,) = pipeline.folder.glob("run/steps/**/distill/out")
    assert version.tags[registry.DIGEST] == digest_path(trained)
    (promoted,) = pipeline.folder.glob("run/steps/**/promote-2/out/promotion.json")
    assert read_json(promoted)["champion"] == "1"


@pytest.mark.nightly  # a pipeline that begins nine times
@pytest.mark.parametrize("stopped", STOPS)
def test_a_pipeline_stopped_within_its_steps_ends_with_one_champion(stopped, pipeline, monkeypatch, record_property):
    for (name, what), number in STOPS[stopped]:
        process = pipeline.begin()
        step = pipeline.await_step(process, name, what)
        if stopped == "all of it":
            os.killpg(process.pid, number)
        else:
            os.kill(step.pid, number)
        code = process.wait(MAX_SECONDS)
        assert code == (CODES[number] if stopped == "all of it" else 2), (name, number, pipeline.shown())
        assert "Traceback" not in pipeline.shown()
        assert (stopped == "the step alone" and number == KILL) == ("SIGKILL" in pipeline.shown().splitlines()[-1])
        psutil.wait_procs([step], 10)
        assert not step.is_running()
    assert pipeline.begin().wait(MAX_SECONDS) == 0, pipeline.shown()
    record_property("kills", len(STOPS[stopped]))
    assert_one_champion(pipeline, monkeypatch)
