"""Permutation self-consistency: the same question over several orders of the documents, and a vote on the answer."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from posgap.mitigations.mitigation import Asked, PromptMitigation, Settings
from posgap.tasks.metrics import normalize

if TYPE_CHECKING:
    from posgap.tasks.examples import Document


class Orders(Settings):
    """How many random orders of its documents a question is asked in, all of them where there are no more."""

    orders: int = Field(5, ge=1, le=100)


def _shuffled(asked: Asked, settings: Orders) -> Sequence[Sequence["Document"]]:
    """Different orders, drawn for the example: at every placement its slots are shuffled in the same ways."""
    drawn: dict[tuple[int, ...], None] = {}
    draws = random.Random(f"permutation {asked.seed} {asked.example.id}")
    slots = list(range(len(asked.documents)))
    while len(drawn) < min(settings.orders, math.factorial(len(slots))):
        draws.shuffle(slots)
        drawn[tuple(slots)] = None
    return [[asked.documents[slot] for slot in order] for order in drawn]


def majority(responses: Sequence[str]) -> int:
    """The index of the first response of those that are given most often, as SQuAD normalises them; of several that are
    given as often, the one that came first. A response that says nothing is none, unless all are."""
    said = [normalize(response) for response in responses]
    votes = Counter(filter(None, said)) or Counter(said)
    ((most, _),) = votes.most_common(1)  # which keeps the order in which they came
    return said.index(most)


PERMUTATION = PromptMitigation(
    name="permutation",
    help="several random orders of the documents, and the answer that most of them give",
    level="decoding",
    source="permutation self-consistency: Tang et al. 2024, arXiv 2310.07712, section 2; votes as Wang et al. 2023, "
    "arXiv 2203.11171, since single answers have no ranking to aggregate",
    cost="a prompt and an answer for each order",
    served_by=("transformers", "vllm", "endpoints"),
    settings=Orders,
    orders=_shuffled,
    chosen=majority,
    tried=lambda: [Orders(orders=3), Orders(orders=5)],
)
