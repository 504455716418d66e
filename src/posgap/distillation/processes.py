"""The processes of a training run: set up by Accelerate, queried through torch."""

import atexit
import json
import logging
import os
import socket
import time
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

from posgap.distillation.optimizers import MAX_GRAD_NORM
from posgap.foundation.errors import BadOption, PosgapError
from posgap.foundation.files import read_object
from posgap.foundation.interruption import Termination
from posgap.foundation.launch import LOST_PEER, gather_from_all, is_main_process
from posgap.models.memory import give_back_freed

T = TypeVar("T")
log = logging.getLogger(__name__)
PEER_SECONDS = 10.0  # that a process which lost its peer lets others fail first
# Launcher settings that posgap does not train with, by the end of their variable.
_REFUSED = {"FSDP": "FSDP", "MEGATRON_LM": "Megatron-LM", "PARALLELISM_CONFIG": "parallelism"}
_DIVIDED = "and each gradient would be divided by it: posgap parts a step by --micro-batch-tokens"


def accelerator(mixed: bool = False, deepspeed: str = "") -> Accelerator:
    """Returns the Accelerator of this launch: for one process, for several, or for DeepSpeed.

    `mixed` means arithmetic in bfloat16. `deepspeed` is `zero2`, `zero3` or a DeepSpeed JSON file; if it is empty,
    DeepSpeed is used only if `accelerate launch` asks for it. Raises `PosgapError`, on every process, if DeepSpeed is
    needed but not installed, or if the launcher or the file sets something that posgap would not follow.
    """
    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed probes for accelerators and logs about it
    by_launcher = _is_asked_for("DEEPSPEED")
    if by_launcher:
        deepspeed = deepspeed or os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "")
    settings = gather_from_all(lambda: _settings(deepspeed, mixed))[0]
    # gloo's threads can abort a process that exits while they run, so the group is destroyed first.
    atexit.unregister(_destroy_group)
    atexit.register(_destroy_group)
    # Accelerate keeps the settings of the first run in a process, but a later run may need others.
    AcceleratorState._reset_state()
    precision = "bf16" if mixed else "no"
    if settings:
        if is_main_process():
            tell_locked_builds()
        _stand_alone()
        # DeepSpeed calls functions that torch has renamed, and torch would say so for every gradient.
        warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
        return Accelerator(deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=settings), mixed_precision=precision)
    # With `cpu`, Accelerate connects processes through gloo, but ignores DeepSpeed.
    cpu = not torch.cuda.is_available() and not by_launcher
    return Accelerator(cpu=cpu, mixed_precision=precision)


def _is_asked_for(what: str) -> bool:
    """Returns whether `accelerate launch` requests a way to train, by its variables."""
    return os.environ.get(f"ACCELERATE_USE_{what}", "false").lower() in ("1", "true", "yes")


def _settings(deepspeed: str, mixed: bool) -> dict:
    """Returns DeepSpeed's settings, empty without it; raises `PosgapError` for a launch whose settings would not take
    effect."""
    for variable, name in _REFUSED.items():
        if _is_asked_for(variable):
            raise PosgapError(
                f"ACCELERATE_USE_{variable}: the launcher asks for {name}, which posgap does not train under; "
                "launch without it; --deepspeed zero3 spreads parameters over processes"
            )
    steps = os.environ.get("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "1")
    if steps not in ("1", "auto"):
        raise PosgapError(f"ACCELERATE_GRADIENT_ACCUMULATION_STEPS: is {steps}, {_DIVIDED}; launch with 1")
    if not deepspeed:
        return {}
    if not is_deepspeed_available():
        raise PosgapError("deepspeed: DeepSpeed is not installed; pip install 'posgap[train]'")
    return deepspeed_settings(deepspeed, mixed) | {"gradient_clipping": MAX_GRAD_NORM}


def tell_locked_builds() -> None:
    """Warns of the locks of PyTorch extensions, which DeepSpeed builds when it first needs them.

    PyTorch waits for such a lock without a word, and for ever if the process that held it was killed.
    """
    from torch.utils.cpp_extension import get_default_build_root  # setuptools

    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or get_default_build_root())
    for lock in sorted(root.rglob("lock")):
        log.warning("%s: training waits for this lock if it needs the extension; delete it if nobody builds that", lock)


@contextmanager
def ending_after_its_peer(termination: Termination) -> Iterator[None]:
    """Within the block, a process that loses its peer waits for SIGTERM, at most `PEER_SECONDS`, before it ends.

    As soon as one pod of a job has failed, Kubernetes deletes the others. The process that ended first must be in the
    one that fails: only its launcher knows why it ended.
    """
    try:
        yield
    except RuntimeError as error:
        if LOST_PEER.search(str(error)):
            until = time.monotonic() + PEER_SECONDS
            while not termination.requested and time.monotonic() < until:
                time.sleep(0.1)
        raise


