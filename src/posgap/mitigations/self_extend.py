"""Self-Extend: what is far away is told apart by groups of positions, so that no distance is larger than trained for.

Tokens nearer than a window are seen at their distance. Beyond it positions are divided by the group's size and rounded
down, and the grouped distances are moved so that they go on where the window ends (Jin et al. 2024, section 3.2,
algorithm 1; the shift is rounded down as there, while the authors' code leaves its fraction where the window is no
multiple of the group). The cache keeps keys as ever; grouped ones are made of them anew for each token.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.mitigations.mitigation import ModelMitigation, Settings, TriedOn, Undo

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

    from posgap.mitigations.own_attention import Computed, Rotation

NAME = "self-extend"
_QUERIES = 256  # rows of the attention matrix that exist at a time


class Groups(Settings):
    """Beyond `window` tokens positions are told apart in groups of `group`."""

    group: Annotated[int, Field(ge=1)]
    window: Annotated[int, Field(ge=1)]


def _apply(model: "PreTrainedModel", settings: Groups) -> Undo:
    from posgap.mitigations.own_attention import Rotation, require_plain_attention, take_over

    require_plain_attention(model, NAME)
    turn = Rotation(model, NAME)
    if settings.group == 1:
        return lambda: None

    def attend(computed: "Computed") -> "tuple[Tensor, Tensor | None]":
        if computed.key.shape[2] <= settings.window:
            return computed.as_ever()
        return _attended(computed, settings, turn), None

    return take_over(model, attend, before_forward=_require_no_padding)


def _require_no_padding(decoder: Any, args: tuple, kwargs: dict) -> None:
    """Groups are counted from a prompt's first token, so that its first column must be that."""
    mask: Any = kwargs.get("attention_mask")
    if getattr(mask, "ndim", 0) == 2 and not mask.all():
        raise PosgapError(f"{NAME}: prompts are read without padding, each in a batch of its own")


def _attended(computed: "Computed", settings: Groups, turn: "Rotation") -> "Tensor":
    """The attention `[B, Q, H, D]` of the last Q of K tokens."""
    import torch

    query = computed.query
    n_queries, n_keys = query.shape[2], computed.key.shape[2]
    columns = torch.arange(n_keys, device=query.device)
    rows = columns[n_keys - n_queries :]
    shift = settings.window - settings.window // settings.group
    key, value = computed.by_head(computed.key), computed.by_head(computed.value)
    far_query = turn(query, rows // settings.group + shift - rows, computed.layer)
    far_key = computed.by_head(turn(computed.key, columns // settings.group - columns, computed.layer))
    out = []
    for some in torch.arange(n_queries, device=query.device).split(_QUERIES):
        distance = rows[some, None] - columns
        near = query[:, :, some] @ key.transpose(2, 3)
        far = far_query[:, :, some] @ far_key.transpose(2, 3)
        scores = torch.where(distance < settings.window, near, far).float() * computed.scaling
        out.append(scores.masked_fill(distance < 0, -torch.inf).softmax(-1).to(value.dtype) @ value)
    return torch.cat(out, dim=2).transpose(1, 2).contiguous()


def _tried(tried_on: TriedOn) -> Sequence[Groups]:
    """Groups of 2 and 4, with windows of half and a quarter of the longest prompt, in whole groups."""
    longest = max(map(len, tried_on.prompts))
    return [Groups(group=group, window=max(longest // part // group, 1) * group) for group in (2, 4) for part in (2, 4)]


SELF_EXTEND = ModelMitigation(
    name=NAME,
    help="positions beyond a window are told apart in groups",
    level="positions",
    source="Jin et al. 2024, section 3.2, arXiv 2401.01325",
    cost="all scores twice, without fused kernels; every cached key turned at each token; no beginnings shared",
    price=3.5,
    served_by=("transformers",),
    settings=Groups,
    apply=_apply,
    neutral=lambda config: Groups(group=1, window=1),
    tried=_tried,
    whole=True,
    alone=True,
)
