"""A stand-in for the package flash-attn, which needs a GPU: in formulas what its functions are documented to do."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers import modeling_flash_attention_utils as flash


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> Tensor:
    """Attention `[B, S, H, D]` of `q [B, S, H, D]` over `k` and `v [B, T, G, D]`. From 2.1 on the last query is the one
    of the last key. A window counts keys to the left and to the right of a query's own; -1 bounds nothing."""
    groups, (queries, keys) = q.shape[2] // k.shape[2], (q.shape[1], k.shape[1])
    k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * (softmax_scale or q.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    own = torch.arange(queries)[:, None] + keys - queries
    left, right = window_size[0], 0 if causal else window_size[1]
    seen = torch.ones(queries, keys, dtype=torch.bool)
    if left >= 0:
        seen &= torch.arange(keys) >= own - left
    if right >= 0:
        seen &= torch.arange(keys) <= own + right
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num()
    return torch.einsum("bhqk,bkhd->bqhd", weights.to(v.dtype), v)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    deterministic: bool = False,
) -> Tensor:
    """The same of sequences that lie one behind the other, `[S, H, D]`, from the first bound to the next."""
    options = (dropout_p, softmax_scale, causal, window_size, softcap, deterministic)
    pieces = zip(
        *(
            each.split(torch.diff(bounds).tolist())
            for each, bounds in ((q, cu_seqlens_q), (k, cu_seqlens_k), (v, cu_seqlens_k))
        )
    )
    return torch.cat([flash_attn_func(*(each[None] for each in piece), *options)[0] for piece in pieces])


def stand_in(patched: pytest.MonkeyPatch) -> None:
    """Has transformers find it, on a machine without a GPU."""

    def can_dispatch(*words: Any, **more: Any) -> bool:
        return True

    patched.setattr(PreTrainedModel, "_flash_attn_can_dispatch", can_dispatch)
    functions = {
        "_loaded_implementation": "flash_attention_2",
        "_flash_fn": flash_attn_func,
        "_flash_varlen_fn": flash_attn_varlen_func,
        "_flash_with_kvcache_fn": None,
        "_pad_fn": flash._pad_input,
        "_unpad_fn": flash._unpad_input,
        "_process_flash_kwargs_fn": flash._lazy_define_process_function(flash_attn_varlen_func),
    }
    for name, value in functions.items():
        patched.setattr(flash, name, value, raising=False)
