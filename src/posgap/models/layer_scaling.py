"""RoPE factors applied to a transformers model: layer l sees positions divided by s_l.

transformers computes one pair of cos/sin tables a forward pass and hands it to every layer. Here
that one computation is given the positions of all layers at once, and each layer takes its own
tables from the result. So attention, cache and kernels are untouched, the model's own `rope_scaling`
(linear, dynamic, yarn, llama3) works underneath, and decoding computes no more tables than before.

Families differ in their tables: a pair of cosines and sines, or complex numbers (Llama 4, DeepSeek-V2); for positions
`[B, S]`, or for time, height and width `[3, B, S]` (Qwen3.5, Qwen-VL). Whether a family can be scaled is tested on the
model itself: docs/mitigations.md has the list.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posgap.foundation.errors import BadModel, PosgapError, first_line
from posgap.models.patching import forward_few_tokens, name_of, replace_attribute, undo_all
from posgap.models.rope_lengths import KINDS

_ATTRIBUTE = "_posgap_layer_scaling"
_NO_ROPE = "no rotary position embedding to scale; layer-wise scaling needs a RoPE model (Llama, Qwen, Gemma, Phi, ...)"
_ELSEWHERE = (
    "its rotary positions cannot be scaled by layer: each attention makes its own tables, or its layers are not one "
    "stack that reads the tables of one embedding"
)


def layer_scaling(model: PreTrainedModel) -> "LayerScaling":
    """Returns the scaling of `model`, all ones if it has none. Raises `PosgapError` if it has no RoPE."""
    if not hasattr(model, _ATTRIBUTE):
        setattr(model, _ATTRIBUTE, LayerScaling(model))
    return getattr(model, _ATTRIBUTE)


class Rungs(NamedTuple):
    """Replaces a layer's tables if its heads have their own factors: `tables`, cosines and sines `[N, B, S, D]` for the
    N factors of the heads, and `which [U]`, the table of each rung."""

    tables: tuple[Tensor, Tensor]
    which: Tensor


class LayerScaling:
    """The factors of a model, and the hooks that apply them.

    `factors` is `[L]`, or `[L, B]` if every row of a batch has its own factors. With `rungs [U]`, the factors that
    heads choose from besides their layer's, each layer gets its `Rungs` (`models.head_scaling`).
    """

    rungs: Tensor | None = None

    def __init__(self, model: PreTrainedModel, tried: bool = True):
        """Raises `PosgapError` if the model cannot be scaled. Without `tried`, which is only for a model inside a
        server, no tokens are read to test that."""
        decoder = decoder_of(model)
        self.name = name_of(model)
        layers, rotaries = _rope_parts(decoder, self.name)
        unscaled = _forward_states(decoder, self.name) if tried else None
        self.layer_types: list[str] | None = getattr(decoder.config, "layer_types", None)
        self.length_dependent = any(_follows_length(rotary, None) for rotary in rotaries)
        self.factors = torch.ones(len(layers))
        undone = []
        for rotary in rotaries:
            names = tuple(inspect.signature(rotary.forward).parameters)
            undone.append(
                replace_attribute(rotary, "forward", partial(_make_tables, self, rotary, rotary.forward, names))
            )
        self._layers = [layers]  # in a list: no second owner of modules
        for index, layer in enumerate(layers):
            undone.append(replace_attribute(layer, "forward", partial(_with_own_tables, index, layer.forward)))
        if unscaled is None:
            return
        try:
            self._require_effect(decoder, unscaled)
        except PosgapError:
            undo_all(undone)()
            raise

    def _require_effect(self, decoder: nn.Module, unscaled: Tensor) -> None:
        """`PosgapError` unless ones leave the states of a few tokens as they were, `unscaled`, and twos do not."""
        if not torch.equal(_forward_states(decoder, self.name), unscaled):
            raise BadModel(f"{self.name}: a factor of 1 already changes its output, so it cannot be scaled by layer")
        with self.factors_by_row(torch.full((self.n_layers, 1), 2.0)):
            if torch.equal(_forward_states(decoder, self.name), unscaled):
                raise BadModel(f"{self.name}: {_NO_ROPE}")

    @property
    def n_layers(self) -> int:
        return len(self.factors)

    def set(self, factors: Sequence[float]) -> None:
        """Applies `factors [L]`; raises `PosgapError` if the model's RoPE cannot take them."""
        if self.length_dependent and min(factors) < 1:
            raise BadModel(f"{self.name}: a factor of {min(factors)} is below 1, which its dynamic RoPE cannot take")
        self.factors = torch.tensor(factors, dtype=torch.float32)

    @contextmanager
    def factors_by_row(self, factors: Tensor) -> Iterator[None]:
        """Applies `factors [L, B]`, one column for each row of the batch, until the block ends."""
        before = self.factors
        self.factors = factors
        try:
            yield
        finally:
            self.factors = before

    def attentions(self) -> list[tuple[int, Any]]:
        """The modules that are given rotary tables, each with the index of its layer."""
        found = []
        for index, layer in enumerate(self._layers[0]):
            for part in layer.children():
                if "position_embeddings" in inspect.signature(type(part).forward).parameters:
                    found.append((index, part))
        return found

    def layers_of(self, layer_type: str | None) -> list[int]:
        """The layers that read the tables made for one type of layer, by index."""
        if layer_type is None or self.layer_types is None:
            return list(range(self.n_layers))
        return [index for index, kind in enumerate(self.layer_types) if kind == layer_type]


