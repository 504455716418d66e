"""Attention sorting: documents are read in the order of the attention that the model pays to them, the most last."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from posgap.mitigations.mitigation import Asked, PromptMitigation, Settings

if TYPE_CHECKING:
    from posgap.tasks.examples import Document


class Rounds(Settings):
    """How often documents are sorted, each time by the attention that they get in the order of the time before."""

    rounds: int = Field(1, ge=1, le=20)


def _sorted(asked: Asked, settings: Rounds) -> Sequence[Sequence["Document"]]:
    assert asked.attention, "needs_attention says that it is there"
    documents = list(asked.documents)
    for _ in range(settings.rounds):
        attention = asked.attention(documents)
        # Of documents with equal attention the one that stood first stays first.
        documents = [documents[i] for i in sorted(range(len(documents)), key=lambda i: attention[i])]
    return [documents]


ATTENTION_SORTING = PromptMitigation(
    name="attention-sorting",
    help="the documents in the order of the attention that the model pays to them, the most last",
    level="prompt",
    source="Peysakhovich and Lerer 2023, arXiv 2310.01427, section 4",
    cost="the prompt is read once more in each round",
    served_by=("transformers",),
    settings=Rounds,
    orders=_sorted,
    chosen=lambda responses: 0,
    tried=lambda: [Rounds(rounds=1), Rounds(rounds=2)],
    needs_attention=True,
)
