"""Chooses the class of device and the default precision in which a model generates."""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig

log = logging.getLogger(__name__)
MIN_PARAMETERS = 50_000_000  # of a model that gains from bfloat16 on a processor: smaller ones wait for other things
FLAGS = ("amx_bf16", "avx512_bf16")
_CPUINFO = Path("/proc/cpuinfo")


def device_class() -> str:
    """The class of device on which models compute here: "cuda" where there is a GPU, else "cpu"."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def warn_of_device(model: str, swept_on: str) -> None:
    """Warns if a model was swept on one class of device and answers on another. `swept_on` is empty if unknown."""
    here = device_class() if swept_on else ""
    if swept_on != here:
        log.warning(
            "%s was swept on %s and answers on %s here: near-ties may differ; sweep it here before it serves",
            *(model, swept_on, here),
        )


def bfloat16_of_cpu() -> str:
    """The flag of the processor that says that it multiplies matrices in bfloat16; empty if it does not, or if
    the system does not tell (not Linux on x86)."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        if line.startswith("flags"):
            return next((flag for flag in FLAGS if flag in line.split()), "")
    return ""


def generating_dtype(dtype: str, config: "PretrainedConfig") -> str:
    """The dtype in which a model of this config generates: `dtype`, or what "auto" stands for.

    That is bfloat16 on a GPU, and on a processor that multiplies in bfloat16 for a model of at least `MIN_PARAMETERS`
    parameters; else float32. It follows from machine and model alone, never from a measured speed, so that a run that
    is repeated or goes on chooses alike. Whoever forces tokens or differentiates keeps to
    `posgap.models.loading.resolve_dtype`: in bfloat16 ties lose right answers.
    """
    if dtype != "auto":
        return dtype
    if device_class() == "cuda":
        return "bfloat16"
    return "bfloat16" if bfloat16_of_cpu() and n_parameters(config) >= MIN_PARAMETERS else "float32"


def n_parameters(config: "PretrainedConfig") -> int:
    """How many parameters a causal language model of this config has, tied ones counted once. No memory is taken for
    them. 0 where transformers knows no such model, which whoever loads it is told."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config).num_parameters()
    except (ValueError, KeyError):
        return 0
