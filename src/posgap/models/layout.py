"""Where the documents stand in the prompt that a model reads, for the mitigations that must know it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from posgap.foundation.errors import PosgapError

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

_ATTRIBUTE = "_posgap_layout"
# The first column of a document among the prompt's tokens, and the one after its last.
Span = tuple[int, int]


@dataclass
class Layout:
    """What a model is told of the prompt that it reads: the `spans` of its documents, in their order, and `length`, the
    number of its tokens. Whatever follows those is the response. None where nobody says: all that is read at once is
    then the prompt."""

    spans: Sequence[Span] = ()
    length: int | None = None

    def require_whole(self, mitigation: str, ids: "Tensor | None", seen: int) -> None:
        """`PosgapError` unless the prompt is read at once, alone in its batch: `ids [1, S]`, where `seen` tokens were
        read before."""
        if ids is None or len(ids) != 1:
            raise PosgapError(f"{mitigation}: prompts are read by their token ids, each in a batch of its own")
        prompt = max(self.length or 0, *(end for _, end in self.spans))
        if seen < prompt and (seen or ids.shape[1] < prompt):
            raise PosgapError(f"{mitigation}: the prompt is read in pieces; it must be read whole")


def layout_of(model: "PreTrainedModel") -> Layout:
    """The one object that says what the model reads at present; who applies a mitigation keeps it, and looks into it
    at each pass."""
    if not hasattr(model, _ATTRIBUTE):
        setattr(model, _ATTRIBUTE, Layout())
    return getattr(model, _ATTRIBUTE)


@contextmanager
def during_forward(model: "PreTrainedModel", spans: Sequence[Span] = (), length: int | None = None) -> Iterator[None]:
    """Within the block the model reads one prompt, alone in its batch, whose documents stand at `spans`."""
    layout = layout_of(model)
    before = layout.spans, layout.length
    layout.spans, layout.length = spans, length
    try:
        yield
    finally:
        layout.spans, layout.length = before
