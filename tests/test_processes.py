"""Training over several processes is the same training."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import ROOT, kv_example
from safetensors.torch import load_file

from posgap.config import DistillConfig
from posgap.files import read_jsonl, write_jsonl
from posgap.stages.distill import distill
from posgap.tasks.examples import write_examples

pytestmark = pytest.mark.slow


@pytest.fixture
def config(tmp_path, model_folder):
    """Seven examples, so that two processes have unequal shares."""
    examples = [kv_example(i) for i in range(7)]
    write_examples(tmp_path / "e.jsonl", examples)
    write_jsonl(
        tmp_path / "responses.jsonl",
        (
            {
                "id": e.id,
                "placement": [1],
                "n_docs": 5,
                "response": e.value,
                "token_ids": [25 + int(e.value, 16)] * (1 + i % 2) + [2],
                "correct": True,
            }
            for i, e in enumerate(examples)
        ),
    )
    return DistillConfig(
        examples=tmp_path / "e.jsonl",
        responses=tmp_path / "responses.jsonl",
        model=str(model_folder),
        out=tmp_path / "one",
        k=3,
        epochs=2,
        batch_size=4,
        learning_rate=1e-3,
        dtype="float32",
    )


LAUNCHES = {
    "ddp": {},
    "zero2": {"ACCELERATE_USE_DEEPSPEED": "true", "DS_ACCELERATOR": "cpu"},
    "zero3": {"ACCELERATE_USE_DEEPSPEED": "true", "DS_ACCELERATOR": "cpu"},
}


@pytest.mark.parametrize("launch", LAUNCHES)
def test_two_processes_train_like_one(launch, config, tmp_path):
    """Data parallel, and with optimizer states (ZeRO-2) and parameters (ZeRO-3) in pieces."""
    distill(config)
    two, given = tmp_path / "two", config.model_dump(mode="json", exclude={"out", "force"})
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    environment = os.environ | LAUNCHES[launch] | {"OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # posgap, and ninja for DeepSpeed
    if launch != "ddp":
        environment["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = str(ROOT / "infra" / "deepspeed" / f"{launch}.json")
    options = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    done = subprocess.run(
        [*launcher, "--no-python", "posgap", "distill", *options, f"--out={two}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    alone = [row for _, row in read_jsonl(tmp_path / "one" / "history.jsonl")]
    shared = [row for _, row in read_jsonl(two / "history.jsonl")]
    assert len(alone) == len(shared) == 4
    for mine, theirs in zip(alone, shared):
        for figure in ("loss", "activation_kl", "anchoring_kl", "grad_norm"):
            assert theirs[figure] == pytest.approx(mine[figure], rel=1e-3, abs=1e-7), figure
    # Adam divides tiny gradients by their own size, so single parameters may differ; the way they went may not.
    start, first, second = (
        torch.cat([tensor.flatten() for _, tensor in sorted(load_file(folder / "model.safetensors").items())])
        for folder in (Path(config.model), tmp_path / "one", two)
    )
    assert (second - first).norm() < 1e-2 * (first - start).norm()
    assert not list(tmp_path.glob(".partial*"))
