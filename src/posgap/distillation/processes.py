"""The processes of a training run: set up by Accelerate, queried through torch."""

import atexit
import json
import os
import socket
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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


def accelerator(mixed: bool = False, deepspeed: str = "", max_grad_norm: float = 1.0) -> Accelerator:
    """The Accelerator of this launch: for one process, for several, or for DeepSpeed.

    `mixed` means arithmetic in bfloat16. `deepspeed` is `zero2`, `zero3` or a DeepSpeed JSON file; if empty, DeepSpeed
    is used only if `accelerate launch` asks for it. Raises `PosgapError` if DeepSpeed is needed but not installed.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise DeepSpeed probes for accelerators and logs about it
    # gloo's threads can abort a process that exits while they run, so the group is destroyed first.
    atexit.unregister(_leave)
    atexit.register(_leave)
    # Accelerate keeps the settings of the first run in a process, but a later run may need others.
    AcceleratorState._reset_state()
    precision = "bf16" if mixed else "no"
    if deepspeed:
        if not is_deepspeed_available():
            raise PosgapError("deepspeed: DeepSpeed is not installed; pip install 'posgap[train]'")
        _stand_alone()
        # DeepSpeed calls functions that torch has renamed, and torch would say so for every gradient.
        warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
        settings = deepspeed_settings(deepspeed) | {"gradient_clipping": max_grad_norm}
        return Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=settings), mixed_precision=precision)
    by_launcher = os.environ.get("ACCELERATE_USE_DEEPSPEED", "false").lower() in ("1", "true", "yes")
    # With `cpu`, Accelerate connects processes through gloo, but ignores DeepSpeed.
    return Accelerator(cpu=not torch.cuda.is_available() and not by_launcher, mixed_precision=precision)


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
    """Sets the variables of a launcher, which DeepSpeed needs even for a single process without one."""
    if "RANK" not in os.environ:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}


def rank_and_world() -> tuple[int, int]:
    """This process's rank and the number of processes, from torch: with DeepSpeed on CPUs Accelerate says 1."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


def gather(value: T) -> list[T]:
    """The values of all processes, in the order of their ranks, on every process."""
    _, world = rank_and_world()
    everyone: list[T] = [value] * world
    if world > 1:
        dist.all_gather_object(everyone, value)
    return everyone


@contextmanager
def whole(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Within the block parameters that ZeRO-3 has in pieces are whole on every process."""
    in_pieces = [parameter for parameter in parameters if hasattr(parameter, "ds_id")]
    if not in_pieces:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(in_pieces):
        yield


def arithmetic(accelerator: Accelerator) -> str:
    """How numbers are computed, as far as results depend on it: DeepSpeed casts parameters to bfloat16 where autocast
    casts what each operation reads."""
    if accelerator.mixed_precision != "bf16":
        return "float32"
    return "bfloat16 parameters" if accelerator.state.deepspeed_plugin else "bfloat16 by autocast"


def meet() -> None:
    """Waits until every process has called this."""
    if rank_and_world()[1] > 1:
        dist.barrier()


def trained_parameters(model: torch.nn.Module, accelerator: Accelerator) -> dict[str, torch.Tensor]:
    """The parameters of `model` that are trained, by name, in the optimizer's precision. Every process calls this.

    Those that DeepSpeed has, in pieces and in float32 where the model's own are in 16 bits, are gathered, for the first
    process alone; without DeepSpeed they are the model's own.
    """
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if accelerator.state.deepspeed_plugin is None:
        return {name: parameter.detach() for name, parameter in parameters.items()}
    from deepspeed.utils import safe_get_full_fp32_param

    whole = {}
    for name, parameter in parameters.items():
        kept = safe_get_full_fp32_param(parameter)  # None without ZeRO
        if rank_and_world()[0] == 0:
            whole[name] = (parameter.detach() if kept is None else kept).cpu()
    return whole
