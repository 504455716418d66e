"""Loading a model from wherever it is: a folder, the hub, or MLflow's registry."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from posgap.models import loading
from posgap.tracking import registry

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SCHEME = "models:/"


def load_model(path: str, dtype: str = "auto", compute: str = "") -> "PreTrainedModel":
    """A causal language model, scaled where it is a scaled one, in evaluation mode, on the CPU.

    `path` is a Hugging Face folder, a name on the hub, or a version in MLflow's registry, `models:/name@champion` or
    `models:/name/3`. `dtype` of its parameters: "auto" is bfloat16 where there is a GPU and float32 elsewhere, "stored"
    is that of the file. `compute` is that of the arithmetic, where autocast makes it another.

    Raises `PosgapError` where there is no such model, or its weights are damaged.
    """
    if not path.startswith(SCHEME):
        return loading.load_model(path, dtype, compute)
    with tempfile.TemporaryDirectory() as place:
        return loading.load_model(str(registry.bring_model(path, Path(place))), dtype, compute)
