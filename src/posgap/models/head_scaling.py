"""Ms-PoE (Zhang et al. 2024, arXiv 2403.04797), the baseline with a factor per attention head.

In each layer the heads are ranked by position sensitivity: the share of tokens to which the last
query gives more than three times the mean attention. The most sensitive head reads positions divided
by 1.2, the least sensitive by 1.8, the others between; the first two layers are left alone, as in the
authors' experiments. They rank the heads anew for every prompt. Here the ranking is an average over
prompts, so that a model has one scaling.

Keys in the cache are rotated once, for all heads alike. So each step turns queries and keys on, by
(1/s - 1) times their angle; that is this method's cost, and layer-wise factors do not have it.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from posgap.errors import PosgapError

LOW, HIGH = 1.2, 1.8
FIRST_LAYER = 2
_OUTLIER = 3.0
_IMPLEMENTATION = "posgap_heads"
_ATTRIBUTE = "_posgap_heads"


@dataclass
class _Heads:
    """What an attention module needs: its heads' factors [H], the model's rotary embedding, and, while heads
    are being ranked, a list that takes each prompt's sensitivities [H]."""

    factors: Tensor
    rotary: nn.Module
    sensitivity: list[Tensor] | None = None


def scale_heads(model: PreTrainedModel, factors: Sequence[Sequence[float]]) -> PreTrainedModel:
    """Scales `model` in place by `factors [L][H]`, one per query head, and returns it."""
    decoder = model.get_decoder()
    layers, heads = list(decoder.layers), model.config.get_text_config().num_attention_heads
    if [len(row) for row in factors] != [heads] * len(layers):
        raise PosgapError(f"{model.name_or_path}: per-head RoPE factors must be {len(layers)} rows of {heads}")
    _check_layout(model)
    for layer, row in zip(layers, factors):
        setattr(layer.self_attn, _ATTRIBUTE, _Heads(torch.tensor(row, dtype=torch.float32), decoder.rotary_emb))
    model.set_attn_implementation(_IMPLEMENTATION)
    return model


def ms_poe_factors(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
    """The factors [L][H] of Ms-PoE, with heads ranked by their mean sensitivity over `prompts`.

    Leaves the model scaled by ones.
    """
    n_layers, n_heads = len(model.get_decoder().layers), model.config.get_text_config().num_attention_heads
    scale_heads(model, [[1.0] * n_heads] * n_layers)
    states = [getattr(layer.self_attn, _ATTRIBUTE) for layer in model.get_decoder().layers]
    for state in states:
        state.sensitivity = []
    with torch.inference_mode():
        for prompt in prompts:
            model(input_ids=torch.tensor([list(prompt)], device=model.device), use_cache=False, logits_to_keep=1)
    steps = torch.linspace(LOW, HIGH, n_heads)
    factors, first = [], FIRST_LAYER if n_layers > FIRST_LAYER else 0
    for index, state in enumerate(states):
        ranking = torch.stack(state.sensitivity).mean(0).argsort(descending=True, stable=True)
        state.sensitivity = None
        row = torch.ones(n_heads)
        if index >= first:
            row[ranking.cpu()] = steps
        factors.append([round(factor, 4) for factor in row.tolist()])
    return factors


def sensitivity(attention: Tensor) -> Tensor:
    """Position sensitivity [..., H] of heads from the last query's attention `[..., H, S]`."""
    return (attention > _OUTLIER * attention.mean(-1, keepdim=True)).float().mean(-1)


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **_: object,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention [B, Q, H, D] of queries [B, H, Q, D] over keys [B, H_kv, K, D]."""
    state: _Heads = getattr(module, _ATTRIBUTE)
    groups, length = query.shape[1] // key.shape[1], key.shape[2]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    if state.sensitivity is not None:
        scores = (query[:, :, -1:] @ key.transpose(2, 3))[:, :, 0].float()
        scores = scores * (scaling or query.shape[-1] ** -0.5)
        state.sensitivity.append(sensitivity(scores.softmax(-1))[0])
    # Only distances between positions count, so that they may be counted from the first column, padding or not.
    positions = torch.arange(length, device=query.device)
    frequencies = state.rotary.get_buffer("inv_freq")
    turn = (1 / state.factors.to(query.device) - 1)[:, None, None] * positions[:, None] * frequencies
    query, key = _rotated(query, turn[:, length - query.shape[2] :]), _rotated(key, turn)
    causal = attention_mask is None and query.shape[2] > 1
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, dropout_p=dropout, scale=scaling, is_causal=causal
    )
    return out.transpose(1, 2).contiguous(), None


def _rotated(x: Tensor, angles: Tensor) -> Tensor:
    """`x [B, H, S, D]` with its first R dimensions turned by `angles [H, S, R / 2]`."""
    half = angles.shape[-1]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half : 2 * half]
    return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], -1)


def _check_layout(model: PreTrainedModel) -> None:
    """`PosgapError` unless the model pairs dimension i with i + R / 2 when it rotates, like Llama."""
    decoder = model.get_decoder()
    half_turn = getattr(sys.modules[type(decoder).__module__], "rotate_half", lambda x: x)
    rotary = getattr(decoder, "rotary_emb", None)
    halves = torch.equal(half_turn(torch.arange(4)), torch.tensor([-2, -3, 0, 1]))
    if not halves or not hasattr(rotary, "inv_freq"):
        raise PosgapError(f"{model.name_or_path}: per-head scaling needs a model with the rotary embedding of Llama")


AttentionInterface.register(_IMPLEMENTATION, _attention)
AttentionMaskInterface.register(_IMPLEMENTATION, sdpa_mask)
