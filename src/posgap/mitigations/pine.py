"""PINE: a model that reads the documents of a prompt as a set, so that their order cannot matter.

Documents see each other whole, each only its own tokens causally. A token that looks at documents sees them at places
sorted by how much it has to do with them, the closest the most important; a document that looks stands last itself
(Wang et al. 2025, section 3.3, figure 2). So what is computed is the same function of the documents in any order (their
theorem 1), and as good or bad wherever the gold document stands: a bound for what the order costs.

A token turns its query towards each document by as much as that document is moved, which is the same as turning the
document's keys for each token and needs no copy of them. Cached keys stand where a last document would.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from posgap.mitigations.mitigation import ModelMitigation, Settings, TriedOn, Undo
from posgap.models.layout import layout_of
from posgap.models.patching import cached_length

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from posgap.mitigations.own_attention import Computed, Rotation
    from posgap.models.layout import Span


class NoChoice(Settings):
    """Nothing can be chosen."""


@dataclass
class _Plan:
    """Where documents stand: `first` is their first column and `ends` those after their last tokens, one after the
    other without a gap; `positions [K]` is where each of the prompt's tokens stands as a key, documents at the end of
    all documents. `free_keys` are, for each layer that has read them, the documents' keys without positions."""

    first: int
    ends: "Sequence[int]"
    positions: "Tensor"
    free_keys: "dict[int, Tensor]" = field(default_factory=dict)

    @property
    def end(self) -> int:
        return self.ends[-1]

    def lengths(self) -> list[int]:
        return [end - start for start, end in zip((self.first, *self.ends), self.ends)]


def segments(ids: Sequence[int], spans: "Sequence[Span]") -> tuple[int, list[int]]:
    """The first column of the documents, and the ends of each, where what stands between two (a separator, the next
    one's number) belongs to the later one. To the first one belongs what stands before it as before the second, where
    at least half of those tokens are the same."""
    between = ids[spans[0][1] : spans[1][0]]
    before = ids[max(0, spans[0][0] - len(between)) : spans[0][0]]
    alike = len(before) == len(between) and 2 * sum(a == b for a, b in zip(before, between)) >= len(between)
    return spans[0][0] - (len(between) if alike else 0), [end for _, end in spans]


def _plan(ids: Sequence[int], spans: "Sequence[Span]") -> _Plan:
    import torch

    first, ends = segments(ids, spans)
    positions = torch.arange(len(ids))
    for start, end in zip((first, *ends), ends):
        positions[start:end] += ends[-1] - end
    return _Plan(first, ends, positions)


def _apply(model: "PreTrainedModel", settings: NoChoice) -> Undo:
    from posgap.mitigations.own_attention import Rotation, require_plain_attention, take_over

    require_plain_attention(model, "pine")
    reader = _Reader(layout_of(model), Rotation(model, "pine"))
    return take_over(model, reader.attend, before_forward=reader.places)


