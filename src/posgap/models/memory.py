"""Computes the memory and disk that a model takes, and those that this machine has."""

import ctypes
import math
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from posgap.foundation.errors import NoRoom

if TYPE_CHECKING:
    import torch

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_FILLED = 0.6  # of a GPU's free memory; generating lays some of it out twice
_BESIDE_WEIGHTS = 1.2  # activations and the key-value cache of a prompt, as a share of the weights


def needed_bytes(folder: Path, dtype: str) -> int:
    """Estimates the memory for generating with a model of this folder on a CPU, with parameters in `dtype`."""
    from posgap.models.loading import load_config, resolve_dtype

    stored = str(load_config(str(folder)).dtype or "float32").removeprefix("torch.")
    wider = resolve_dtype(dtype).itemsize / resolve_dtype(stored).itemsize
    return int(_BESIDE_WEIGHTS * wider * sum(file.stat().st_size for file in folder.glob("*.safetensors")))


def _cached_numbers(config: Any) -> int:
    """The numbers of a token's keys and values in all layers of a text model with this config."""
    heads = getattr(config, "num_attention_heads", 0)
    width = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // (heads or 1)
    layers = getattr(config, "num_hidden_layers", 0)
    kept = getattr(config, "num_key_value_heads", None) or heads
    return 2 * layers * kept * width


def tokens_that_fit(model: Any, device: "torch.device") -> int:
    """Returns about how many tokens a GPU's free memory holds while a model reads them and writes on."""
    memory = device_memory(device)
    config = model.config.get_text_config()
    hidden = getattr(config, "hidden_size", 0)
    in_a_layer = 8 * hidden + 3 * (getattr(config, "intermediate_size", None) or 4 * hidden)
    each = (_cached_numbers(config) + in_a_layer) * model.dtype.itemsize
    return int(_FILLED * (memory.total - memory.standing) / max(each, 1))


def available_bytes() -> float:
    """Returns the memory that a process may still take: the machine's, and its container's, if that has a limit.
    Infinite if the system does not tell (not Linux)."""
    return min(_free_of_machine(), _free_of_container())


class DeviceMemory(NamedTuple):
    """Bytes of a GPU: those that this process can have, those of live tensors, and their peak since the last call."""

    total: int
    standing: int
    peak: int


def device_memory(device: "torch.device") -> DeviceMemory:
    """Returns a GPU's free and used memory, and restarts the count of its peak."""
    import torch

    standing = torch.cuda.memory_allocated(device)
    peak = torch.cuda.max_memory_allocated(device)
    total = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)
    torch.cuda.reset_peak_memory_stats(device)
    return DeviceMemory(total, standing, peak)


def require_memory(what: str, needed: float, doing: str, instead: str = "take a smaller model") -> None:
    """Raises `NoRoom` if a process may not take this number of bytes more. `instead` says how to take fewer."""
    available = available_bytes()
    if needed > available:
        raise NoRoom(
            f"{what}: {doing} takes {needed / 1e9:.1f} GB of memory, and this machine has {available / 1e9:.1f} GB "
            f"free; end other programs, {instead}, or take another machine"
        )


def require_disk(what: str, folder: Path, needed: float, doing: str, elsewhere: str) -> None:
    """Raises `NoRoom` if the disk of `folder` (which may not exist yet) has fewer bytes free. `elsewhere` says how to
    take another disk."""
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if needed > free:
        raise NoRoom(
            f"{what}: {doing} takes {needed / 1e9:.2g} GB of disk, and {there} has {free / 1e9:.2g} GB free; make "
            f"room, or {elsewhere}"
        )


def _free_of_machine() -> float:
    try:
        lines = (_PROC / "meminfo").read_text().splitlines()
    except OSError:
        return math.inf
    for line in lines:
        if line.startswith("MemAvailable:"):
            return 1024.0 * int(line.split()[1])
    return math.inf


def _free_of_container() -> float:
    """Returns the bytes that the control group of this process, of version 2 or 1, leaves it; files' pages can be given
    back."""
    try:
        of_memory = {}
        for line in (_PROC / "self" / "cgroup").read_text().splitlines():
            _, kinds, path = line.split(":", 2)
            if kinds in ("", "memory"):
                of_memory[kinds == "memory"] = path.strip("/")
        if True in of_memory:
            folder = _CGROUPS / "memory" / of_memory[True]
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        else:
            folder = _CGROUPS / of_memory[False]
            names = ("memory.max", "memory.current")
        limit, used = ((folder / name).read_text().strip() for name in names)
        statistics = dict(map(str.split, (folder / "memory.stat").read_text().splitlines()))
        of_files = int(statistics.get("file") or statistics["cache"])
    except (OSError, LookupError, ValueError):
        return math.inf
    return math.inf if limit == "max" else int(limit) - int(used) + of_files


def give_back_freed() -> None:
    """Makes the C library return freed memory to the system, which it otherwise keeps for later; does nothing without
    glibc."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def is_exhaustion(error: BaseException) -> bool:
    """Whether an error means that memory is used up: of the machine, or of a device, as torch says it."""
    from torch import OutOfMemoryError  # late: to others in this module torch is nothing

    # torch's allocator on the CPU raises a plain RuntimeError.
    return isinstance(error, (MemoryError, OutOfMemoryError)) or "DefaultCPUAllocator" in str(error)
