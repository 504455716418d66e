"""Trainings as processes of their own."""

import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from examples import kv_example
from safetensors.torch import load_file
from torch.multiprocessing import start_processes

from posgap.data.reading import write_examples
from posgap.foundation.files import read_jsonl, write_jsonl
from posgap.kubeflow.launching import as_options
from posgap.options.distill import DistillConfig
from posgap.tasks.content import content_key


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
                "content": content_key(e),
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
        batch_size=16,
        learning_rate=1e-3,
        dtype="float32",
    )


PYTHON = Path(sys.executable)


TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "--no-python"]


def command(config: DistillConfig, launcher: list) -> list[str]:
    parameters = config.model_dump(mode="json", exclude={"force", "work"})
    return [*map(str, launcher), "posgap", "distill", *as_options(parameters)]


def environment() -> dict[str, str]:
    # ninja, for DeepSpeed.
    return os.environ | {
        "PATH": f"{os.environ['PATH']}:{PYTHON.parent}", "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu"
    }  # fmt: skip


def history(folder: Path) -> list[dict]:
    return [row for _, row in read_jsonl(folder / "history.jsonl")]


def parameters(folder: Path) -> torch.Tensor:
    tensors = load_file(folder / "model.safetensors")
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


# Of the first process; the other kinds of tensors are in files like them.
PARAMETERS = "shard-00001-model-00001-of-00004.safetensors"


def two_processes(folder, body, apart=False, slow=None, world=2) -> None:
    """Runs `body(rank)` in two processes (or `world`) that can meet; `apart`: each on a machine of its own. The disk is
    `slow` for the process of that rank."""

    def run(rank):
        os.environ |= {"LOCAL_RANK": "0" if apart else str(rank), "AWS_SDK_UA_APP_ID": str(rank)}  # a client of its own
        if apart:
            os.environ["POSGAP_CACHE"] = str(folder / f"machine-{rank}")
        meeting = {"init_method": f"file://{folder}/meeting", "rank": rank, "world_size": world}
        dist.init_process_group("gloo", timeout=timedelta(seconds=20), **meeting)
        if rank == slow:
            slow_down()
        body(rank)
        dist.destroy_process_group()

    (folder / "meeting").unlink(missing_ok=True)
    start_processes(run, nprocs=world, start_method="fork")


def slow_down() -> None:
    """From now on each change that this process makes to the disk takes a while."""

    def slowly(change):
        def wrapper(*arguments, **named):
            time.sleep(0.04)
            return change(*arguments, **named)

        return wrapper

    for name in ("mkdir", "open", "rename", "replace", "rmdir", "unlink"):
        setattr(os, name, slowly(getattr(os, name)))
    torch.save = slowly(torch.save)
