"""Attention calibration: what is answered attends to documents by their relevance, without what their place adds.

The attention that a document gets is taken as the sum of its relevance and of a bias of its place. A dummy document at
the same place gets that bias too, so that the difference of both is the relevance, but for a constant (Hsieh et al.
2024, section 3, equations 2 to 5). In the last layers the attention to documents is then shared out anew: document k
gets, a token, in proportion to softmax(relevance / temperature), its tokens among themselves as before, all documents
together as much as before (section 4.1). It is done for the prompt's last token and for those of the response.

The authors have released no code. Where the paper leaves a choice: attention for the relevance is averaged over all
layers, heads and tokens of a document, from the prompt's last token; it is shared out in each head by itself; a dummy
document is one token, repeated as often as the document has tokens, so that all others stay where they were.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.mitigations.mitigation import ModelMitigation, Settings, TriedOn, Undo
from posgap.models.layout import layout_of
from posgap.models.patching import cached_length, name_of

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PretrainedConfig, PreTrainedModel

    from posgap.mitigations.own_attention import Computed
    from posgap.models.layout import Layout, Span

# The paper's is 5e-5, for prompts of some 3,000 tokens; of shorter ones a token gets more attention.
TEMPERATURES = (5e-5, 5e-4, 5e-3)
_ROWS = 8  # prompts with a dummy document that are read together


class Calibration(Settings):
    """The last `last_layers` layers share out attention by softmax(relevance / `temperature`); `dummy` is the token id
    of which dummy documents are made."""

    temperature: Annotated[float, Field(gt=0)] = TEMPERATURES[0]
    last_layers: Annotated[int, Field(ge=0)]
    dummy: Annotated[int, Field(ge=0)]


def _apply(model: "PreTrainedModel", settings: Calibration) -> Undo:
    from posgap.mitigations.own_attention import require_plain_attention, take_over

    require_plain_attention(model, "calibration")
    config, name = model.config.get_text_config(), name_of(model)
    if settings.last_layers > config.num_hidden_layers:
        raise PosgapError(f"{name}: calibration: it has {config.num_hidden_layers} layers, not {settings.last_layers}")
    if settings.dummy >= config.vocab_size:
        raise PosgapError(f"{name}: calibration: its vocabulary has no token {settings.dummy}")
    if not settings.last_layers:
        return lambda: None
    reader = _Reader(layout_of(model), settings, config.num_hidden_layers)
    return take_over(model, reader.attend, before_forward=reader.measure)


class _Reader:
    """Reads one prompt after the other, and the response to it.

    `shares [n]` are what documents get, a token; None where there are fewer than two. `measured`, while dummy documents
    are read, takes each layer's attention to documents `[B, n]`.
    """

    def __init__(self, layout: "Layout", settings: Calibration, n_layers: int):
        self.layout, self.settings, self.first_layer = layout, settings, n_layers - settings.last_layers
        self.shares: Tensor | None = None
        self.measured: list[Tensor] | None = None
        self.spans: Sequence[Span] = ()
        self.seen = self.prompt = 0

    def measure(self, decoder: Any, args: tuple, kwargs: dict) -> None:
        """Measures the documents' relevance before a prompt is read."""
        if self.measured is not None:
            return
        self.seen = cached_length(kwargs)
        if len(self.layout.spans) < 2:
            self.shares = None
            return
        ids: Any = args[0] if args else kwargs.get("input_ids")
        self.layout.require_whole("calibration", ids, self.seen)
        if self.seen:
            return
        self.spans, self.prompt = self.layout.spans, self.layout.length or ids.shape[1]
        self.shares = (self._relevance(decoder, ids[:, : self.prompt]) / self.settings.temperature).softmax(-1)

    def _relevance(self, decoder: Any, ids: "Tensor") -> "Tensor":
        """The relevance `[n]` of the documents of a prompt `[1, S]`, but for a constant."""
        import torch

        rows = ids.repeat(1 + len(self.spans), 1)
        for row, (start, end) in zip(rows[1:], self.spans):
            row[start:end] = self.settings.dummy
        attention = []
        try:
            for some in rows.split(_ROWS):
                self.measured = []
                with torch.no_grad():
                    decoder(input_ids=some, use_cache=False)
                attention.append(torch.stack(self.measured).mean(0))
        finally:
            self.measured = None
        (own, *_), dummies = torch.cat(attention).split([1, len(self.spans)])
        return own - dummies.diagonal()

    def attend(self, computed: "Computed") -> "tuple[Tensor, Tensor | None]":
        import torch

        if self.measured is not None:
            self.measured.append(_per_token(_weights(computed, computed.key.shape[2] - 1), self.spans)[:, :, 0].mean(1))
        out, weights = computed.as_ever()
        if self.measured is not None or self.shares is None or computed.layer < self.first_layer:
            return out, weights
        first = max(self.prompt - 1, self.seen)
        shared = _shared_out(_weights(computed, first), self.spans, self.shares)
        answered = (shared.to(computed.value.dtype) @ computed.by_head(computed.value)).transpose(1, 2)
        return torch.cat([out[:, : first - self.seen], answered], dim=1), None


