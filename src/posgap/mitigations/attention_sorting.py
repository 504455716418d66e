"""Attention sorting: documents are read in the order of the attention that the model pays to them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from posgap.mitigations.mitigation import Asked, PromptMitigation, Settings

if TYPE_CHECKING:
    from posgap.tasks.examples import Document


class Rounds(Settings):
    """How often documents are sorted, each time by the attention that they get in the order of the time before, and
    where the most attended stand: `last`, or `first` for a model that reads the beginning best."""

    rounds: int = Field(1, ge=1, le=20)
    most: Literal["last", "first"] = "last"


def _sorted(asked: Asked, settings: Rounds) -> Sequence[Sequence["Document"]]:
    assert asked.attention, "needs_attention says that it is there"
    documents, sign = list(asked.documents), 1 if settings.most == "last" else -1
    for _ in range(settings.rounds):
        attention = asked.attention(documents)
        # Of documents with equal attention the one that stood first stays first.
        documents = [documents[i] for i in sorted(range(len(documents)), key=lambda i: sign * attention[i])]
    return [documents]


ATTENTION_SORTING = PromptMitigation(
    name="attention-sorting",
    help="the documents in the order of the attention that the model pays to them",
    level="prompt",
    source="Peysakhovich and Lerer 2023, arXiv 2310.01427, and the authors' code, github.com/adamlerer/synthwiki",
    cost="the prompt is read once more in each round",
    served_by=("transformers",),
    settings=Rounds,
    orders=_sorted,
    chosen=lambda responses: 0,
    tried=lambda: [Rounds(), Rounds(rounds=2), Rounds(most="first")],
    needs_attention=True,
)
