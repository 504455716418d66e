"""Computes a training step's requests to its node, by the number of its GPUs, and whether a model fits in them."""

import os

from pydantic import ValidationError

from posgap.foundation.errors import PosgapError
from posgap.options.cluster import PoolConfig
from posgap.options.preflight import PreflightConfig

# Set in the pipeline's step at compilation: the pool for one GPU, except the disk, which is for the form's default,
# since KFP takes no parameter for the size of a volume.
VARIABLE = "POSGAP_TRAIN_POOL"
_FACTORS: dict[str, float] = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
_FACTORS |= {"m": 1e-3, **{f"{name}i": 2 ** (10 * at) for at, name in enumerate("KMGTPE", start=1)}}
_GB = 1e9


def amount(quantity: str) -> float:
    """The number that a quantity of Kubernetes is: of bytes, or of CPUs."""
    digits = quantity.rstrip("mkKMGTPEi")
    return float(digits) * _FACTORS[quantity[len(digits) :]]


def train_pool(text: str) -> PoolConfig | None:
    """The pool that the variable's text describes; None if it is empty: nothing runs on a cluster."""
    try:
        return PoolConfig.model_validate_json(text) if text else None
    except ValidationError:
        raise PosgapError(f"{VARIABLE}: {text!r} is not a pool; compile the pipeline with this version") from None


def requests(form: PreflightConfig) -> dict[str, str]:
    """Returns the CPUs and the memory that a training step of this form requests; empty texts if no cluster is
    known."""
    pool = train_pool(os.environ.get(VARIABLE, ""))
    if pool is None or not form.gpus_train.isdecimal():
        return {"cpu": "", "memory": ""}
    asked = pool.times(int(form.gpus_train))
    return {"cpu": asked.cpu, "memory": asked.memory}


def require_room(model: str, parameters: int, trained: int, pool: PoolConfig) -> str:
    """Computes what training a model takes of its node's memory, for each GPU, and of its disk; raises `PosgapError` if
    the pool has less.

    Each process loads the model in float32 on the CPU first. The disk holds two checkpoints (the trained parameters and
    Adam's two means of them, in float32), and both the input and the output model (`posgap plan distill`).
    """
    memory = 4 * parameters
    disk = 2 * 3 * 4 * trained + 2 * 2 * parameters
    for what, need, has, unit in (
        ("memory", memory, pool.memory, " for each GPU"),
        ("scratch", disk, pool.scratch, " of disk"),
    ):
        if has and need > amount(has):
            raise PosgapError(
                f"{model}: training takes {need / _GB:.0f} GB{unit}, and its step has {has}; give `train` more "
                f"`{what}` in the cluster's file (POSGAP_CLUSTER), and compile the pipeline with it"
            )
    return f"{memory / _GB:.1f} GB of memory for each GPU, {disk / _GB:.1f} GB of disk"
