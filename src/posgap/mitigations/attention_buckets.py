"""Attention Buckets: several copies of a prompt, each read with another base of RoPE, answer together.

Attention rises and falls with the distance in waves that depend on the base, so that what stands in one copy's trough
stands nearer to another's peak. At every token each copy is weighted by how sure it is (Chen et al. 2023, section 3.2).
As in the authors' code, the weights are the softmax over copies of each one's highest logit, and what is averaged by
them are logits; the paper writes it for probabilities.

Copies are rows of one batch, one base after the other, and so are their cached keys: prompts must be read whole.
"""

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.mitigations.mitigation import ModelMitigation, Settings, TriedOn, Undo
from posgap.mitigations.rope_parameters import changed, changed_types, followed_rotaries, logits, require_bases
from posgap.models.patching import all_of, cached_length, name_of, replaced

if TYPE_CHECKING:
    from torch import Tensor, nn
    from transformers import PretrainedConfig, PreTrainedModel

NAME = "attention-buckets"
# The seven bases of the authors' script for questions over documents, of a model whose own is 10,000.
RATIOS = (1.0, 1.3, 1.6, 1.9, 2.2, 2.5, 2.8)
_ALIKE = 0.02  # of the logits' size: rounding of a larger batch is below, in 16 bits too


class Bases(Settings):
    """`bases` of RoPE (`rope_theta`), one for each copy of the prompt."""

    bases: Annotated[tuple[Annotated[float, Field(gt=1)], ...], Field(min_length=1)]


def _change(config: "PretrainedConfig", parameters: Mapping[str, Any], base: float) -> dict[str, Any]:
    require_bases(config, parameters, NAME)
    return {**parameters, "rope_theta": base}


def _apply(model: "PreTrainedModel", settings: Bases) -> Undo:
    from posgap.mitigations.own_attention import is_taken_over
    from posgap.models.layer_scaling import has_tables_by_head
    from posgap.models.rope_lengths import RopeLengths

    where = f"{name_of(model)}: {NAME}"
    if has_tables_by_head(model):
        raise PosgapError(f"{where}: its heads have factors of their own (ms-poe); take those back first")
    if RopeLengths.of(model.config.get_text_config()):
        raise PosgapError(f"{where}: the frequencies of its rotary embedding follow the length of what is read")
    if is_taken_over(model):
        raise PosgapError(f"{where}: another mitigation computes its attention, for one base alone; remove that first")
    if len(_own_bases(model.config)) > 1:
        raise PosgapError(f"{where}: its layers turn by several bases, and none of them is that of all that was read")
    rotaries = followed_rotaries(model, NAME, _change)
    tables, alone = [], []
    for base in settings.bases:
        undo = changed(model, NAME, rotaries, _change, base)
        tables.append([dict(rotary._buffers) for rotary in rotaries])
        alone.append(logits(model))
        undo()
    for table, wanted in zip(tables, alone):
        _Copies(model, rotaries, [table]).require_that_base(wanted, where)
    copies = _Copies(model, rotaries, tables)
    undo = copies.put()
    try:
        copies.require_alike(alone, where)
    except PosgapError:
        undo()
        raise
    return undo


