"""Chooses the class of device and the default precision in which a model generates."""

import logging
from pathlib import Path

from posgap.foundation.heavy_types import PretrainedConfig

log = logging.getLogger(__name__)
MIN_PARAMETERS = 50_000_000  # of a model that gains from bfloat16 on a processor: smaller ones wait for other things
FLAGS = ("amx_bf16", "avx512_bf16")
_CPUINFO = Path("/proc/cpuinfo")


def device_class() -> str:
    """Returns the class of device that computes here: "cuda" if there is a GPU, else "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def warn_of_device(model: str, swept_on: str) -> None:
    """Warns if a model was swept on one class of device and answers on another. `swept_on` is empty if unknown."""
    here = device_class() if swept_on else ""
    if swept_on != here:
        log.warning(
            "%s was swept on %s and answers on %s here: near-ties may differ; sweep the model here before you serve it",
            *(model, swept_on, here),
        )


def bfloat16_of_cpu() -> str:
    """Returns the processor's flag for matrix products in bfloat16; empty if it has none, or if the system does not
    tell (not Linux on x86)."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        if line.startswith("flags"):
            return next((flag for flag in FLAGS if flag in line.split()), "")
    return ""


def generating_dtype(dtype: str, config: PretrainedConfig) -> str:
    """Returns the dtype in which a model of this config generates: `dtype`, or what "auto" stands for.

    That is bfloat16 on a GPU, and on a processor with bfloat16 products for a model of at least `MIN_PARAMETERS`
    parameters; else float32. It depends only on machine and model, never on a measured speed, so a repeated or resumed
    run chooses alike. Code that forces tokens or differentiates uses `posgap.models.loading.resolve_dtype` instead: in
    bfloat16 ties lose right answers.
    """
    if dtype != "auto":
        return dtype
    if device_class() == "cuda":
        return "bfloat16"
    return "bfloat16" if bfloat16_of_cpu() and n_parameters(config) >= MIN_PARAMETERS else "float32"


def n_parameters(config: PretrainedConfig) -> int:
    """Returns the number of parameters of a causal language model with this config; tied ones count once. It allocates
    no memory for them. Returns 0 if transformers does not know the model; loading it reports that."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config).num_parameters()
    except (ValueError, KeyError):
        return 0
