"""Reads residual strengths and attention out of any transformers decoder: layers by structure, values by hooks."""

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig, PreTrainedModel
from transformers.masking_utils import sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from posgap.foundation.errors import BadModel
from posgap.models.loading import eager_attention
from posgap.rollout.encodings import alibi_slopes

Call = tuple[tuple, dict]  # positional and keyword arguments of a layer
# Gets the first query of a block, its attention [B, H, Q, N], which tokens it may attend to, [Q, N], and the values of
# all tokens by group of heads, [B, K, N, d]; None if the family's attention cannot be replaced.
Take = Callable[[int, Tensor, Tensor, Tensor | None], None]

WEIGHTS_AT_ONCE = 1 << 22  # attention weights of a block of queries, over a batch and all heads: 16 MiB in float32
_BLOCKS = "posgap_rollout_blocks"  # the name of our attention implementation
_TAKE = "_posgap_take"  # the attribute through which an attention module hands out its matrices
_OTHERWISE = 0.1  # of the last states' norm; a larger difference is another attention, not rounding
_ROUNDING = 0.02  # of a difference: allowed deviation that still counts as equal


@dataclass
class _Adding:
    """How a layer adds its attention's output to the residual stream: `last` is the module in the attention that writes
    it, and `reader` the first module behind the attention that reads the sum; None: the layer returns it."""

    last: nn.Module
    reader: nn.Module | None


@dataclass
class _Seen:
    """The record of hooks in a call of a layer: modules that wrote a stream [B, N, D] within the attention, in order,
    and the last one's output; what modules behind the attention read; the layer's result; and the tables that rotated
    the attention."""

    writers: list[nn.Module] = field(default_factory=list)
    written: Tensor | None = None
    projection: nn.Module | None = None  # the last of them that has parameters, and its input
    heads: Tensor | None = None
    read: dict[nn.Module, Tensor] = field(default_factory=dict)
    returned: Tensor | None = None
    tables: Any = None

    def at(self, reader: nn.Module | None) -> Tensor | None:
        return self.returned if reader is None else self.read.get(reader)


class LayerReading(NamedTuple):
    """The reading of a layer called again: the residual `strengths` [B, N], and what the projection of its attention
    was given by the `heads` for the last token, [B, H d]; None if it was given no such thing."""

    strengths: Tensor
    heads: Tensor | None


