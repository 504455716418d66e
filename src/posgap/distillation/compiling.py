"""Layers compiled by torch.compile: the same numbers, in fewer and larger kernels."""

import importlib.util
import os
import shutil
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from posgap.distillation.sharding import layers_of
from posgap.foundation.errors import PosgapError

_COMPILERS = ("c++", "g++", "clang++")


def compile_layers(model: PreTrainedModel) -> None:
    """From now on each layer of the model is compiled where it reads whole prompts; what generates, with a cache of
    keys and values, stays as it is.

    Prompts may have any length: shapes are symbols. Raises `PosgapError` where layers are not found, or where there is
    nothing that makes machine code.
    """
    _require_compiler()
    layers = layers_of(model)
    if not layers:
        raise PosgapError(f"compile: {type(model).__name__} has no list of layers to compile; leave it out")
    for layer in layers:
        layer.forward = _where_prompts_are_whole(layer.forward)
    model.layers_are_compiled = True  # type: ignore[assignment]


def is_compiled(model: PreTrainedModel) -> bool:
    """Whether the layers are compiled, and so read each prompt by itself: others, laid out in one sequence, would be
    compiled anew for each layout."""
    return bool(getattr(model, "layers_are_compiled", False))


def _where_prompts_are_whole(forward: Callable[..., Any]) -> Callable[..., Any]:
    compiled = torch.compile(forward, dynamic=True)

    def either(*args: Any, **kwargs: Any) -> Any:
        return (compiled if kwargs.get("past_key_values") is None else forward)(*args, **kwargs)

    return either


def _require_compiler() -> None:
    if torch.cuda.is_available():
        if importlib.util.find_spec("triton") is None:
            raise PosgapError("compile: torch.compile needs Triton on a GPU; install it, or leave --compile out")
    elif not any(map(shutil.which, filter(None, (os.environ.get("CXX"), *_COMPILERS)))):
        raise PosgapError("compile: torch.compile needs a C++ compiler on a CPU; install g++, or leave --compile out")
