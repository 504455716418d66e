"""A window on a model's attention, for as long as one looks at what it would change."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posgap.foundation.errors import PosgapError
from posgap.mitigations.channel_scaling import decoder_layers

_APART = 1e-3  # by how much of their norm logits may differ that should be the same, but for rounding


@contextmanager
def windowed(model: PreTrainedModel, width: int) -> Iterator[None]:
    """Within the block every token of every layer sees no more than the `width` tokens that end with itself, and the
    first token of the text, which many models need as a place for attention that has none (Xiao et al. 2024)."""

    def narrowed(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        mask = kwargs.get("attention_mask", ...)
        if mask is not None and not (isinstance(mask, Tensor) and mask.ndim == 4):
            raise PosgapError(f"{type(module).__name__}: is given no mask of scores by name, which could be narrowed")
        states = args[0] if args else kwargs["hidden_states"]
        return args, kwargs | {"attention_mask": _narrowed(mask, width, states)}

    with ExitStack() as hooks:
        for layer in decoder_layers(model, "window"):
            hooks.callback(layer.register_forward_pre_hook(narrowed, with_kwargs=True).remove)
        yield


def _narrowed(mask: Tensor | None, width: int, states: Tensor) -> Tensor:
    """A mask [B or 1, 1, N, N] of numbers to add to scores: what a layer's own allows and a window does too."""
    least, n = torch.finfo(states.dtype).min, states.shape[1]
    key = torch.arange(n, device=states.device)
    away = key[:, None] - key
    seen = ((away >= 0) & ((away < width) | (key == 0)))[None, None]
    if mask is None or mask.dtype == torch.bool:
        seen = seen if mask is None else seen & mask
        mask = torch.zeros(seen.shape, dtype=states.dtype, device=states.device)
    return mask.masked_fill(~seen, least)


@torch.inference_mode()
def require_windows(model: PreTrainedModel) -> None:
    """`PosgapError` unless the model obeys masks that its layers are given: a window of all tokens must change nothing
    that it says, and one of a single token must."""
    ids = torch.arange(3, 15, device=model.device)[None] % model.config.get_text_config().vocab_size

    def off(width: int) -> float:
        with windowed(model, width):
            narrow = model(input_ids=ids, use_cache=False).logits.float()
        return float((narrow - usual).norm() / usual.norm())

    usual = model(input_ids=ids, use_cache=False).logits.float()
    try:
        obeys = off(ids.shape[1]) < _APART < off(1)
    except (RuntimeError, TypeError, ValueError):  # of a mask in a form that the family does not know
        obeys = False
    if not obeys:
        raise PosgapError(f"{type(model).__name__}: does not attend as masks say that its layers are given")