class Decoder:
    """The layers [L] with attention of a causal language model, and their attention modules; `numbers` [L] are their
    numbers, from 1, among all `n_all` layers. Hybrids also have layers that mix tokens without attention.

    It assumes that a layer reads the residual stream and adds its attention's output to it, in any scaling or
    normalisation. If a layer does not, it raises `PosgapError`.
    """

    def __init__(self, model: PreTrainedModel):
        self.model = model
        # Llama 4 without its pictures takes itself for its base.
        self.base = getattr(model, "model", model) if model.base_model is model else model.base_model
        config = model.config.get_text_config()
        self.n_all = config.num_hidden_layers
        self.n_heads = n_heads(model.config)
        self.numbers, self.layers, self.attentions = self._layers()
        self.n_layers = len(self.layers)
        self.adding: list[_Adding | None] = [None] * self.n_layers
        self.projections: list[nn.Module | None] = [None] * self.n_layers
        # RoPE's angle per token of each plane, by layer; empty if a layer rotates nothing, None if unknown.
        self.frequencies: list[list[float] | None] = [None] * self.n_layers

    @property
    def replaceable(self) -> bool:
        """Whether the family lets its attention be replaced by ours, which sees the values too."""
        return self.model._can_set_attn_implementation()

    def _layers(self) -> tuple[list[int], list[nn.Module], list[nn.Module]]:
        config = self.model.config.get_text_config()
        kinds = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or []
        for module in self.model.modules():
            if isinstance(module, nn.ModuleList) and len(module) == self.n_all:
                numbers = []
                layers = []
                attentions = []
                for number, layer in enumerate(module, start=1):
                    within = [part for part in layer.modules() if type(part).__name__.endswith("Attention")]
                    kind = kinds[number - 1] if len(kinds) == self.n_all else ""
                    if within and "linear" not in kind:  # linear attention has no matrix of weights
                        numbers.append(number)
                        layers.append(layer)
                        attentions.append(within[0])
                if numbers:
                    return numbers, layers, attentions
        raise BadModel(
            f"{type(self.model).__name__}: no list of {self.n_all} layers with attention modules, so there is nothing "
            "to measure; rollout measure reads decoders of transformers' usual structure"
        )

    def mixing(self) -> str:
        """Names in words what mixes tokens in the model besides the attention that is read; empty if nothing does."""
        words = []
        beside = []
        if self.n_layers < self.n_all:
            words.append(f"of {self.n_all} layers these have attention: {', '.join(map(str, self.numbers))}")
        for number, layer, attention in zip(self.numbers, self.layers, self.attentions):
            if nn.Conv1d in map(type, set(layer.modules()) - set(attention.modules())):
                beside.append(str(number))
        if beside:
            words.append(f"layers {', '.join(beside)} mix tokens beside their attention too")
        if words:
            words.append("what tokens pass on otherwise is in no rollout, but in the gradients")
        return "; ".join(words)

    @contextmanager
    def capturing(self) -> Iterator[None]:
        """Within the block the model computes its attention so that its matrices exist: a block of queries at a time if
        its family lets its attention be replaced, else whole."""
        if not self.replaceable:
            with eager_attention(self.model):
                yield
            return
        # Some families attend differently (to all, and not to the keys that they choose) under a name that they do not
        # know, so ours replaces a known one.
        name = "sdpa" if self.model._supports_sdpa else _BLOCKS
        before = self.model.config._attn_implementation
        AttentionMaskInterface.register(_BLOCKS, sdpa_mask)
        usual = ALL_ATTENTION_FUNCTIONS.get(name, _by_blocks)
        AttentionInterface.register(name, _by_blocks)
        self.model.set_attn_implementation(name)
        try:
            yield
        finally:
            self.model.set_attn_implementation(before)
            AttentionInterface.register(name, usual)

    @torch.no_grad()
    def record_calls(self, ids: Tensor) -> tuple[list[Call], Tensor]:
        """Runs the model on `ids [B, N]`. Returns the arguments that each layer was called with, and the last states
        `[B, N, D]`."""
        calls: list[Call] = []

        def before(layer: nn.Module, args: tuple, kwargs: dict) -> None:
            calls.append((args, kwargs))

        with ExitStack() as hooks:
            for layer in self.layers:
                hooks.callback(layer.register_forward_pre_hook(before, with_kwargs=True).remove)
            states = self.base(input_ids=ids, use_cache=False)[0]
        return calls, states

    @torch.no_grad()
    def require_usual_states(self, ids: Tensor, states: Tensor) -> None:
        """Raises `BadModel` unless the usual attention leads from `ids [B, N]` to the `states` of `record_calls`."""
        usual = self.base(input_ids=ids, use_cache=False)[0]
        off = float((states - usual).double().norm() / usual.double().norm())
        if not off < _OTHERWISE:
            raise BadModel(
                f"{type(self.model).__name__}: attention that returns its matrices changes the model's output (by "
                f"{100 * off:.0f} % of its last states), so its matrices would not be the model's"
            )

    @torch.no_grad()
    def projection(self, layer: int, call: Call) -> nn.Module | None:
        """Returns the module that projects the heads' output of a layer's attention into the stream."""
        if self.adding[layer] is None:
            self._find(layer, call, self._call_layer(layer, call, 1.0))
        return self.projections[layer]

    def writers(self) -> list[nn.Module]:
        """The modules that `projection` found, of all layers."""
        return [each for each in self.projections if each is not None]

    def _find(self, layer: int, call: Call, seen: _Seen) -> None:
        """Finds a layer's rotary embedding and its residual addition once, and keeps them."""
        self.frequencies[layer] = self._frequencies(layer, call, seen)
        self.adding[layer] = self._adding(layer, call, seen)
        self.projections[layer] = seen.projection

    @torch.no_grad()
    def attend(self, layer: int, call: Call, take: Take) -> LayerReading:
        """Calls a layer again with the arguments from `record_calls`, hands each block's attention [B, H, Q, N] to
        `take`, and returns residual strengths and the heads' output for the last token.

        The strength at a token is |a| / (|x| + |a|): a is the attention's contribution to the residual stream, and x
        the stream before it, both as the layer scales and normalises them. The sum is read at the layer's own use of
        it, with the attention's output and without. It leaves out everything else that the layer adds.
        """
        seen = self._call_layer(layer, call, 1.0, take)
        if self.adding[layer] is None:
            self._find(layer, call, seen)
        adding = self.adding[layer]
        assert adding is not None
        none = self._call_layer(layer, call, 0.0)
        whole = seen.at(adding.reader)
        without = none.at(adding.reader)
        assert whole is not None and without is not None
        a = (whole.float() - without.float()).norm(dim=-1)
        x = without.float().norm(dim=-1)
        heads = seen.heads
        if heads is not None:
            heads = None if heads.numel() % a.numel() else heads.reshape(*a.shape, -1)[:, -1]
        return LayerReading(a / (x + a), heads)

    def _adding(self, layer: int, call: Call, one: _Seen) -> _Adding:
        """Finds how the layer adds its attention to the stream, from calls with 0, 1 and 2 times the attention's
        output."""
        where = f"{type(self.model).__name__}, layer {self.numbers[layer]}"
        if not one.writers or one.written is None:
            raise BadModel(
                f"{where}: no module outputs the attention's update, so the residual strength cannot be measured"
            )
        whole_layer = self._call_layer(layer, call, 1.0, alone=False).written
        if whole_layer is None or not torch.allclose(one.written, whole_layer, rtol=_ROUNDING, atol=1e-3):
            raise BadModel(
                f"{where}: its layer changes the attention's input by more than a normalisation; rollout measure "
                "cannot read such a layer"
            )
        self.adding[layer] = _Adding(one.writers[-1], None)
        none = self._call_layer(layer, call, 0.0)
        two = self._call_layer(layer, call, 2.0)
        self.adding[layer] = None
        for reader in (*one.read, None):
            sums = [seen.at(reader) for seen in (none, one, two)]
            if any(each is None for each in sums):
                continue
            without, whole, twice = (each.double() for each in sums if each is not None)
            added = whole - without
            least = 8 * torch.finfo(self.model.dtype).eps * float(whole.norm())
            if float(added.norm()) <= least or float(without.norm()) <= least:
                continue  # it reads none of the attention's output, or nothing else
            off = _ROUNDING * float(added.norm()) + least
            linear = float((twice - whole - added).norm()) <= off
            normalised = float((twice - whole).norm()) <= off
            if linear or normalised:
                return _Adding(one.writers[-1], reader)
            break
        raise BadModel(
            f"{where}: its attention's output is not added to the residual stream; rollout measure reads only "
            "decoders with residual connections"
        )

    def _call_layer(self, layer: int, call: Call, times: float, take: Take | None = None, alone: bool = True) -> _Seen:
        """Calls a layer with `times` its attention's output; if that is to be `alone`, without anything else that it
        adds to the stream."""
        block = self.layers[layer]
        attention = self.attentions[layer]
        adding = self.adding[layer]
        args, kwargs = call
        shape = (args[0] if args else kwargs["hidden_states"]).shape  # of the stream, [B, N, D]
        blocks = _Blocks(take, shape, type(attention).__name__) if take else None
        hooks = _LayerHooks(attention, shape, blocks, adding.last if adding else None, times)
        if "output_attentions" in inspect.signature(block.forward).parameters:
            kwargs = kwargs | {"output_attentions": True}
        with hooks.attach(block, alone):
            output = block(*args, **kwargs)
        hooks.seen.returned = output[0] if isinstance(output, tuple | list) else output
        if blocks and blocks.queries != shape[-2]:
            raise BadModel(
                f"{type(attention).__name__}: returns no attention matrices, so rollout measure cannot read this model"
            )
        return hooks.seen

    def _frequencies(self, layer: int, call: Call, seen: _Seen) -> list[float] | None:
        """Returns a layer's RoPE angles per token for each plane, greatest first; none if it turns nothing, None if the
        model does not hand it the tables."""
        tables = seen.tables
        still: Any
        if isinstance(tables, Tensor) and tables.is_complex():
            cos = tables.real
            sin = tables.imag
            still = tables.abs() + 0 * tables
        elif isinstance(tables, tuple | list) and len(tables) == 2 and all(isinstance(each, Tensor) for each in tables):
            cos, sin = tables
            still = (torch.hypot(cos, sin), torch.zeros_like(sin))
        else:
            return None
        if cos.ndim < 2 or cos.shape[-2] < 2:
            return None
        rows: list[Tensor] = []  # the last block's last query's attention

        def keep_still(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
            return args, kwargs | {"position_embeddings": still}

        def last_query(first: int, weights: Tensor, seen: Tensor, values: Tensor | None) -> None:
            rows[:] = [weights[:, :, -1].clone()]  # a view would keep the whole block

        self._call_layer(layer, call, 1.0, last_query)
        turned = rows[-1]
        with ExitStack() as hooks:
            hooks.callback(self.attentions[layer].register_forward_pre_hook(keep_still, with_kwargs=True).remove)
            self._call_layer(layer, call, 1.0, last_query)
        if torch.equal(rows[-1], turned):
            return []
        angles = torch.atan2(sin.double(), cos.double()).reshape(-1, *cos.shape[-2:])[0]
        step = (angles[1] - angles[0]).remainder(2 * np.pi)
        half = len(step) // 2
        # Families lay out a plane's two columns in halves, or side by side, or write them once.
        if half and torch.equal(step[:half], step[half:]):
            step = step[:half]
        elif half and torch.equal(step[::2], step[1::2]):
            step = step[::2]
        return step.sort(descending=True).values.tolist()


class _Blocks:
    """Hands blocks of attention to `take`, checked: `queries` counts those that were handed over."""

    def __init__(self, take: Take, shape: torch.Size, name: str):
        self.take = take
        self.shape = shape
        self.name = name
        self.queries = 0

    def __call__(self, first: int, weights: Tensor, mask: Tensor | None = None, values: Tensor | None = None) -> None:
        n = self.shape[-2]
        weights = weights.float()
        if weights.shape[-1] != n or len(weights) != self.shape[0] or first + weights.shape[2] > n:
            return  # no weights of tokens on tokens
        sums = weights.sum(dim=-1)
        if float(weights.min()) < 0 or float(sums.max()) > 1 + _ROUNDING:
            raise BadModel(
                f"{self.name}: a token's attention is negative, or sums to {float(sums.max()):.2f} in place of "
                "1; rollout measure cannot read such a model"
            )
        seen = weights > 0 if mask is None else mask > torch.finfo(mask.dtype).min / 2
        self.take(first, weights, seen.flatten(0, 1).any(dim=0).expand(weights.shape[2:]), values)
        self.queries += weights.shape[2]


class _LayerHooks:
    """Hooks for one call of a layer that fill `seen` from streams of this `shape` [B, N, D].

    The call multiplies the output of `scaled` by `times`; attention that is returned whole goes to `blocks`.
    """

    def __init__(
        self, attention: nn.Module, shape: torch.Size, blocks: _Blocks | None, scaled: nn.Module | None, times: float
    ):
        self.attention = attention
        self.shape = shape
        self.blocks = blocks
        self.scaled = scaled
        self.times = times
        self.seen = _Seen()
        self.is_behind_attention = False

    @contextmanager
    def attach(self, layer: nn.Module, alone: bool) -> Iterator[None]:
        """Within the block the layer has the hooks; if attention is to be `alone`, its other parts make zeros."""
        within = set(self.attention.modules())
        with ExitStack() as hooks:
            for module in within:
                if _is_leaf(module):
                    hooks.callback(module.register_forward_hook(self._note_written).remove)
                setattr(module, _TAKE, self.blocks)
                hooks.callback(delattr, module, _TAKE)
            for module in set(layer.modules()) - within - {layer}:
                hooks.callback(module.register_forward_pre_hook(self._note_read, with_kwargs=True).remove)
            for module in _other_parts(layer, self.attention) if alone else ():
                hooks.callback(module.register_forward_hook(_nothing).remove)
            hooks.callback(self.attention.register_forward_pre_hook(self._note_tables, with_kwargs=True).remove)
            hooks.callback(self.attention.register_forward_hook(self._leave_attention).remove)
            yield

    def _note_tables(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        self.seen.tables = kwargs.get("position_embeddings")

    def _note_written(self, module: nn.Module, args: tuple, output: Any) -> Tensor | None:
        if not isinstance(output, Tensor) or output.numel() != self.shape.numel() or output.shape[-1] != self.shape[-1]:
            return None
        self.seen.writers.append(module)
        self.seen.written = output
        if not _passes(module):
            self.seen.projection = module
            self.seen.heads = args[0] if args and isinstance(args[0], Tensor) else None
        return self.times * output if module is self.scaled and self.times != 1 else None

    def _leave_attention(self, module: nn.Module, args: tuple, output: Any) -> None:
        self.is_behind_attention = True
        for part in output if isinstance(output, tuple | list) else ():
            if self.blocks and not self.blocks.queries and isinstance(part, Tensor) and part.ndim == 4:
                self.blocks(0, part)

    def _note_read(self, module: nn.Module, args: tuple, kwargs: dict) -> None:
        x = args[0] if args else kwargs.get("hidden_states")
        if self.is_behind_attention and isinstance(x, Tensor) and x.shape == self.shape:
            self.seen.read.setdefault(module, x.clone())


def _other_parts(layer: nn.Module, attention: nn.Module) -> list[nn.Module]:
    """Returns the modules beside a layer's attention that contribute to the stream; without its normalisations and
    their gates, and without modules that only hold others."""
    norms = set[nn.Module]()
    around = set[nn.Module]()
    for module in layer.modules():
        parts = set(module.modules())
        if "Norm" in type(module).__name__:
            norms |= parts
        if attention in parts:
            around.add(module)
    found = []
    for module in set(layer.modules()) - set(attention.modules()) - norms - {layer}:
        has_own_parameters = next(module.parameters(recurse=False), None) is not None and module not in around
        if (_is_leaf(module) or has_own_parameters) and not _passes(module):
            found.append(module)
    return found


def _is_leaf(module: nn.Module) -> bool:
    return next(module.children(), None) is None


def _by_blocks(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **more: Any
) -> tuple[Tensor, None]:
    """The family's own eager attention, a block of queries at a time; hands each block's matrices out."""
    eager: Any = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    if eager is None:
        raise BadModel(
            f"{type(module).__name__}: has no attention that returns its matrices, so rollout measure cannot "
            "read this model"
        )
    batch, heads, n = query.shape[:3]
    m = key.shape[2]
    rows = max(1, WEIGHTS_AT_ONCE // (batch * heads * key.shape[2]))
    outputs = []
    take = getattr(module, _TAKE, None)
    for first in range(0, n, rows):
        part = query[:, :, first : first + rows]
        mask = attention_mask
        if mask is None and getattr(module, "is_causal", True):
            at = torch.arange(first, first + part.shape[2], device=query.device)
            mask = (torch.arange(m, device=query.device) <= at[:, None] + (m - n))[None, None]
        elif mask is not None and mask.shape[-2] == n:
            mask = mask[..., first : first + rows, :]
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill(
                ~mask, torch.finfo(query.dtype).min
            )
        output, weights = eager(module, part, key, value, mask, **more)
        outputs.append(output)
        if take is not None:
            if more.get("s_aux") is not None:
                weights = weights * _left_by_sinks(output, weights, value)
            take(first, weights, mask, value)
    return torch.cat(outputs, dim=1), None


def _left_by_sinks(output: Tensor, weights: Tensor, value: Tensor) -> Tensor:
    """Returns the share [B, H, Q, 1] of each query's attention that tokens get, if a family (Granite's with windows)
    takes its sinks' part off the `output` [B, Q, H, d] and not off the `weights`; 1 if it takes it off the weights."""
    of_tokens = weights.float() @ value.float().repeat_interleave(weights.shape[1] // value.shape[1], dim=1)
    products = (output.transpose(1, 2).float() * of_tokens).sum(dim=3, keepdim=True)
    return (products / of_tokens.square().sum(dim=3, keepdim=True).clamp(min=1e-30)).clamp(0, 1)


def _nothing(module: nn.Module, args: tuple, output: Any) -> Any:
    """Zeros in place of all that a module made."""
    if isinstance(output, Tensor):
        return torch.zeros_like(output)
    return type(output)(_nothing(module, args, part) for part in output) if isinstance(output, tuple | list) else output


def _passes(module: nn.Module) -> bool:
    """Returns whether a module adds nothing of its own to the stream: it makes tables, or has no parameters (nor
    buffers, as quantised layers have them)."""
    if "Rotary" in type(module).__name__:
        return True
    return next(chain(module.parameters(), module.buffers()), None) is None


def n_heads(config: PretrainedConfig) -> int:
    """The number of attention heads of each layer; `PosgapError` for a model without attention."""
    heads = getattr(config.get_text_config(), "num_attention_heads", None)
    if heads:
        return heads
    raise BadModel(f"{config.model_type}: has no attention, so that there is nothing to measure")


def position_encoding(config: PretrainedConfig) -> dict:
    """A model's position encoding as `predict` takes it: its `kind` and, for ALiBi or RoPE, the parameters."""
    config = config.get_text_config()
    heads = n_heads(config)
    of_layer = getattr(config, "per_layer_config", None)
    # If layers have their own sizes, the first one's.
    size = getattr(of_layer[0] if of_layer else config, "head_dim", None) or config.hidden_size // heads
    nested = getattr(config, "attn_config", None)
    if config.model_type == "bloom" or getattr(config, "alibi", False) or getattr(nested, "alibi", False):
        # Falcon divides its biases by sqrt(d), together with the scores.
        divisor = np.sqrt(size) if config.model_type == "falcon" else 1.0
        return {"kind": "alibi", "slopes": (alibi_slopes(heads) / divisor).tolist()}
    rope = getattr(config, "rope_parameters", None)
    if rope:
        by_layer_type = next(iter(rope.values())) if isinstance(next(iter(rope.values())), dict) else rope
        share = by_layer_type.get("partial_rotary_factor", 1.0)
        return {"kind": "rope", "theta": float(by_layer_type["rope_theta"]), "head_size": int(share * size) // 2 * 2}
    if getattr(config, "rotary_dim", None):  # GPT-J, CodeGen
        return {"kind": "rope", "theta": 10000.0, "head_size": config.rotary_dim}
    return {"kind": "learned"}