def decoder_of(model: PreTrainedModel) -> Any:
    """The part of a model that has its layers. If a family calls the model with its head so, a part of that."""
    decoder = model.get_decoder()
    if not isinstance(decoder, PreTrainedModel):  # ModernBERT's decoder is its output layer
        decoder = model.base_model
    return next((part for part in (decoder, *decoder.children()) if _rotaries(part)), decoder)


def _rotaries(decoder: nn.Module) -> list[nn.Module]:
    """The modules that make the tables of all layers: children of the decoder, or of a list among them."""
    children = list(decoder.children())
    for child in decoder.children():
        if isinstance(child, nn.ModuleList):
            children += child
    return [child for child in children if "RotaryEmbedding" in type(child).__name__]


def _forward_states(decoder: Any, name: str) -> Tensor:
    """The last hidden states of three tokens; `PosgapError` if they cannot be computed."""
    try:
        return forward_few_tokens(decoder).last_hidden_state
    except (RuntimeError, TypeError, ValueError, AttributeError, LookupError) as error:
        reason = first_line(error)
        raise BadModel(f"{name}: its rotary positions cannot be scaled by layer: {reason}") from None


def _rope_parts(decoder: nn.Module, name: str) -> tuple[nn.ModuleList, list[nn.Module]]:
    """The decoder's layers and the modules that make their tables."""
    rotaries = _rotaries(decoder)
    stacks = [each for each in decoder.children() if isinstance(each, nn.ModuleList) and all(map(_takes_tables, each))]
    if rotaries and len(stacks) == 1:
        return stacks[0], rotaries
    rotates = any("Rotary" in type(module).__name__ for module in decoder.modules())
    rotates = rotates or bool(getattr(decoder.config, "rotary_dim", None))
    raise BadModel(f"{name}: {_ELSEWHERE if rotates else _NO_ROPE}")


def _takes_tables(layer: nn.Module) -> bool:
    return "position_embeddings" in inspect.signature(layer.forward).parameters


def _follows_length(rotary: nn.Module, layer_type: str | None) -> bool:
    kinds: Any = getattr(rotary, "rope_type", "default")
    if not isinstance(kinds, str):
        kinds = " ".join(kind for of_type, kind in kinds.items() if layer_type in (None, of_type))
    return any(word in kinds for word in KINDS)


def _make_tables(
    scaling: LayerScaling,
    rotary: nn.Module,
    own: Callable[..., Any],
    names: tuple[str, ...],
    *args: Any,
    **kwargs: Any,
) -> tuple:
    """Returns each layer's tables in place of a `rotary`'s own, or None if none will be read.

    Its `own` forward makes all of them at once, from R scaled copies of the positions `[..., B, S]`, as `[..., R * B,
    S]`. Tables are `[..., R * B, S, D]`.
    """
    arguments = dict(zip(names, args)) | kwargs
    positions = arguments["position_ids"]
    layer_type = arguments.get("layer_type")
    if scaling.factors.device != positions.device:
        scaling.factors = scaling.factors.to(positions.device)
    factors = scaling.factors
    layers = scaling.layers_of(layer_type)
    if len(layers) < len(factors):
        factors = factors[layers]
    which = None
    if scaling.rungs is not None:
        by_head = factors.reshape(len(layers), 1, -1) * scaling.rungs.to(positions.device)[:, None]
        factors, which = torch.unique(by_head.flatten(0, 1), dim=0, return_inverse=True)
    scaled = positions.unsqueeze(-3) / factors.reshape(len(factors), -1, 1)
    follows = scaling.length_dependent and _follows_length(rotary, layer_type)
    if follows:
        # The unscaled row keeps the frequencies at those of the unscaled length.
        unscaled = positions.unsqueeze(-3).to(scaled.dtype)
        scaled = torch.cat([unscaled.expand(*unscaled.shape[:-2], *scaled.shape[-2:]), scaled], dim=-3)
    copies = scaled.shape[-3]
    arguments["position_ids"] = scaled.flatten(-3, -2)
    made = own(**arguments)
    if which is not None:
        if isinstance(made, Tensor):
            raise BadModel(f"{scaling.name}: its rotary tables are complex numbers, which all heads share")
        cos, sin = (table.unflatten(-3, (copies, -1))[int(follows) :] for table in made)
        tables: Any = [Rungs((cos, sin), each) for each in which.reshape(len(layers), -1)]
    elif isinstance(made, Tensor):
        tables = made.chunk(copies, dim=-3)[follows:]
    else:
        tables = tuple(zip(*(table.chunk(copies, dim=-3) for table in made)))[follows:]
    return tuple(map(dict(zip(layers, tables)).get, range(scaling.n_layers)))


def _with_own_tables(
    index: int, own: Callable[..., Any], *args: Any, position_embeddings: tuple | None, **kwargs: Any
) -> Any:
    """A layer's `own` forward with the tables that are its own. A hook would take twice the time."""
    tables = None if position_embeddings is None else position_embeddings[index]
    return own(*args, position_embeddings=tables, **kwargs)
