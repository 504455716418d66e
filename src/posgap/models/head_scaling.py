"""RoPE factors per attention head: head h reads positions divided by its own factor (Ms-PoE, arXiv 2403.04797).

The family's own attention computes all: it is given tables of cosines and sines that have a head dimension. So each key
is rotated once, by its head's factor, and cached; soft-caps, sinks, windows, norms of queries and keys, and layers
without positions stay unchanged. The model's own rotary embedding makes the tables, with `LayerScaling` and its factors
per layer: one table for each factor of a head.

Scores depend on the distance of two positions only if a query and its keys are divided alike. So query heads that share
a key have one factor.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from posgap.foundation.errors import BadModel, PosgapError, first_line
from posgap.models.layer_scaling import LayerScaling, Rungs, decoder_of, layer_scaling
from posgap.models.patching import cached_length, forward_few_tokens, name_of, replace_attribute, without_cache

_OUTLIER = 3.0
_RANKING = "posgap_ranking"
_OTHERWISE = "its attention reads rotary tables otherwise than by head"
_NO_FUNCTION = "{} is not a separate function of queries and keys, which ranking heads needs"


@dataclass
class _Heads:
    """State of one layer's attention: the `chosen` rungs of its `n_keys` key heads, for each row `[B, H]`, with one row
    or one column if all have the same; and whether they are `ranked` and chosen anew at each prompt.
    """

    module: nn.Module
    layer: int
    chosen: Tensor
    n_keys: int
    ranked: bool = False
    undone: list[Callable[[], None]] = field(default_factory=list)


class _Seen(Exception):
    """Carries sensitivities `[B, H]` out of an attention that need not go on."""

    def __init__(self, sensitivities: Tensor):
        self.sensitivities = sensitivities


def factors_by_rank(low: float, high: float, n: int) -> list[float]:
    """The factors of n ranks, in equal steps from `low` to `high`."""
    return [low + (high - low) * rank / (n - 1) for rank in range(n)]


def rank_heads(model: PreTrainedModel, low: float, high: float, first_layer: int) -> Callable[[], None]:
    """Ranks the heads of `model` anew at each prompt, and returns a function that ends this.

    In layers from `first_layer` on the most sensitive key head, with the query heads that share it, gets the factor
    `low`, the least sensitive one `high`, the others get equal steps between. In other layers all have a factor of one.

    Raises `PosgapError`, with the model unchanged, if the family's attention cannot take tables by head, or cannot be
    inspected.
    """
    scaling = layer_scaling(model)
    changes = low != 1 or high != 1
    steps = factors_by_rank(low, high, _count_ranked(model)) if changes else []
    with _give_tables(model, scaling, [1.0, *steps]) as (heads, undo):
        if changes:
            for each in heads:
                each.ranked = each.layer >= first_layer
            _forward_states(model)
    return undo


def _count_ranked(model: PreTrainedModel) -> int:
    """Returns how many heads of a layer are ranked; raises `PosgapError` if one would be alone."""
    n = n_key_heads(model)
    if n < 2:
        raise BadModel(
            f"{name_of(model)}: ms-poe: all heads of a layer share one key, so they would have one factor; take linear"
        )
    return n


def n_key_heads(model: PreTrainedModel) -> int:
    """The number of heads that have keys of their own in a layer of `model`."""
    config = model.config.get_text_config()
    return getattr(config, "num_key_value_heads", None) or config.num_attention_heads


def sensitivity(attention: Tensor, seen: Tensor | None = None) -> Tensor:
    """Returns the position sensitivity `[..., H]` of heads: the share of tokens to which the last query gives more than
    three times the mean attention (Zhang et al. 2024, section 3.3), given its attention `[..., H, S]` to the tokens
    that it has `seen`."""
    seen = torch.ones_like(attention, dtype=torch.bool) if seen is None else seen.expand_as(attention)
    n = seen.sum(-1, keepdim=True)
    outliers = (attention > _OUTLIER * attention.sum(-1, keepdim=True) / n) & seen
    return outliers.sum(-1) / n[..., 0]


class _ByHead(Tensor):
    """A rotary table `[B, H, S, D]` instead of `[B, S, D]`: it already has the heads that a family adds a dimension
    for."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func is Tensor.unsqueeze:
            table = args[0]
            dim = args[1] if len(args) > 1 else (kwargs or {})["dim"]
            if dim not in (1, 2):
                raise BadModel(_OTHERWISE)
            return table if dim == 1 else table.transpose(1, 2)
        if func in _PRODUCTS:
            with torch._C.DisableTorchFunctionSubclass():
                left, right = (each.as_subclass(Tensor) if isinstance(each, _ByHead) else each for each in args[:2])
                if isinstance(args[0], _ByHead):
                    left = _match_heads(left, right)
                else:
                    right = _match_heads(right, left)
                return left * right
        return super().__torch_function__(func, types, args, kwargs or {})


_PRODUCTS = {Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.mul}


