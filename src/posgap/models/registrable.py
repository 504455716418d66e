"""Decides whether a folder can be registered: other programs must load the same from it as posgap, and run none of its
code."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posgap.foundation.errors import BadModel
from posgap.foundation.files import read_object
from posgap.models.loading import load_config
from posgap.models.tensors import EXPLICIT, stored_tensors, weight_files

_CODE = ("auto_map", "custom_pipelines")  # keys of configs that name code
_KERNELS = ("attn_implementation", "_attn_implementation")  # keys that name code if the value is a hub's repository

_OTHER_WEIGHTS = ("*.gguf", "pytorch_model*.bin")


def require_registrable(folder: Path) -> None:
    """Raises `BadModel` if a folder holds code, unused weights beside those that load, or tensors that differ from what
    transformers saves for the model. Under another name, or unread, these would make the same weights look like another
    model."""
    for file in sorted(folder.rglob("*.py")):
        raise BadModel(f"{file}: is code that would run when the model is loaded; remove it")
    for file in sorted(file for pattern in _OTHER_WEIGHTS for file in folder.rglob(pattern)):
        raise BadModel(f"{file}: holds weights beside those that load, and other programs would read it; move it away")
    for file in sorted({folder / "config.json", *folder.glob("*_config.json")}):
        named = list(_items(read_object(file))) if file.is_file() else []
        keys = {key for key, value in named if key not in _KERNELS or "/" in str(value)}
        for key in sorted(keys & {*_CODE, *_KERNELS, EXPLICIT}):
            raise BadModel(f"{file}: its `{key}` names code or weights of another place; remove that")
    _require_own_names(folder, [tensor.name for file in weight_files(folder) for tensor in stored_tensors(file)])


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    """The keys of a JSON value that have one, at any depth, and their values."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if inner:
                yield key, inner
            yield from _items(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _items(inner)


def _require_own_names(folder: Path, stored: list[str]) -> None:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    config = load_config(str(folder))
    # Experts are stored in pieces, and packed weights with scales: their names are others than the model's.
    if getattr(config, "quantization_config", None) or get_checkpoint_conversion_mapping(config.model_type):
        return
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    own = model.state_dict().keys() - set(getattr(model, "all_tied_weights_keys", {}))
    strange = sorted(set(stored) - own)
    if strange:
        more = f" and {len(strange) - 1} more" if len(strange) > 1 else ""
        raise BadModel(
            f"{folder}: has tensors that are not loaded under their names: {strange[0]}{more}; load the model with "
            "transformers and save it again"
        )
