"""Where the documents stand in the prompt that a model reads, for the mitigations that must know it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def layout_of(model: "PreTrainedModel") -> Layout:
    """The one object that says what the model reads at present; who applies a mitigation keeps it, and looks into it
    at each pass."""
    if not hasattr(model, _ATTRIBUTE):
        setattr(model, _ATTRIBUTE, Layout())
    return getattr(model, _ATTRIBUTE)


@contextmanager
def reading(model: "PreTrainedModel", spans: Sequence[Span] = (), length: int | None = None) -> Iterator[None]:
    """Within the block the model reads one prompt, alone in its batch, whose documents stand at `spans`."""
    layout = layout_of(model)
    before = layout.spans, layout.length
    layout.spans, layout.length = spans, length
    try:
        yield
    finally:
        layout.spans, layout.length = before
