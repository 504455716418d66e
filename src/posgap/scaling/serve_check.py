"""`posgap serve-check`: the factors a loaded model really applies, beside those its config names."""

import importlib.util
import json
import os
from pathlib import Path

from posgap.config import ServeCheckConfig
from posgap.errors import PosgapError
from posgap.files import read_object
from posgap.models import CONFIG_KEY
from posgap.scaling.vllm_plugin import applied
from posgap.storage.inputs import with_local_paths


@with_local_paths
def serve_check(config: ServeCheckConfig) -> None:
    """Loads the model and prints one line a layer; `PosgapError` where config and model disagree."""
    named = read_object(Path(config.model) / "config.json").get(CONFIG_KEY)
    backend = config.backend
    if backend == "auto":
        backend = "vllm" if importlib.util.find_spec("vllm") else "transformers"
    found = (_in_vllm if backend == "vllm" else _in_transformers)(config.model)
    print(f"{config.model} in {backend}: {CONFIG_KEY} {'is not set' if named is None else json.dumps(named)}")
    wanted = named or [1.0] * len(found)
    for layer, (factor, real) in enumerate(zip(wanted, found)):
        print(f"layer {layer:3d}  config {factor:.4f}  applied {real:.4f}")
    if len(wanted) != len(found) or any(abs(factor / real - 1) > 1e-3 for factor, real in zip(wanted, found)):
        raise PosgapError(f"{config.model}: {backend} does not apply the factors its config names; do not serve it")


def _in_vllm(model: str) -> list[float]:
    # In this process, so that the model can be looked at.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    try:
        from vllm import LLM
    except ImportError:
        raise PosgapError(
            "vLLM is not installed here: choose `backend` transformers, or run in vLLM's environment"
        ) from None
    (found,) = LLM(model, dtype="float32", enforce_eager=True, max_model_len=64).apply_model(applied)
    return found


def _in_transformers(model: str) -> list[float]:
    import torch

    from posgap.models.loading import load_model

    loaded, angles = load_model(model, "float32"), []

    def look(attention, args, kwargs) -> None:
        cos, sin = (table[0, 1, 0] for table in kwargs["position_embeddings"])
        angles.append(float(torch.atan2(sin, cos)))

    rope = loaded.config.get_text_config().rope_parameters
    slower = rope["factor"] if rope.get("rope_type") == "linear" else 1.0
    for layer in loaded.get_decoder().layers:
        (attention,) = (part for part in layer.children() if "Attention" in type(part).__name__)
        attention.register_forward_pre_hook(look, with_kwargs=True)
    with torch.inference_mode():
        loaded(input_ids=torch.tensor([[0, 0]]), use_cache=False)
    return [round(1 / (slower * angle), 4) for angle in angles]
