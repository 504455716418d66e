"""Attention that a mitigation computes itself, in place of the implementation that transformers chose."""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from posgap.foundation.errors import PosgapError
from posgap.mitigations.state import in_force
from posgap.models.layer_scaling import factors_in_force
from posgap.models.patching import all_of, name_of
from posgap.models.rope_lengths import RopeLengths

_FURTHER = 5  # positions by which queries are turned to see how a model does it
_PREFIX = "posgap_"  # of the names of implementations that are ours
_ATTRIBUTE = "_posgap_own_attention"
_WINDOWED = {"sliding_attention", "chunked_attention"}


class Computed(NamedTuple):
    """What an attention is computed of: queries `[B, H, Q, D]`, keys and values `[B, H_kv, K, D]`, rotated already;
    the factor of the scores; and `as_ever`, which computes `[B, Q, H, D]` as the model would."""

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float
    as_ever: Callable[[], tuple[Tensor, Tensor | None]]

    def by_head(self, shared: Tensor) -> Tensor:
        """Keys or values `[B, H_kv, K, D]`, those that heads share once for each head, `[B, H, K, D]`."""
        return shared.repeat_interleave(self.query.shape[1] // shared.shape[1], dim=1)


Attend = Callable[[Computed], tuple[Tensor, Tensor | None]]


def require_plain_attention(model: PreTrainedModel, mitigation: str) -> None:
    """`PosgapError` unless every layer of `model` attends to all that was read, through transformers' interface, and no
    other mitigation computes its attention."""
    name = f"{name_of(model)}: {mitigation}"
    config: Any = model.config.get_text_config()
    if is_taken_over(model):
        raise PosgapError(f"{name}: another mitigation computes its attention already; remove that first")
    if "attention-buckets" in in_force(model):
        raise PosgapError(f"{name}: attention-buckets reads a prompt as rows of several bases; remove that first")
    if getattr(config, "attn_logit_softcapping", None):
        raise PosgapError(f"{name}: its attention caps its scores, which is not known here")
    kinds = _kinds(config) - {"full_attention"}
    if kinds & _WINDOWED:
        raise PosgapError(
            f"{name}: layers see a window of what was read alone, so that documents may lie outside of it"
        )
    if kinds:
        raise PosgapError(
            f"{name}: layers do something else than attend to all that was read ({', '.join(sorted(kinds))})"
        )
    attentions = _attentions(model)
    if not attentions:
        raise PosgapError(f"{name}: its layers are not one stack with an attention each")
    if any(not hasattr(_code_of(each), "ALL_ATTENTION_FUNCTIONS") for each in attentions):
        raise PosgapError(f"{name}: its attention is no separate function that could be replaced")
    if any("forward" in vars(each) for each in attentions):
        raise PosgapError(f"{name}: another mitigation has its attention read twice; remove that first")
    if any(getattr(each, "sinks", None) is not None for each in attentions):
        raise PosgapError(f"{name}: its attention has sinks beside the tokens, which are not known here")


def is_taken_over(model: PreTrainedModel) -> bool:
    """Whether a mitigation computes a model's attention."""
    return (model.config.get_text_config()._attn_implementation or "").startswith(_PREFIX)


def _kinds(config: Any) -> set[str]:
    """The kinds of layers that a model has, as transformers calls them."""
    if kinds := getattr(config, "layer_types", None):
        return set(kinds)
    windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return {"sliding_attention"} if windowed else {"full_attention"}


def _attentions(model: PreTrainedModel) -> list[nn.Module]:
    stacks = [child for child in model.get_decoder().children() if isinstance(child, nn.ModuleList)]
    layers = [layer for stack in stacks for layer in stack]
    return [each for layer in layers for each in layer.children() if type(each).__name__.endswith("Attention")]


def _code_of(module: nn.Module) -> Any:
    return sys.modules[type(module).__module__]


def take_over(
    model: PreTrainedModel, attend: Attend, before_forward: Callable[..., Any] | None = None
) -> Callable[[], None]:
    """Has `attend` compute the attention of all layers; returns what gives it back to the model's implementation.

    `before_forward(decoder, args, kwargs)` is called before each forward pass, as a hook of torch.
    """
    own = model.config.get_text_config()._attn_implementation
    name = f"{_PREFIX}own_{own}"
    AttentionInterface.register(name, _attention)
    if own in ALL_MASK_ATTENTION_FUNCTIONS:
        AttentionMaskInterface.register(name, ALL_MASK_ATTENTION_FUNCTIONS[own])
    attentions = _attentions(model)
    for layer, module in enumerate(attentions):
        setattr(module, _ATTRIBUTE, (attend, own, layer))
    model.set_attn_implementation(name)

    def undo() -> None:
        model.set_attn_implementation(own)
        for module in attentions:
            delattr(module, _ATTRIBUTE)

    if before_forward is None:
        return undo
    return all_of([model.get_decoder().register_forward_pre_hook(before_forward, with_kwargs=True).remove, undo])


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    attend, own, layer = getattr(module, _ATTRIBUTE)
    eager: Any = getattr(_code_of(module), "eager_attention_forward", None)
    compute = ALL_ATTENTION_FUNCTIONS.get_interface(own, eager)
    as_ever = partial(compute, module, query, key, value, attention_mask, scaling=scaling, **more)
    return attend(Computed(layer, query, key, value, scaling or query.shape[-1] ** -0.5, as_ever))


class Rotation:
    """Turns queries and keys by positions, as the model's own rotary embedding does.

    `PosgapError` unless every layer turns them so by the frequencies of one embedding, whatever the length.
    """

    def __init__(self, model: PreTrainedModel, mitigation: str):
        name = f"{name_of(model)}: {mitigation}"
        self.model = model
        if not hasattr(self.rotary, "inv_freq"):
            raise PosgapError(f"{name}: it has no rotary embedding of all its layers, whose positions could be moved")
        if RopeLengths.of(model.config.get_text_config()):
            raise PosgapError(f"{name}: the frequencies of its rotary embedding follow the length of what is read")
        for layer, (at_first, later) in enumerate(zip(*map(self._queries, (0, _FURTHER)))):
            turned = self(at_first, torch.full(at_first.shape[2:3], _FURTHER, device=at_first.device), layer)
            if (turned - later).norm() > 0.1 * later.norm():  # rounding in 16 bits is far below, another turn far above
                raise PosgapError(f"{name}: layer {layer} does not turn queries and keys as Llama does")

    @torch.no_grad()
    def _queries(self, position: int) -> list[Tensor]:
        """The queries of each layer `[1, H, 3, D]` for three tokens, the first at `position`."""
        seen: list[Tensor] = []

        def attend(computed: Computed) -> tuple[Tensor, Tensor | None]:
            seen.append(computed.query)
            return computed.as_ever()

        decoder: Any = self.model.get_decoder()
        ids = torch.arange(3, device=decoder.device)[None]
        give_back = take_over(self.model, attend)
        try:
            decoder(input_ids=ids, position_ids=ids + position, use_cache=False)
        finally:
            give_back()
        return seen

    @property
    def rotary(self) -> Any:
        """The embedding at present, which another mitigation may have put in place of the model's own."""
        return getattr(self.model.get_decoder(), "rotary_emb", None)

    @property
    def gain(self) -> float:
        """What the model's tables multiply rotated queries and keys by (YaRN's are not 1)."""
        return float(getattr(self.rotary, "attention_scaling", 1.0))

    def __call__(self, x: Tensor, positions: Tensor, layer: int) -> Tensor:
        """`x [..., S, D]`, rotated already, turned further by `positions [..., S]` in a layer."""
        angles = positions[..., None].float() * self.rotary.inv_freq.to(x.device)
        factors = factors_in_force(self.model)
        if factors is not None:
            angles = angles / factors[layer].to(x.device)
        half = angles.shape[-1]
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x[..., :half], x[..., half : 2 * half]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, x[..., 2 * half :]], dim=-1)
