"""How much memory a model takes, and how much this machine has."""

import math
from pathlib import Path

from posgap.models.loading import load_config, resolve_dtype

_CGROUP = Path("/sys/fs/cgroup")
_BESIDE_WEIGHTS = 1.2  # activations and the key-value cache of a prompt, as a share of the weights


def needed_bytes(folder: Path, dtype: str) -> int:
    """About what it takes to generate with a model of this folder on a CPU, its parameters in `dtype`."""
    stored = load_config(str(folder)).dtype
    wider = resolve_dtype(dtype).itemsize / (stored.itemsize if stored else 4)
    return int(_BESIDE_WEIGHTS * wider * sum(file.stat().st_size for file in folder.glob("*.safetensors")))


def available_bytes() -> float:
    """The memory that a process may still take: of the machine, and of its container, if that has a limit. Infinite
    where the system does not tell (not Linux)."""
    return min(_of_machine(), _of_container())


def _of_machine() -> float:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return math.inf
    return next((1024.0 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), math.inf)


def _of_container() -> float:
    try:
        limit, current = ((_CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        cache = next(
            int(line.split()[1])
            for line in (_CGROUP / "memory.stat").read_text().splitlines()
            if line.startswith("file ")
        )
    except (OSError, StopIteration):
        return math.inf
    return math.inf if limit == "max" else int(limit) - int(current) + cache
