"""The processes of one training run: Accelerate starts them, torch itself is asked about them."""

import os
from typing import TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator

T = TypeVar("T")


def device() -> torch.device:
    """Where this process computes; starts nothing, so it may be asked before `accelerator`."""
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def accelerator(mixed: bool = False) -> Accelerator:
    """The Accelerator of this launch: one process, several, or DeepSpeed (ACCELERATE_USE_DEEPSPEED).

    `mixed`: arithmetic in bfloat16, parameters in float32.
    """
    deepspeed = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() in ("1", "true", "yes")
    # Told to use CPUs, Accelerate joins processes over gloo, and leaves DeepSpeed out.
    return Accelerator(cpu=not torch.cuda.is_available() and not deepspeed, mixed_precision="bf16" if mixed else "no")


def rank_and_world() -> tuple[int, int]:
    """This process's number and how many there are. Under DeepSpeed on CPUs Accelerate says one."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def gather(value: T) -> list[T]:
    """Every process's value, in the order of their numbers, on each of them."""
    _, world = rank_and_world()
    everyone: list[T] = [value] * world
    if world > 1:
        dist.all_gather_object(everyone, value)
    return everyone
