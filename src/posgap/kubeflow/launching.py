"""Runs a stage as a command: its options, and a process for each GPU of this machine."""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from posgap.foundation.errors import ProcessFailure
from posgap.foundation.locations import Location
from posgap.options.base import StageConfig

C = TypeVar("C", bound=StageConfig)


def as_options(parameters: Mapping[str, Any]) -> list[str]:
    """The command line options for these parameters, lists with commas; empty ones are left out."""
    options = []
    for name, value in parameters.items():
        text = ",".join(value) if isinstance(value, list) else value
        if text not in (None, ""):
            options.append(f"--{name.replace('_', '-')}={text}")
    return options


def on_all_gpus(stage: Callable[[C], Location], config: C, processes: int = 0) -> Location:
    """Runs a stage in this process or, on a machine with several GPUs, its verb under torchrun with one process each.

    `processes`, if given, replaces the number of GPUs. The processes print to the same output as this one. Raises
    `ProcessFailure` if one of them fails, which says itself whether that may pass.
    """
    import torch

    count = processes or torch.cuda.device_count()
    if count < 2 or "RANK" in os.environ:
        return stage(config)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={count}"]
    verb = [*stage.__name__.split("_"), *as_options(config.model_dump(mode="json"))]
    if subprocess.run([*launcher, "-m", "posgap", *verb]).returncode:
        raise ProcessFailure(f"{stage.__name__}: one of {count} processes failed; see its error above")
    return config.out
