"""Reads the common tokens of an example's prompts only once.

An example's prompts are equal up to the first gold document, so a causal model computes the same for all of them there.
They are laid out in one sequence, each without the beginning that it shares with the previous one, and every token
keeps the position that it has in its own prompt. Layers that work token by token then run once. Attention alone is
computed prompt by prompt: the queries of a prompt's own tokens, over the keys and values of the whole prompt, wherever
they lie. The gradient with respect to shared tokens adds up by itself. This also holds if activations are checkpointed,
or if the model's parameters are spread over processes.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, PreTrainedModel

from posgap.models.memory import is_exhaustion
from posgap.models.rope_lengths import RopeLengths

# For a branch's queries: each run of them skips the keys that come after it.
QUERIES_AT_ONCE = 256
Span = tuple[int, int]


class Branch(NamedTuple):
    """A prompt within a sequence: the columns of its `own` tokens, and those of all its tokens, in order."""

    own: Span
    path: tuple[Span, ...]


class FlashLayout(NamedTuple):
    """Branches in a flash kernel's format: the concatenated `columns [T]` of all paths, the offsets of each branch's
    queries and keys (`[N + 1]`, from 0 on), and the longest of either.
    """

    columns: Tensor
    query_ends: Tensor
    key_ends: Tensor
    most_queries: int
    most_keys: int


class Branches(tuple[Branch, ...]):
    """The prompts of a sequence, which cover it; `layers` counts the calls of attention that were given them."""

    layers = 0
    _flash_layout: FlashLayout | None = None

    def flash_layout(self, device: torch.device) -> FlashLayout:
        """The layout on a device, made once for all layers; the host does not wait for the copies."""
        if self._flash_layout is None:
            columns: list[np.ndarray] = []
            queries = [0]
            keys = [0]
            for (start, end), path in self:
                columns += [np.arange(*span) for span in path]
                queries.append(end - start)
                keys.append(sum(end - start for start, end in path))
            self._flash_layout = FlashLayout(
                torch.from_numpy(np.concatenate(columns)).to(device, non_blocking=True),
                torch.tensor(np.cumsum(queries), dtype=torch.int32).to(device, non_blocking=True),
                torch.tensor(np.cumsum(keys), dtype=torch.int32).to(device, non_blocking=True),
                max(queries),
                max(keys),
            )
        return self._flash_layout


class Layout(NamedTuple):
    """Prompts in one sequence: its `ids [S]`, their `positions [S]` in the prompts, and the place of each prompt."""

    ids: list[int]
    positions: list[int]
    branches: Branches


def count_common_tokens(first: Sequence[int], second: Sequence[int]) -> int:
    """The number of tokens that two prompts begin with alike."""
    n = min(len(first), len(second))
    differing = np.flatnonzero(np.asarray(first[:n]) != np.asarray(second[:n]))
    return int(differing[0]) if len(differing) else n


def pack_shared_prefixes(bundles: Sequence[Sequence[Sequence[int]]], own: Sequence[Sequence[int]]) -> Layout:
    """Lays bundles of prompts out in one sequence.

    Each prompt shares the tokens that it has in common with the previous one in its bundle. Its last `own` tokens
    (counted for each prompt) are never shared, so their hidden states exist for each prompt.
    """
    ids: list[int] = []
    positions: list[int] = []
    branches = []
    for bundle, least in zip(bundles, own):
        path: tuple[Span, ...] = ()
        before: Sequence[int] = ()
        for prompt, n_own in zip(bundle, least):
            shared = min(count_common_tokens(before, prompt), len(prompt) - n_own)
            start = len(ids)
            ids += prompt[shared:]
            positions += range(shared, len(prompt))
            path = (*_beginning(path, shared), (start, len(ids)))
            branches.append(Branch(path[-1], path))
            before = prompt
    return Layout(ids, positions, Branches(branches))


def _beginning(path: Sequence[Span], n: int) -> Iterator[Span]:
    """The first `n` columns of a path."""
    for start, end in path:
        if n > 0:
            yield start, min(end, start + n)
        n -= end - start


# Attention


def _has_flash(query: Tensor, value: Tensor) -> bool:
    """Whether torch has a flash kernel for such tensors, which takes 16 bits and up to 256 numbers a head."""
    is_known = query.dtype in (torch.bfloat16, torch.float16) and query.shape[-1] == value.shape[-1] <= 256
    return query.is_cuda and is_known and torch.cuda.get_device_capability(query.device) >= (8, 0)


def _by_flash(
    query: Tensor, key: Tensor, value: Tensor, branches: Branches, window: int | None, scale: float | None
) -> Tensor:
    """Computes `_over_branches` by one kernel, which aligns a branch's last query with its last key."""
    columns, query_ends, key_ends, most_queries, most_keys = branches.flash_layout(query.device)
    queries = query[0].transpose(0, 1)
    keys, values = (each[0].transpose(0, 1).index_select(0, columns) for each in (key, value))
    read = varlen_attn(
        queries,
        keys,
        values,
        query_ends,
        key_ends,
        most_queries,
        most_keys,
        scale=scale,
        window_size=(window - 1 if window else -1, 0),  # keys to the left of a query's own, and to its right
        enable_gqa=True,
    )
    return cast(Tensor, read)[None]


