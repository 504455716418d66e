"""RoPE factors applied to a transformers model: layer l sees positions divided by s_l.

transformers computes one pair of cos/sin tables a forward pass and hands it to every layer. Here
that one computation is given the positions of all layers at once, and each layer takes its own
tables from the result. So attention, cache and kernels are untouched, the model's own `rope_scaling`
(linear, dynamic, yarn, llama3) works underneath, and decoding computes no more tables than before.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posgap.errors import PosgapError
from posgap.models import CONFIG_KEY
from posgap.models.factors import Factors, check_factors, config_factors
from posgap.models.head_scaling import scale_heads

# RoPE types that choose their frequencies by the largest position they are given.
_LENGTH_DEPENDENT = ("dynamic", "longrope")
_ATTRIBUTE = "_posgap_layer_scaling"


def scale_model(model: PreTrainedModel, factors: Factors | None = None) -> PreTrainedModel:
    """Scales `model` in place by `factors`, or by those its config names, and returns it.

    Factors are one per layer `[L]`, or one per attention head `[L][H]` (see `heads`). The config names
    them from then on, so that the model is saved scaled. A model whose config names none is returned
    as it is. Scaling a scaled model replaces its factors.
    """
    if factors is None:
        factors = config_factors(model.config)
    if factors is None:
        return model
    check_factors(factors, model.config.get_text_config().num_hidden_layers, model.name_or_path or type(model).__name__)
    if by_head := [row for row in factors if isinstance(row, list | tuple)]:
        scale_heads(model, by_head)
    else:
        layer_scaling(model).set([factor for factor in factors if isinstance(factor, int | float)])
    setattr(model.config, CONFIG_KEY, list(factors))
    return model


def layer_scaling(model: PreTrainedModel) -> "LayerScaling":
    """The scaling of `model`, all ones where it had none. `PosgapError` where it has no RoPE."""
    if not hasattr(model, _ATTRIBUTE):
        setattr(model, _ATTRIBUTE, LayerScaling(model))
    return getattr(model, _ATTRIBUTE)


class LayerScaling:
    """The factors in force in a model, and what applies them.

    `factors` is `[L]`, or `[L, B]` where every row of a batch has factors of its own.
    """

    def __init__(self, model: PreTrainedModel):
        decoder = model.get_decoder()
        self.name = model.name_or_path or type(model).__name__
        layers, rotaries = _rope_parts(decoder, self.name)
        self.layer_types: list[str] | None = getattr(decoder.config, "layer_types", None)
        self.length_dependent = any(_follows_length(rotary, None) for rotary in rotaries)
        self.factors = torch.ones(len(layers))
        for rotary in rotaries:
            names = tuple(inspect.signature(rotary.forward).parameters)
            rotary.forward = partial(_tables, self, rotary, rotary.forward, names)
        for index, layer in enumerate(layers):
            layer.forward = partial(_with_own_tables, index, layer.forward)

    @property
    def n_layers(self) -> int:
        return len(self.factors)

    def set(self, factors: Sequence[float]) -> None:
        """Puts `factors [L]` in force; `PosgapError` where the model's RoPE cannot take them."""
        if self.length_dependent and min(factors) < 1:
            raise PosgapError(f"{self.name}: a factor of {min(factors)} is below 1, which its dynamic RoPE cannot take")
        self.factors = torch.tensor(factors, dtype=torch.float32)

    @contextmanager
    def rows(self, factors: Tensor) -> Iterator[None]:
        """Puts `factors [L, B]` in force, one column a row of the batch, until the block ends."""
        before, self.factors = self.factors, factors
        try:
            yield
        finally:
            self.factors = before

    def layers_of(self, layer_type: str | None) -> list[int]:
        """The layers that read the tables made for one type of layer, by index."""
        if layer_type is None or self.layer_types is None:
            return list(range(self.n_layers))
        return [index for index, kind in enumerate(self.layer_types) if kind == layer_type]


def _rope_parts(decoder: nn.Module, name: str) -> tuple[nn.ModuleList, list[nn.Module]]:
    """The decoder's layers and the modules that make their cos/sin tables."""
    rotaries = [child for child in decoder.children() if "RotaryEmbedding" in type(child).__name__]
    stacks = [
        child
        for child in decoder.children()
        if isinstance(child, nn.ModuleList)
        and all("position_embeddings" in inspect.signature(layer.forward).parameters for layer in child)
    ]
    if not rotaries or len(stacks) != 1:
        raise PosgapError(
            f"{name}: no rotary position embedding to scale; layer-wise scaling needs a RoPE model "
            "(Llama, Mistral, Qwen, Gemma, Phi, ...)"
        )
    return stacks[0], rotaries


def _follows_length(rotary: nn.Module, layer_type: str | None) -> bool:
    kinds = getattr(rotary, "rope_type", "default")
    kinds = [kinds] if isinstance(kinds, str) else [kinds[t] for t in kinds if layer_type in (None, t)]
    return any(word in kind for kind in kinds for word in _LENGTH_DEPENDENT)


def _tables(
    scaling: LayerScaling,
    rotary: nn.Module,
    own: Callable[..., tuple],
    names: tuple[str, ...],
    *args: Any,
    **kwargs: Any,
) -> tuple:
    """What `rotary` gives instead of a pair of tables: a pair per layer, None where none will be read.

    Its `own` forward makes all of them at once, from positions `[B, S]` as `[R * B, S]`, R scaled copies of them.
    """
    arguments = dict(zip(names, args)) | kwargs
    positions, layer_type = arguments["position_ids"], arguments.get("layer_type")
    if scaling.factors.device != positions.device:
        scaling.factors = scaling.factors.to(positions.device)
    factors, layers = scaling.factors, scaling.layers_of(layer_type)
    if len(layers) < len(factors):
        factors = factors[layers]
    scaled = positions / factors.reshape(len(layers), -1, 1)
    follows = scaling.length_dependent and _follows_length(rotary, layer_type)
    if follows:
        # The unscaled row makes the frequencies those of the unscaled length.
        scaled = torch.cat([positions.expand(scaled.shape[1:])[None].to(scaled.dtype), scaled])
    arguments["position_ids"] = scaled.flatten(0, 1)
    cos, sin = (table.chunk(len(scaled)) for table in own(**arguments))
    pairs = tuple(zip(cos, sin))[follows:]
    if len(pairs) == scaling.n_layers:
        return pairs
    by_layer = dict(zip(layers, pairs))
    return tuple(by_layer.get(index) for index in range(scaling.n_layers))


def _with_own_tables(index: int, own: Callable[..., Any], *args: Any, position_embeddings: tuple, **kwargs: Any) -> Any:
    """A layer's `own` forward with the tables that are its own. A hook would take twice the time."""
    return own(*args, position_embeddings=position_embeddings[index], **kwargs)
