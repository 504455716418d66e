"""Several processes that share the examples answer as one does, and end with it."""

import multiprocessing
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from examples import kv_example
from llamas import llama
from warm import SERVER

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_jsonl
from posgap.generation.backends import TRANSFORMERS, open_generator
from posgap.generation.generator import Sampling
from posgap.generation.parallel import ParallelGenerator
from posgap.measurement.config import SweepConfig
from posgap.measurement.unfinished import Unfinished
from posgap.models.loading import save_model
from posgap.stages.sweep import sweep
from posgap.tasks.placements import Placement
from posgap.tasks.reading import write_examples

pytestmark = pytest.mark.full
N, DOCS = 14, 4


@pytest.fixture(autouse=True)
def warm(monkeypatch):
    """Processes of this one begin where the libraries are imported; those of commands, as they do for users."""
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: SERVER)


@pytest.fixture
def options(tmp_path, tokenizer) -> dict:
    """Examples of which three fit in a batch, and a model with an answer of its own to each prompt."""
    save_model(llama(), tokenizer, tmp_path / "model")
    write_examples(tmp_path / "e.jsonl", [kv_example(i) for i in range(N)])
    shared = {"examples": tmp_path / "e.jsonl", "model": str(tmp_path / "model"), "n_docs": DOCS}
    return {**shared, "max_new_tokens": 3, "batch_tokens": 3 * 30, "max_unanswered": 100}


def predictions(folder: Path) -> list[dict]:
    return [row for _, row in read_jsonl(folder / "predictions.jsonl")]


def test_two_processes_give_the_predictions_of_one(options, tmp_path, monkeypatch):
    one = sweep(SweepConfig(out=tmp_path / "by-1", **options))
    monkeypatch.setenv("POSGAP_PROCESSES", "2")
    two = sweep(SweepConfig(out=tmp_path / "by-2", **options))
    assert predictions(one) == predictions(two)
    assert len({row["response"] for row in predictions(one)}) > N
    assert not multiprocessing.active_children()


def test_a_killed_process_is_reported_and_the_sweep_goes_on(options, tmp_path, monkeypatch):
    config = SweepConfig(out=tmp_path / "out", **options)
    monkeypatch.setenv("POSGAP_PROCESSES", "2")
    add, kept = Unfinished.add, []

    def keep(self, example, number, completion):
        add(self, example, number, completion)
        kept.append((example, number))
        if len(kept) == 4 and (running := multiprocessing.active_children()):
            running[0].kill()

    monkeypatch.setattr(Unfinished, "add", keep)
    with pytest.raises(PosgapError, match="a generating process was killed, perhaps for memory"):
        sweep(config)
    assert 4 <= len(kept) < N * DOCS and not multiprocessing.active_children()
    before, kept[:] = list(kept), []
    monkeypatch.setenv("POSGAP_PROCESSES", "1")
    swept = sweep(config)
    assert sorted(before + kept) == [(example, number) for example in range(N) for number in range(DOCS)]
    assert predictions(swept) == predictions(sweep(SweepConfig(out=tmp_path / "whole", **options)))


def test_what_a_process_cannot_do_it_says(options, tmp_path):
    builder = TRANSFORMERS.builder(SweepConfig(out=tmp_path / "out", **options))
    generator = ParallelGenerator(str(tmp_path / "nothing"), "float32", builder.tokenizer, 100, 2)
    with pytest.raises(PosgapError, match="nothing: no such folder"):
        list(generator.generate([[builder.prompt(kv_example(), Placement((1,), DOCS))]], Sampling(1)))


def test_a_launcher_s_processes_are_refused(options, tmp_path, monkeypatch):
    config = SweepConfig(out=tmp_path / "out", **options)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(PosgapError, match="run this without a launcher, and set POSGAP_PROCESSES"):
        open_generator(config, TRANSFORMERS.builder(config))


def test_the_processes_end_with_a_killed_parent(options, tmp_path):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    verb = ["-c", "from posgap.cli.main import main; main()", "sweep", f"--out={tmp_path / 'out'}"]
    quiet = {**os.environ, "POSGAP_PROCESSES": "2", "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}
    parent = subprocess.Popen([sys.executable, *verb, *words], env=quiet, stderr=subprocess.DEVNULL)
    children, deadline = [], time.monotonic() + 300
    while len(children) < 2 and time.monotonic() < deadline:
        assert parent.poll() is None
        pids = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        with suppress(FileNotFoundError, ProcessLookupError):  # of what else it starts, something may have ended since
            children = [pid for pid in pids if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    while any(Path(f"/proc/{pid}").exists() for pid in children) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert len(children) == 2 and not [pid for pid in children if Path(f"/proc/{pid}").exists()]
