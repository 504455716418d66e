"""Training over several processes is the same training."""

import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
import training_processes
from examples import kv_example
from training_processes import PYTHON, TORCHRUN, command, environment, history, parameters
from warm import posgap_on_path  # noqa: F401  a fixture

from posgap.data.reading import write_examples
from posgap.foundation.files import work_folder
from posgap.kubeflow.launching import on_all_gpus
from posgap.mitigations.in_force import load_model
from posgap.models.loading import load_tokenizer, save_model
from posgap.options.distill import DistillConfig
from posgap.verbs.distill import distill

pytestmark = pytest.mark.full
config = training_processes.config  # a fixture, in place of the folder's


DEEPSPEED = [PYTHON.with_name("deepspeed"), "--num_gpus=2", "--no_python", "--no_local_rank"]
ACCELERATE = [
    # --cpu would start a single process
    PYTHON.with_name("accelerate"), "launch", "--multi_gpu", "--num_processes=2", "--num_machines=1",
    "--dynamo_backend=no", "--mixed_precision=no", "--no_python",
]  # fmt: skip
ONE = [PYTHON, "-m"]


def launch(config: DistillConfig, launcher: list | None) -> None:
    if launcher is None:  # as a pipeline's step does on a machine with two GPUs
        with pytest.MonkeyPatch.context() as patched:
            for name, value in environment().items():
                patched.setenv(name, value)
            assert on_all_gpus(distill, config, processes=2) == config.out
        return
    done = subprocess.run(
        command(config, launcher), env=environment(), capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def require_the_same_training(one: Path, two: Path, base: Path) -> None:
    alone, shared = history(one), history(two)
    assert len(alone) == len(shared)
    for mine, theirs in zip(alone, shared):
        assert mine.keys() == theirs.keys()
        for figure in mine:
            assert theirs[figure] == pytest.approx(mine[figure], rel=1e-3, abs=1e-7), figure
    # Adam divides tiny gradients by their own size, so single parameters may differ; the way they went may not.
    start, first, second = map(parameters, (base, one, two))
    assert (second - first).norm() < 1e-2 * (first - start).norm()


LAUNCHES = {
    "data parallel": (ACCELERATE, {}),
    "zero2": (DEEPSPEED, {"deepspeed": "zero2", "micro_batch_tokens": 150}),
    "zero3": (None, {"deepspeed": "zero3", "micro_batch_tokens": 150, "gradient_checkpointing": True}),
}


WATCH = """
import os, sys

def watch(event, arguments):
    if event == "open" and str(arguments[0]) == os.environ["WATCHED"]:
        with open(os.environ["OPENED"], "a") as log:
            log.write(os.environ["RANK"])

sys.addaudithook(watch)
"""


def watch_openings(file: Path, folder: Path, monkeypatch) -> Path:
    """Has all Python processes that are started write their rank to a file, which this returns, when they open `file`.

    Reading it to be hashed opens it so; safetensors, which reads the weights themselves, does not open it in Python.
    """
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WATCH)
    for name, value in {"PYTHONPATH": folder, "WATCHED": file, "OPENED": folder / "ranks"}.items():
        monkeypatch.setenv(name, str(value))
    return folder / "ranks"


@pytest.mark.parametrize(
    "how", ["data parallel", *(pytest.param(how, marks=pytest.mark.nightly) for how in ("zero2", "zero3"))]
)
def test_two_processes_train_like_one(how, config, tmp_path, monkeypatch):
    """Data parallel, and with optimizer states (ZeRO-2) and parameters (ZeRO-3) in pieces, in micro-batches, measured
    by held-out examples and plain text; the model's weights are hashed once."""
    launcher, more = LAUNCHES[how]
    write_examples(tmp_path / "held.jsonl", [kv_example(100 + i) for i in range(3)])
    (tmp_path / "text.jsonl").write_text('{"text": "k1 k2 v 3 ; 4 5 6"}\n{"text": "question k1 k2 = 7 8 ;"}\n')
    config = config.model_copy(update={"eval": tmp_path / "held.jsonl", "eval_text": tmp_path / "text.jsonl"})
    distill(config)
    opened = watch_openings(Path(config.model) / "model.safetensors", tmp_path / "watch", monkeypatch)
    launch(config.model_copy(update={"out": tmp_path / "two", **more}), launcher)
    assert opened.read_text() == "0"
    require_the_same_training(tmp_path / "one", tmp_path / "two", Path(config.model))
    assert not list(tmp_path.glob(".posgap-*"))


def interrupt(config: DistillConfig, launcher: list, sent: signal.Signals, step: int) -> int:
    """Starts the command, sends it a signal once it has a checkpoint from `step` on; returns how it ended."""
    work = work_folder(config.out)
    process = subprocess.Popen(
        command(config, launcher), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 300
    while not any(int(path.name[5:]) >= step for path in work.glob("checkpoints-*/step-*")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(sent)
    code = process.wait(timeout=60)
    assert not config.out.exists()
    assert list(work.glob("checkpoints-*/step-*"))
    return code


@pytest.mark.nightly
def test_a_killed_run_goes_on_and_ends_as_if_it_had_not_been(config, tmp_path):
    config = config.model_copy(update={"epochs": 30, "save_steps": 4})
    distill(config)
    broken = config.model_copy(update={"out": tmp_path / "broken"})
    assert interrupt(broken, ONE, signal.SIGKILL, step=8) == -signal.SIGKILL
    assert interrupt(broken, ONE, signal.SIGTERM, step=24) == 143
    launch(broken, ONE)
    assert history(tmp_path / "broken") == history(tmp_path / "one")
    assert torch.equal(parameters(tmp_path / "broken"), parameters(tmp_path / "one"))
    assert not list(tmp_path.glob(".posgap-*"))


@pytest.mark.nightly
@pytest.mark.parametrize("then", [{}, {"deepspeed": ""}])
def test_two_drained_processes_go_on_too_and_one_alone_from_their_pieces(then, config, tmp_path):
    config = config.model_copy(update={"epochs": 20, "save_steps": 5, "lora_rank": 4})
    distill(config)
    broken = config.model_copy(update={"out": tmp_path / "broken", "deepspeed": "zero3"})
    assert interrupt(broken, TORCHRUN, signal.SIGTERM, step=5) != 0
    launch(broken.model_copy(update=then), ONE if then else TORCHRUN)
    require_the_same_training(tmp_path / "one", tmp_path / "broken", Path(config.model))


@pytest.mark.nightly  # DeepSpeed first builds an extension
@pytest.mark.parametrize("how", ["zero2", "zero3"])
def test_under_deepspeed_the_file_has_what_the_optimizer_has_and_not_its_16_bits(how, config, tmp_path):
    """In bfloat16 arithmetic the model's weights move by less than one of 16 bits can; the optimizer has them in 32."""
    base = tmp_path / "bfloat16"
    save_model(load_model(config.model, "bfloat16"), load_tokenizer(config.model), base)
    small = {"learning_rate": 3e-6, "dtype": "bfloat16", "deepspeed": how, "export_dtype": "float32"}
    launch(config.model_copy(update={"model": str(base), "out": tmp_path / how, **small}), None)
    moved = (parameters(tmp_path / how) - parameters(base)).abs()
    steps = len(history(tmp_path / how))
    assert 0 < moved.max() <= 1.01 * 3e-6 * steps and (moved > 0).float().mean() > 0.5
