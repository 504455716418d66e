"""`posgap serve-check`: the factors that a loaded model really applies, beside those in its config."""

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
    """Loads the model and prints one line per layer; raises `PosgapError` if config and model disagree."""
    configured = read_object(Path(config.model) / "config.json").get(CONFIG_KEY)
    backend = config.backend
    if backend == "auto":
        backend = "vllm" if importlib.util.find_spec("vllm") else "transformers"
    real = (_in_vllm if backend == "vllm" else _in_transformers)(config.model)
    print(f"{config.model} in {backend}: {CONFIG_KEY} {'is not set' if configured is None else json.dumps(configured)}")
    wanted = configured or [1.0] * len(real)
    for layer, (factor, real_factor) in enumerate(zip(wanted, real)):
        print(f"layer {layer:3d}  config {factor:.4f}  applied {real_factor:.4f}")
    if len(wanted) != len(real) or any(
        abs(factor / real_factor - 1) > 1e-3 for factor, real_factor in zip(wanted, real)
    ):
        raise PosgapError(f"{config.model}: {backend} does not apply the factors of its config; do not serve it")


def _in_vllm(model: str) -> list[float]:
    # vLLM runs the model in this process, so that `apply_model` can inspect it.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    try:
        from vllm import LLM
    except ImportError:
        raise PosgapError(
            "vLLM is not installed here: choose `backend` transformers, or run in vLLM's environment"
        ) from None
    (factors,) = LLM(model, dtype="float32", enforce_eager=True, max_model_len=64).apply_model(applied)
    return factors


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
