"""Scaling of one channel of the hidden states that follows the position, for the attention of what is answered.

The causal mask alone writes positions into hidden states: some channels rise or fall with the position from layer to
layer, whatever is read (Yu et al. 2025, section 2.3, definition 2.1). Where one of them is scaled as queries and keys
are made, and left alone as values are, attention shifts between early and late tokens. Only what is answered looks so:
the prompt's last token, and every token of the response, by their own scaled queries at the scaled keys of all
tokens; every other token attends as ever (section 3.3). The cache keeps the scaled keys, as in the authors' code, so
that prompts must be read whole.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.mitigations.mitigation import ModelMitigation, Settings, TriedOn, Undo
from posgap.models.layout import layout_of
from posgap.models.patching import all_of, cached_length, name_of, replaced, without_cache

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PretrainedConfig, PreTrainedModel

    from posgap.models.layout import Layout

FACTORS = (0.5, 0.0, -0.5, -1.0)  # of the authors' grid, section 3.3
CHANNELS = 3  # that are tried, of the smoothest monotone ones
# The authors scale layers 10 to 25 of 32, and alike in other depths (table 4).
_FIRST, _LAST = 10 / 32, 25 / 32
# Of the positions, the first part is left out, since the first tokens draw attention whatever they are.
_SKIPPED_FOR_SHAPE, _SKIPPED_FOR_SMOOTHNESS = 0.3, 0.2
_WINDOW = 10


class Channel(Settings):
    """`channel` of the hidden states, as the attention of `layers` reads them, is multiplied by `factor`."""

    channel: Annotated[int, Field(ge=0)]
    factor: float
    layers: tuple[Annotated[int, Field(ge=0)], ...]


class _Attention(NamedTuple):
    """An attention, and its projection that makes values; of a fused one `value_rows [out]` says which outputs those
    are, None of one that makes nothing else."""

    module: "nn.Module"
    projection: "nn.Module"
    value_rows: "Tensor | None"


def _apply(model: "PreTrainedModel", settings: Channel) -> Undo:
    from posgap.mitigations.own_attention import is_taken_over

    layers = decoder_layers(model, "channel-scaling")
    name, width = name_of(model), model.config.get_text_config().hidden_size
    if settings.channel >= width:
        raise PosgapError(f"{name}: channel-scaling: hidden states have {width} channels, none is {settings.channel}")
    if is_taken_over(model):
        raise PosgapError(f"{name}: channel-scaling: another mitigation computes its attention; remove that first")
    if outside := [layer for layer in settings.layers if layer >= len(layers)]:
        raise PosgapError(f"{name}: channel-scaling: there are {len(layers)} layers, counted from 0, none {outside[0]}")
    found = [_attention(layers[layer], name) for layer in dict.fromkeys(settings.layers)]
    return all_of([_scaled(each, settings, layout_of(model)) for each in found])


def decoder_layers(model: "PreTrainedModel", mitigation: str) -> "nn.ModuleList":
    """The stack of a model's layers; `PosgapError` where it has none that is one list."""
    from torch import nn

    from posgap.models.layer_scaling import decoder_of

    n_layers = model.config.get_text_config().num_hidden_layers
    for child in decoder_of(model).children():
        if isinstance(child, nn.ModuleList) and len(child) == n_layers:
            return child
    raise PosgapError(f"{name_of(model)}: {mitigation}: its layers are not one stack")


def _attention(layer: "nn.Module", name: str) -> _Attention:
    """The layer's attention; `PosgapError` where it makes queries, keys and values in a way that is not known here."""
    import torch

    for module in layer.modules():
        parts: Any = module
        if not type(module).__name__.endswith("Attention"):  # linear attention has such projections too
            continue
        if all(hasattr(module, part) for part in ("q_proj", "k_proj", "v_proj")):
            return _Attention(module, parts.v_proj, None)
        for fused in ("query_key_value", "Wqkv"):
            if hasattr(module, fused):
                projection = getattr(parts, fused)
                rows = torch.zeros(projection.out_features, dtype=torch.bool)
                rows[_values(parts, torch.arange(projection.out_features)[None, None])] = True
                return _Attention(module, projection, rows)
    raise PosgapError(
        f"{name}: channel-scaling: {type(layer).__name__} has no attention that makes queries, keys and values of its "
        "hidden states by projections known here (q_proj, k_proj and v_proj, or one of Falcon, BLOOM, GPT-NeoX or MPT)"
    )


def _values(module: Any, rows: "Tensor") -> "Tensor":
    """Of the output `rows [1, 1, out]` of a fused projection, by number, those that are values."""
    if hasattr(module, "head_size"):  # GPT-NeoX: query, key and value of each head
        return rows.view(-1, 3, module.head_size)[:, 2].flatten()
    if hasattr(module, "_split_heads"):  # Falcon, in three layouts
        return module._split_heads(rows)[2].flatten()
    if hasattr(module, "_reshape"):  # BLOOM
        return module._reshape(rows)[2].flatten()
    return rows.chunk(3, dim=2)[2].flatten()  # MPT