class _Copies:
    """Reads each prompt as rows of several bases. `tables [N][R]` are the buffers of R rotary embeddings by base, and
    `rows` is how many prompts are read at present, None outside of the model's `forward`."""

    def __init__(self, model: "PreTrainedModel", rotaries: "list[nn.Module]", tables: list[list[dict[str, Any]]]):
        self.model, self.rotaries, self.tables = model, rotaries, tables
        self.forward = model.forward
        self.rows: int | None = None

    def put(self) -> Undo:
        """Takes the place of the model's `forward` and of those of its rotary embeddings."""

        @functools.wraps(self.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            return self.read(*args, **kwargs)

        with_tables = [self._with_tables(index, rotary) for index, rotary in enumerate(self.rotaries)]
        return all_of([replaced(self.model, "forward", forward), *with_tables])

    def require_that_base(self, alone: "Tensor", where: str) -> None:
        """`PosgapError` unless one copy gives what the model gives with its base `alone`, to the bit."""
        undo = self.put()
        try:
            copied = self._of_few_tokens()
        finally:
            undo()
        if not copied.equal(alone):
            raise PosgapError(f"{where}: its rotary embedding makes its frequencies anew at each call, not once")

    def require_alike(self, alone: "list[Tensor]", where: str) -> None:
        """`PosgapError` unless a copy of each base gives what the model gives with that base `alone`."""
        copied = self._of_few_tokens().unflatten(0, (len(self.tables), 1))
        if any((one - other).norm() > _ALIKE * other.norm() for one, other in zip(copied, alone)):
            raise PosgapError(f"{where}: its rotary embedding makes no tables row by row, which copies need")

    def _of_few_tokens(self) -> "Tensor":
        import torch

        with torch.no_grad():  # as `logits` asks: packed weights round otherwise than those that gradients go through
            return self._copied({"input_ids": _few(self.model)}).logits

    def read(self, *args: Any, **kwargs: Any) -> Any:
        """What the model's `forward` gives, its logits averaged over copies by how sure each is."""
        arguments = dict(zip(inspect.signature(self.forward).parameters, args)) | kwargs
        if arguments.get("labels") is not None:
            raise PosgapError(f"{NAME}: it answers, and has no loss to train by; remove it before training")
        out = self._copied(arguments)
        by_copy = out.logits.unflatten(0, (len(self.tables), -1))
        sure = by_copy.float().amax(-1, keepdim=True).softmax(0)
        out.logits = (sure * by_copy.float()).sum(0).to(by_copy.dtype)
        for name in ("hidden_states", "attentions"):  # those of the first base
            if getattr(out, name, None) is not None:
                out[name] = tuple(each[: len(out.logits)] for each in out[name])
        return out

    def _copied(self, arguments: dict[str, Any]) -> Any:
        import torch

        read = arguments["input_ids"] if arguments.get("input_ids") is not None else arguments["inputs_embeds"]
        rows, length = read.shape[:2]
        seen = cached_length(arguments)
        if arguments.get("position_ids") is None:
            arguments["position_ids"] = torch.arange(seen, seen + length, device=read.device)[None]
        arguments["position_ids"] = arguments["position_ids"].expand(rows, -1)
        for name in ("input_ids", "inputs_embeds", "attention_mask", "position_ids"):
            if isinstance(arguments.get(name), torch.Tensor) and len(arguments[name]) == rows:
                given = arguments[name]
                arguments[name] = given.repeat(len(self.tables), *[1] * (given.ndim - 1))
        self.rows = rows
        try:
            return self.forward(**{**arguments, "return_dict": True})
        finally:
            self.rows = None

    def _with_tables(self, index: int, rotary: "nn.Module") -> Undo:
        own = rotary.forward

        @functools.wraps(own)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if self.rows is None:
                return own(*args, **kwargs)
            kept, made = dict(rotary._buffers), []
            try:
                for tables in self.tables:
                    rotary._buffers.update(tables[index])
                    made.append(own(*args, **kwargs))
            finally:
                rotary._buffers.update(kept)
            return _by_row(made, self.rows)

        return replaced(rotary, "forward", forward)


def _by_row(made: Sequence[Any], rows: int) -> Any:
    """Of tables `[..., C * N * B, S, D]` made with each of N bases, the rows of that base, which are B of them, in each
    of C layers; tables come as they are, or in tuples."""
    import torch

    first = made[0]
    if first is None:
        return None
    if isinstance(first, tuple):
        return tuple(_by_row(each, rows) for each in zip(*made))
    base = torch.arange(first.shape[-3], device=first.device) // rows % len(made)
    mixed = first
    for number, other in enumerate(made[1:], 1):
        mixed = torch.where((base == number)[:, None, None], other, mixed)
    return mixed


def _few(model: "PreTrainedModel") -> "Tensor":
    import torch

    return torch.arange(3, device=model.device)[None]


def _base(config: "PretrainedConfig") -> float:
    """The model's own base; of the layers that see all that was read, where types of layers have one each."""
    return float(next(iter(_own_bases(config)), 10_000.0))


def _own_bases(config: "PretrainedConfig") -> set[float]:
    text: Any = config.get_text_config()
    parameters = getattr(text, "rope_parameters", None) or {}
    types = changed_types(text, parameters) if parameters else []
    by_type = [parameters[each] for each in types] if types else [parameters]
    return {each["rope_theta"] for each in by_type if "rope_theta" in each}


def _tried(tried_on: TriedOn) -> Sequence[Bases]:
    """Two, four and all of the authors' bases, in proportion to the model's own."""
    own = _base(tried_on.model.config)
    chosen = (RATIOS[::3][:2], RATIOS[::2], RATIOS)
    return [Bases(bases=tuple(round(own * ratio, 4) for ratio in ratios)) for ratios in chosen]


ATTENTION_BUCKETS = ModelMitigation(
    name=NAME,
    help="copies of the prompt with several bases of RoPE answer together, each by how sure it is",
    level="decoding",
    source="Chen et al. 2023, section 3.2, arXiv 2312.04455",
    cost="the prompt and every token of the response are read once for each base, and so many caches are kept",
    price=4,
    served_by=("transformers",),
    settings=Bases,
    apply=_apply,
    neutral=lambda config: Bases(bases=(_base(config),)),
    tried=_tried,
    whole=True,
)