class _Reader:
    """Reads one prompt after the other, and the response to it."""

    def __init__(self, layout: Any, rotation: "Rotation"):
        self.layout, self.rotation = layout, rotation
        self.plan: _Plan | None = None
        self.seen = 0

    def places(self, decoder: Any, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        """Gives documents their positions, before the decoder reads."""
        ids: Any = args[0] if args else kwargs.get("input_ids")
        self.seen = cached_length(kwargs)
        if len(self.layout.spans) < 2:
            self.plan = None
            return None
        self.layout.require_whole("pine", ids, self.seen)
        if self.seen:
            return None
        self.plan = _plan(ids[0].tolist(), self.layout.spans)
        return args, {**kwargs, "position_ids": self.plan.positions[None].to(decoder.device)}

    def attend(self, computed: "Computed") -> "tuple[Tensor, Tensor | None]":
        if self.plan is None:
            return computed.as_ever()
        return _attended(computed, self.plan, self.seen, self.rotation), None


def _attended(computed: "Computed", plan: _Plan, seen: int, turn: "Rotation") -> "Tensor":
    """The attention `[1, Q, H, D]` of the tokens from column `seen` on."""
    import torch

    layer, query = computed.layer, computed.query[0] * computed.scaling
    key, value = (computed.by_head(shared)[0] for shared in (computed.key, computed.value))
    columns = torch.arange(key.shape[1], device=query.device)
    rows = columns[seen:]
    if layer not in plan.free_keys:
        documents = slice(plan.first, plan.end)
        places = -plan.positions[documents].to(query.device)
        plan.free_keys[layer] = turn(computed.key[0, :, documents], places, layer)
    shifts = _shifts(query, computed.by_head(plan.free_keys[layer][None])[0], plan, seen, turn, layer)
    scores = query.new_empty(*query.shape[:2], len(columns))
    for outside in (slice(0, plan.first), slice(plan.end, None)):
        scores[..., outside] = query @ key[:, outside].transpose(1, 2)
    for document, (start, end) in enumerate(zip((plan.first, *plan.ends), plan.ends)):
        turned = turn(query, shifts[..., document], layer)
        scores[..., start:end] = turned @ key[:, start:end].transpose(1, 2)
    inside = (columns >= plan.first) & (columns < plan.end)
    of = torch.bucketize(columns, torch.tensor(plan.ends, device=query.device), right=True)
    others = inside[rows][:, None] & inside & (of[rows][:, None] != of)
    visible = (columns <= rows[:, None]) | others
    scores = scores.masked_fill_(~visible, -torch.inf).softmax(-1, dtype=torch.float32)
    return (scores.to(value.dtype) @ value).transpose(0, 1)[None].contiguous()


def _shifts(query: "Tensor", free_key: "Tensor", plan: _Plan, seen: int, turn: "Rotation", layer: int) -> "Tensor":
    """How far each document is moved away from the end of the documents, `[H, Q, n]`, for each token that looks.
    `free_key [H, K, D]` are the documents' keys without positions."""
    import torch

    device = query.device
    lengths = torch.tensor(plan.lengths(), device=device)
    n_docs = len(lengths)
    of = torch.repeat_interleave(lengths)  # the document of each of their tokens
    belongs = torch.nn.functional.one_hot(of, n_docs).float()
    positions = torch.arange(seen, seen + query.shape[1], device=device)
    known = min(len(plan.positions), seen + query.shape[1])
    if seen < known:
        positions[: known - seen] = plan.positions[seen:known].to(device)
    # Importance is that of queries and keys without positions.
    free = turn(query, -positions, layer) / turn.gain**2
    shifts = torch.zeros(*query.shape[:2], n_docs, device=device)
    first, end = max(0, plan.first - seen), max(0, plan.end - seen)
    scores = (free @ free_key.transpose(1, 2)).float()
    after = scores[:, end:].softmax(-1) @ belongs / lengths
    shifts[:, end:] = _moved(after, lengths)
    if end > first:
        others = scores[:, first:end].masked_fill_(of[:, None] == of, -torch.inf).softmax(-1)
        among = belongs.T @ (others @ belongs) / lengths
        among = among.masked_fill(torch.eye(n_docs, dtype=torch.bool, device=device), torch.inf)
        shifts[:, first:end] = _moved(among, lengths)[:, of]
    return shifts


def _moved(importance: "Tensor", lengths: "Tensor") -> "Tensor":
    """How many tokens of more important documents stand behind each document `[..., n]`."""
    order = importance.argsort(dim=-1, descending=True, stable=True)
    sorted_lengths = lengths[order]
    return (sorted_lengths.cumsum(-1) - sorted_lengths).gather(-1, order.argsort(-1)).float()


def _tried(tried_on: TriedOn) -> Sequence[NoChoice]:
    return [NoChoice()]


PINE = ModelMitigation(
    name="pine",
    help="the documents are read as a set: each sees all others, sorted by importance, whatever their order",
    level="attention",
    source="Wang et al. 2025, section 3.3, arXiv 2407.01100",
    cost="a turn of every query for each document, attention without fused kernels, and no beginnings shared",
    price=6,
    served_by=("transformers",),
    settings=NoChoice,
    apply=_apply,
    neutral=lambda config: None,
    tried=_tried,
    spans=True,
)
