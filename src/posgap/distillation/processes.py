"""The processes of one training run: Accelerate starts them, torch itself is asked about them."""

import atexit
import json
import os
import socket
from importlib.resources import files
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.state import AcceleratorState
from accelerate.utils import is_deepspeed_available

from posgap.errors import PosgapError
from posgap.files import read_object

T = TypeVar("T")


def device() -> torch.device:
    """Where this process computes; starts nothing, so it may be asked before `accelerator`."""
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


def accelerator(mixed: bool = False, deepspeed: str = "", max_grad_norm: float = 1.0) -> Accelerator:
    """The Accelerator of this launch: one process, several, or DeepSpeed.

    `mixed`: arithmetic in bfloat16. `deepspeed`: `zero2`, `zero3` or a DeepSpeed JSON file; empty
    is none, unless `accelerate launch` asks for it.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed looks for others, and says so
    # A process that ends while the group's threads run is aborted now and then, with all its work done.
    atexit.unregister(_leave)
    atexit.register(_leave)
    # Accelerate remembers its first settings; a process may train again with others.
    AcceleratorState._reset_state()
    precision = "bf16" if mixed else "no"
    if deepspeed:
        if not is_deepspeed_available():
            raise PosgapError("deepspeed: DeepSpeed is not installed; pip install 'posgap[train]'")
        _stand_alone()
        settings = deepspeed_settings(deepspeed) | {"gradient_clipping": max_grad_norm}
        return Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=settings), mixed_precision=precision)
    asked = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() in ("1", "true", "yes")
    # Told to use CPUs, Accelerate joins processes over gloo, and leaves DeepSpeed out.
    return Accelerator(cpu=not torch.cuda.is_available() and not asked, mixed_precision=precision)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def deepspeed_settings(name: str) -> dict:
    """The DeepSpeed configuration `zero2` or `zero3` of infra/deepspeed, or that of a JSON file."""
    ours = files("posgap.deepspeed") / f"{name}.json"
    if ours.is_file():
        return json.loads(ours.read_text())
    if not Path(name).is_file():
        raise PosgapError(f"deepspeed: {name!r} is neither zero2, zero3 nor a DeepSpeed JSON file")
    return read_object(Path(name))


def _stand_alone() -> None:
    """DeepSpeed wants a launcher's variables even where there is one process and no launcher."""
    if "RANK" not in os.environ:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def launched() -> tuple[int, int]:
    """This process's number and how many there are, by its launcher; before they have met."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def rank_and_world() -> tuple[int, int]:
    """This process's number and how many there are. Under DeepSpeed on CPUs Accelerate says one."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def first_of_its_node() -> bool:
    """Whether this process does what is to be done once on every machine."""
    return os.environ.get("LOCAL_RANK", "0") == "0"


def gather(value: T) -> list[T]:
    """Every process's value, in the order of their numbers, on each of them."""
    _, world = rank_and_world()
    everyone: list[T] = [value] * world
    if world > 1:
        dist.all_gather_object(everyone, value)
    return everyone


def meet() -> None:
    """Waits until every process is here."""
    if rank_and_world()[1] > 1:
        dist.barrier()