def _weights(computed: "Computed", first: int) -> "Tensor":
    """The attention `[B, H, Q, K]` of the tokens from column `first` on."""
    import torch

    columns = torch.arange(computed.key.shape[2], device=computed.key.device)
    query = computed.query[:, :, computed.query.shape[2] - (len(columns) - first) :]
    scores = (query @ computed.by_head(computed.key).transpose(2, 3)).float() * computed.scaling
    return scores.masked_fill(columns > columns[first:, None], -torch.inf).softmax(-1)


def _per_token(weights: "Tensor", spans: "Sequence[Span]") -> "Tensor":
    """The attention `[..., n]` that a token of each document gets on average, of `weights [..., K]`."""
    import torch

    return torch.stack([weights[..., start:end].mean(-1) for start, end in spans], dim=-1)


def _shared_out(weights: "Tensor", spans: "Sequence[Span]", shares: "Tensor") -> "Tensor":
    """`weights [..., K]` in which the documents' tokens get in proportion to `shares [n]`, and in all what they had."""
    import torch

    lengths = torch.tensor([end - start for start, end in spans], device=weights.device)
    own = _per_token(weights, spans)
    wanted = shares * (own * lengths).sum(-1, keepdim=True) / (shares * lengths).sum()
    shared = weights.clone()
    for document, (start, end) in enumerate(spans):
        # Of a document that gets nothing there is nothing to share out in proportion, so its tokens get alike.
        had, gets = own[..., document, None], wanted[..., document, None]
        shared[..., start:end] = torch.where(had > 0, weights[..., start:end] / had * gets, gets)
    return shared


def _tried(tried_on: TriedOn) -> Sequence[Calibration]:
    """The last half of the layers, as in the paper, some temperatures, and the most frequent token as dummy."""
    from collections import Counter

    ((dummy, _),) = Counter(token for prompt in tried_on.prompts for token in prompt).most_common(1)
    layers = (tried_on.model.config.get_text_config().num_hidden_layers + 1) // 2
    return [Calibration(temperature=each, last_layers=layers, dummy=dummy) for each in TEMPERATURES]


def _neutral(config: "PretrainedConfig") -> Calibration:
    return Calibration(last_layers=0, dummy=0)


CALIBRATION = ModelMitigation(
    name="calibration",
    help="the answer's attention to documents goes by their relevance, without what their place adds",
    level="attention",
    source="Hsieh et al. 2024, sections 3 and 4.1, arXiv 2406.16008",
    cost="the prompt is read once more, and once more for each document, before it is answered",
    price=20,
    served_by=("transformers",),
    settings=Calibration,
    apply=_apply,
    neutral=_neutral,
    tried=_tried,
    spans=True,
)