def _over_branches(query: Tensor, key: Tensor, value: Tensor, branches: Branches, **options: Any) -> Tensor:
    """Attention `[1, S, H, D]` of `query [1, H, S, D]`: of each branch's own tokens over its whole path."""
    branches.layers += 1
    window = options.get("sliding_window")
    scale = options.get("scaling")
    if torch.is_autocast_enabled(query.device.type):  # as torch's own attention does
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = (each.to(dtype) for each in (query, key, value))
    if _has_flash(query, value):
        return _by_flash(query, key, value, branches, window, scale)
    outputs = []
    for (_, path), own in zip(branches, query.split([end - start for (start, end), _ in branches], 2)):
        keys, values = (torch.cat([each[:, :, start:end] for start, end in path], 2) for each in (key, value))
        last = keys.shape[2] - own.shape[2]  # tokens in front of its own
        if (groups := query.shape[1] // keys.shape[1]) > 1:  # once, rather than for each run of queries
            keys = keys.repeat_interleave(groups, 1)
            values = values.repeat_interleave(groups, 1)
        if not last and not (window and window < keys.shape[2]):  # what shares nothing needs no mask
            out = F.scaled_dot_product_attention(own, keys, values, is_causal=True, scale=scale)
            outputs.append(out.transpose(1, 2))
            continue
        for queries in own.split(QUERIES_AT_ONCE, 2):
            first = last
            last = last + queries.shape[2]
            mask = torch.ones(last - first, last, dtype=torch.bool, device=query.device).tril(first)
            if window:
                mask = mask.triu(first - window + 1)
            read = keys[:, :, :last], values[:, :, :last]
            out = F.scaled_dot_product_attention(queries, *read, attn_mask=mask, scale=scale)
            outputs.append(out.transpose(1, 2))
    return torch.cat(outputs, 1)


def _knowing_branches(attention: Callable[..., Any]) -> Callable[..., Any]:
    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *more: Any,
        branches: Branches | None = None,
        **options: Any,
    ) -> tuple[Tensor, Any]:
        if branches is None:
            return attention(module, query, key, value, attention_mask, *more, **options)
        return _over_branches(query, key, value, branches, **options), None

    return forward


@contextmanager
def attention_over_branches(model: PreTrainedModel) -> Iterator[bool]:
    """Within the block attention takes `branches`; yields false for a model that cannot share what prompts have in
    common.

    Whether it does compute the same then is for the caller to check: not every layer of every model mixes tokens by
    attention alone.
    """
    config: Any = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ())
    is_recurrent = getattr(model, "_is_stateful", False) or kinds - {"full_attention", "sliding_attention"}
    name = str(model.config._attn_implementation)
    if name not in ("sdpa", "flash_attention_2") or is_recurrent or RopeLengths.from_config(model.config):
        yield False
        return
    # A name of ours, for this model alone, would not do: FlashAttention looks up its kernel by the config's name, and
    # checkpointed layers are computed again in the backward pass, outside a block around a forward pass. So the name's
    # function is replaced; without `branches` it is the original.
    attention = AttentionInterface()[name]
    AttentionInterface.register(name, _knowing_branches(attention))
    try:
        yield True
    finally:
        AttentionInterface.register(name, attention)


def same_states(read: Callable[[], Tensor], alone: Tensor, branches: Branches | None, tolerance: float) -> bool:
    """Returns whether the shared pass `read` over `branches` matches the separate ones, `alone [M, D]`, within relative
    error `tolerance`."""
    try:
        together = read()
    except Exception as error:  # whatever a model does with unknown arguments
        if is_exhaustion(error):
            raise
        return False
    if branches is None or not branches.layers or together.shape != alone.shape:
        return False
    distance = torch.linalg.vector_norm(together.float() - alone.float()) / torch.linalg.vector_norm(alone.float())
    return bool(distance < tolerance)