def _destroy_group() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def deepspeed_settings(name: str, mixed: bool) -> dict:
    """Returns the DeepSpeed configuration for this training: `zero2` or `zero3` of infra/deepspeed, or a JSON file.

    Settings that a file leaves open ("auto") are filled, or left to DeepSpeed's default. Sizes of batches, which are
    posgap's matter, are not taken over. Raises `PosgapError` if the file contradicts posgap's options.
    """
    ours = files("posgap.deepspeed") / f"{name}.json"
    if not ours.is_file() and not Path(name).is_file():
        raise BadOption(f"deepspeed: {name!r} is neither zero2, zero3 nor a DeepSpeed JSON file")
    settings = json.loads(ours.read_text()) if ours.is_file() else read_object(Path(name))
    for section in ("zero_optimization", "bf16", "fp16", "optimizer", "scheduler"):
        if not isinstance(settings.get(section, {}), dict):
            raise PosgapError(f"deepspeed: {name}: {section} must be an object")
    if (steps := settings.get("gradient_accumulation_steps", 1)) not in (1, "auto"):
        raise PosgapError(f'deepspeed: {name}: gradient_accumulation_steps is {steps}, {_DIVIDED}; write 1 or "auto"')
    for precision, ours_is in (("bf16", mixed), ("fp16", False)):
        if settings.get(precision, {}).get("enabled", "auto") not in (ours_is, "auto"):
            said = "bfloat16" if mixed else "float32"
            raise PosgapError(f'deepspeed: {name}: {precision} is not as --dtype ({said}) has it; write "auto" there')
    for section in ("optimizer", "scheduler"):
        if _without_auto(settings.pop(section, {}).get("params", {})):
            raise PosgapError(
                f"deepspeed: {name}: has {section} settings; leave them out and give --learning-rate and --warmup-steps"
            )
    for batch in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "fp16"):
        settings.pop(batch, None)
    filled = {"bf16": settings.get("bf16", {}) | {"enabled": mixed}, "zero_allow_untested_optimizer": True}
    return _without_auto(settings | filled) | {"gradient_accumulation_steps": 1, "train_micro_batch_size_per_gpu": 1}


def _without_auto(settings: dict) -> dict:
    """Returns the settings that are not "auto", at any depth."""
    return {
        name: _without_auto(value) if isinstance(value, dict) else value
        for name, value in settings.items()
        if value != "auto"
    }


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


def gather(value: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """The values of all processes, in the order of their ranks, on every process.

    They meet in `group`, if it is given: threads that meet at the same time need groups of their own.
    """
    _, world = rank_and_world()
    everyone: list[T] = [value] * world
    if world > 1:
        dist.all_gather_object(everyone, value, group)
    return everyone


@contextmanager
def gather_whole(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Within the block parameters that ZeRO-3 has in pieces are whole on every process."""
    in_pieces = [parameter for parameter in parameters if hasattr(parameter, "ds_id")]
    if not in_pieces:
        yield
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(in_pieces):
        yield


def register_external(module: torch.nn.Module, owner: torch.nn.Module) -> None:
    """Has ZeRO-3 gather the parameters of `owner` for the forward and backward passes of `module`, which uses them."""
    for parameter in owner.parameters():
        if hasattr(parameter, "ds_id"):
            import deepspeed

            deepspeed.zero.register_external_parameter(module, parameter)


def arithmetic(accelerator: Accelerator) -> str:
    """Returns how numbers are computed, as far as results depend on it: DeepSpeed casts parameters to bfloat16, while
    autocast casts what each operation reads.
    """
    if accelerator.mixed_precision != "bf16":
        return "tf32" if torch.get_float32_matmul_precision() == "high" else "float32"
    return "bfloat16 parameters" if by_deepspeed(accelerator) else "bfloat16 by autocast, but for the head"


def is_by_autocast(accelerator: Accelerator) -> bool:
    """Whether arithmetic is bfloat16 and parameters are not, so that without autocast they are read in float32."""
    return accelerator.mixed_precision == "bf16" and not by_deepspeed(accelerator)


def meet(group: dist.ProcessGroup | None = None) -> None:
    """Waits until every process has called this."""
    if rank_and_world()[1] > 1:
        dist.barrier(group)


def trained_parameters(model: torch.nn.Module, accelerator: Accelerator) -> dict[str, torch.Tensor]:
    """Returns the trained parameters of `model`, by name, in the optimizer's precision. Every process calls this.

    Parameters that DeepSpeed holds (in pieces, and in float32 if the model's own are in 16 bits) are gathered on the
    first process alone; else they are the model's own.
    """
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not by_deepspeed(accelerator):
        return {name: parameter.detach() for name, parameter in parameters.items()}
    from deepspeed.utils import safe_get_full_fp32_param

    whole = {}
    for name, parameter in parameters.items():
        kept = safe_get_full_fp32_param(parameter)  # None without ZeRO
        if rank_and_world()[0] == 0:
            whole[name] = (parameter.detach() if kept is None else kept).cpu()
    return whole


def by_deepspeed(accelerator: Accelerator) -> bool:
    """Returns whether DeepSpeed trains: processes then share its state, and wait for each other in every forward and
    backward pass."""
    return accelerator.state.deepspeed_plugin is not None


def forget_optimizer(accelerator: Accelerator) -> None:
    """Frees the state that torch's optimizer keeps of each parameter, and other released memory, when training has
    ended. DeepSpeed's stays, since its engine is needed to the end.
    """
    if not by_deepspeed(accelerator):
        for optimizer in accelerator._optimizers:
            optimizer.state.clear()
    give_back_freed()