def _match_heads(table: Tensor, x: Any) -> Tensor:
    """The table with each key head's entry once for every query head in `x`."""
    if not isinstance(x, Tensor) or x.ndim != 4:
        raise BadModel(_OTHERWISE)
    for dim in (1, 2):
        if x.shape[dim] > table.shape[dim] > 1:
            table = table.repeat_interleave(x.shape[dim] // table.shape[dim], dim)
    return table


def _tables_by_head(tables: Rungs, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The pair of tables by head, for `chosen` rungs `[B, H]`, or `[1, H]` if the rows share them."""
    which = tables.which[chosen.to(tables.which.device)]
    rows = torch.arange(tables.tables[0].shape[1], device=which.device)[:, None]
    cos, sin = (table[which, rows] for table in tables.tables)
    return cos.as_subclass(_ByHead), sin.as_subclass(_ByHead)


def _attend(state: _Heads, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """An attention's `own` forward with tables by head."""
    given = kwargs.get("position_embeddings")
    if not isinstance(given, Rungs):
        return own(*args, **kwargs)
    if state.ranked and not cached_length(kwargs, state.layer):  # a prompt is read from its beginning
        sensitivities = _sensitivities(state, own, given, args, kwargs)
        state.chosen = 1 + sensitivities.argsort(dim=-1, descending=True, stable=True).argsort(-1)  # rung 0 is one
    if len(state.chosen) not in (1, len(args[0] if args else kwargs["hidden_states"])):
        raise BadModel("ms-poe: the rows of the batch changed after their prompts were read")
    return own(*args, **{**kwargs, "position_embeddings": _tables_by_head(given, state.chosen)})


def _sensitivities(state: _Heads, own: Callable[..., Any], given: Rungs, args: tuple, kwargs: dict) -> Tensor:
    """The sensitivities `[B, H]` of a layer's key heads, of queries and keys without positions, as the authors' code
    has them."""
    cos = given.tables[0][0]
    plain = {**without_cache(kwargs), "position_embeddings": (torch.ones_like(cos), torch.zeros_like(cos))}
    config: Any = getattr(state.module, "config", None)
    if config is None:
        raise BadModel(_NO_FUNCTION.format(type(state.module).__name__))
    before = config._attn_implementation_internal
    config._attn_implementation_internal = _RANKING
    try:
        own(*args, **plain)
    except _Seen as seen:
        by_query = seen.sensitivities
    else:
        raise BadModel(_NO_FUNCTION.format(type(state.module).__name__))
    finally:
        config._attn_implementation_internal = before
    return by_query.unflatten(-1, (state.n_keys, -1)).mean(-1)


def _rank(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> NoReturn:
    """Raises `_Seen` with the sensitivities of the heads of queries `[B, H, S, D]` over keys `[B, H_kv, S, D]`."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    scores = (query[:, :, -1:] @ key.transpose(2, 3))[:, :, 0].float()
    scores = scores * (scaling or query.shape[-1] ** -0.5)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    seen = torch.ones_like(scores, dtype=torch.bool)
    if attention_mask is not None:
        row = attention_mask[:, None] if attention_mask.ndim == 2 else attention_mask[:, :, -1]
        row = row[..., : key.shape[2]]
        if row.is_floating_point():
            scores = scores + row
            row = row > torch.finfo(row.dtype).min / 2
        seen = seen & row.bool()
    scores = scores.masked_fill(~seen, -torch.inf)
    if s_aux is not None:
        scores = torch.cat([scores, s_aux.float()[None, :, None].expand(len(scores), -1, 1)], -1)
    raise _Seen(sensitivity(scores.softmax(-1)[..., : key.shape[2]], seen))


AttentionInterface.register(_RANKING, _rank)


@contextmanager
def _give_tables(
    model: PreTrainedModel, scaling: LayerScaling, rungs: Sequence[float]
) -> Iterator[tuple[list[_Heads], Callable[[], None]]]:
    """Gives attentions tables by head, with factors among `rungs`; returns a function that removes them. If the block
    raises, the model is unchanged."""
    heads: list[_Heads] = []
    if scaling.rungs is not None:
        raise BadModel(f"{name_of(model)}: its heads are scaled already; remove that first")

    def undo() -> None:
        scaling.rungs = None
        for each in heads:
            while each.undone:
                each.undone.pop()()

    try:
        n_keys = n_key_heads(model)
        ones = torch.zeros(1, n_keys, dtype=torch.long)
        for layer, module in scaling.attentions():
            each = _Heads(module, layer, ones, n_keys)
            each.undone.append(replace_attribute(module, "forward", partial(_attend, each, module.forward)))
            heads.append(each)
        _require_by_head(model, scaling, heads)
        scaling.rungs = torch.tensor(rungs, dtype=torch.float32)
        for each in heads:  # heads with equal factors share a table, so shared keys (Falcon's) stay shared
            each.chosen = torch.zeros(1, 1, dtype=torch.long)
        yield heads, undo
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
        undo()
        reason = first_line(error)
        raise BadModel(f"{name_of(model)}: its heads cannot be scaled: {reason}") from None
    except PosgapError as error:
        undo()
        if str(error).startswith(name_of(model)):
            raise
        raise BadModel(f"{name_of(model)}: its heads cannot be scaled: {error}") from None


def _require_by_head(model: PreTrainedModel, scaling: LayerScaling, heads: list[_Heads]) -> None:
    """`PosgapError` unless heads that all have a factor of 2 compute what layers with a factor of 2 do."""
    if not heads:
        raise BadModel("no attention that is given its rotary tables")
    with scaling.factors_by_row(torch.full((scaling.n_layers, 1), 2.0)):
        by_layer = _forward_states(model)
    scaling.rungs = torch.tensor([2.0])
    try:
        with scaling.factors_by_row(torch.ones(scaling.n_layers, 1)):
            by_head = _forward_states(model)
    except (RuntimeError, TypeError, ValueError, LookupError) as error:
        raise BadModel(f"{_OTHERWISE}: {str(error).partition(chr(10))[0]}") from None
    if not _are_close(by_head, by_layer):
        raise BadModel(_OTHERWISE)


def _are_close(states: Tensor, wanted: Tensor) -> bool:
    wanted = wanted.float()
    return torch.allclose(states.float(), wanted, rtol=1e-3, atol=1e-3 * float(wanted.std()))


def _forward_states(model: PreTrainedModel) -> Tensor:
    """The states of a few tokens."""
    return forward_few_tokens(decoder_of(model), 5).last_hidden_state