def _scaled(attention: _Attention, settings: Channel, layout: "Layout") -> Undo:
    """Has an attention look at scaled hidden states for what is answered; returns what takes that back."""
    import torch

    module: Any = attention.module
    own, project = module.forward, attention.projection.forward
    # The states as they are, while the attention reads scaled ones; values are made of these.
    states: list[Tensor] = []

    def projected(read: "Tensor", *more: Any) -> "Tensor":
        if not states:
            return project(read, *more)
        if attention.value_rows is None:
            return project(states[-1], *more)
        return torch.where(attention.value_rows.to(read.device), project(states[-1]), project(read))

    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden = args[0] if args else kwargs["hidden_states"]
        scaled = hidden.clone()
        scaled[..., settings.channel] *= settings.factor
        seen = cached_length(kwargs, module.layer_idx)
        first = _first_answering(layout, seen, hidden.shape[1])
        if first and seen:
            raise PosgapError("channel-scaling: the prompt is read in pieces; it must be read whole")
        unscaled = own(*args, **without_cache(kwargs)) if first else None
        states.append(hidden)
        try:
            out = own(scaled, *args[1:], **kwargs) if args else own(**{**kwargs, "hidden_states": scaled})
        finally:
            states.pop()
        if unscaled is None:
            return out
        return (torch.cat([unscaled[0][:, :first], out[0][:, first:]], dim=1), *out[1:])

    return all_of([replaced(module, "forward", forward), replaced(attention.projection, "forward", projected)])


def _first_answering(layout: "Layout", seen: int, length: int) -> int:
    """The first row of `length` that answers, where `seen` tokens are cached: the prompt's last one, or the first of
    the response's."""
    prompt = layout.length if layout.length is not None else seen or length
    return min(max(0, prompt - 1 - seen), length) if seen < prompt else 0


def middle_layers(n_layers: int) -> tuple[int, ...]:
    """The layers, counted from 0, that are scaled in a model of so many."""
    return tuple(range(round(_FIRST * n_layers), min(round(_LAST * n_layers), n_layers - 1) + 1))


def positional_channels(states: "Tensor", n: int) -> list[int]:
    """The `n` channels of hidden states that follow the position best, the smoothest first.

    `states [L, S, D]` are the outputs of the layers over S positions, averaged over prompts. A channel follows the
    position in a layer where its least-squares cubic rises or falls throughout. Channels that do so in more than a
    quarter of the layers, in the same direction, are sorted by the least of the integrals of the squared second
    derivative (Yu et al. 2025, algorithm 1; as in the authors' code, of the curve scaled to 0 to 1, in those layers, of
    which the first two and the last are left out). Where too few do, those that do so in the most layers follow.
    """
    import torch

    inner = states[2:-1] if len(states) > 3 else states
    shape = inner[:, int(_SKIPPED_FOR_SHAPE * states.shape[1]) :]
    slopes = _cubic(shape).diff(dim=1)
    rising, falling = (slopes >= 0).all(1), (slopes <= 0).all(1)
    follows = torch.where(rising.sum(0) > falling.sum(0), rising, falling)
    rough = _roughness(inner[:, int(_SKIPPED_FOR_SMOOTHNESS * states.shape[1]) :])
    rough = torch.where(follows, rough, torch.inf).amin(0)
    layers = follows.sum(0)
    candidate = layers > len(states) // 4
    listed = zip(*(values.tolist() for values in (candidate, layers, rough)))
    keys = [(not ok, 0 if ok else -many, each) for ok, many, each in listed]
    return sorted(range(len(keys)), key=keys.__getitem__)[:n]


def _cubic(curves: "Tensor") -> "Tensor":
    """The least-squares cubic through each of the curves `[L, S, D]`, at the same positions."""
    import torch

    x = torch.linspace(-1, 1, curves.shape[1], dtype=torch.float64)[:, None] ** torch.arange(4)
    basis = torch.linalg.qr(x)[0]
    return basis @ (basis.T @ curves.double())


def _roughness(curves: "Tensor") -> "Tensor":
    """The sum of squared second differences `[L, D]` of each of the curves `[L, S, D]`, scaled to 0 to 1, and smoothed
    by a cubic through ten positions at a time where there are as many."""
    import torch
    from scipy.signal import savgol_filter

    low, high = curves.amin(1, keepdim=True), curves.amax(1, keepdim=True)
    scaled = (curves - low) / (high - low).clamp_min(1e-12)
    if scaled.shape[1] >= _WINDOW:
        scaled = torch.from_numpy(savgol_filter(scaled.numpy(), _WINDOW, 3, axis=1))
    return scaled.diff(n=2, dim=1).square().sum(1)


def _tried(tried_on: TriedOn) -> Sequence[Channel]:
    """The smoothest channels that follow the position over the prompts' common length, with the authors' factors."""
    import torch

    from posgap.models.layer_scaling import decoder_of

    length = min(map(len, tried_on.prompts))
    total: Any = 0
    with torch.inference_mode():
        for prompt in tried_on.prompts:
            ids = torch.tensor([list(prompt[:length])], device=tried_on.model.device)
            read = decoder_of(tried_on.model)(input_ids=ids, use_cache=False, output_hidden_states=True)
            states = read.hidden_states[1:]
            if any(each.ndim != 3 for each in states):
                raise PosgapError(
                    f"{name_of(tried_on.model)}: channel-scaling: a token has several hidden states in a layer, not one"
                )
            total = total + torch.cat(states).float()
    channels = positional_channels((total / len(tried_on.prompts)).cpu(), CHANNELS)
    layers = middle_layers(tried_on.model.config.get_text_config().num_hidden_layers)
    return [Channel(channel=channel, factor=factor, layers=layers) for channel in channels for factor in FACTORS]


def _neutral(config: "PretrainedConfig") -> Channel:
    return Channel(channel=0, factor=1.0, layers=middle_layers(config.get_text_config().num_hidden_layers))


CHANNEL_SCALING = ModelMitigation(
    name="channel-scaling",
    help="one channel of the hidden states that follows the position is scaled for the answer's attention",
    level="hidden states",
    source="Yu et al. 2025, section 3, arXiv 2406.02536",
    cost="the attention of half the layers a second time as the prompt is read, and prompts that share no beginning",
    price=1.4,
    served_by=("transformers",),
    settings=Channel,
    apply=_apply,
    neutral=_neutral,
    tried=_tried,
    whole=True,
)
