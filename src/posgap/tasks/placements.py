"""Where the gold documents stand among the n documents of a prompt."""

from dataclasses import dataclass
from itertools import permutations

from posgap.errors import PosgapError
from posgap.tasks.examples import AnyExample, Document


@dataclass(frozen=True, order=True)
class Placement:
    """The 1-based positions of the gold documents, in the order of `Example.gold`, and n."""

    positions: tuple[int, ...]
    n_docs: int

    def __post_init__(self):
        if len(set(self.positions)) != len(self.positions):
            raise PosgapError(f"placement {self.positions}: two gold documents at one position")
        for position in self.positions:
            if not 1 <= position <= self.n_docs:
                raise PosgapError(f"position {position}: must lie in 1..{self.n_docs}, the number of documents")


def single_placements(n_docs: int, positions: list[int] | None = None) -> list[Placement]:
    """One gold document at each position asked for; at every one where none is."""
    return [Placement((position,), n_docs) for position in positions or range(1, n_docs + 1)]


def arrange(example: AnyExample, placement: Placement) -> list[Document]:
    """The n documents of a prompt: gold where the placement says, distractors in their order.

    Distractors keep their order at every placement, so that two prompts of one example differ
    in nothing but the gold document's position.
    """
    gold, n_docs = example.gold, placement.n_docs
    if len(gold) != len(placement.positions):
        raise PosgapError(
            f"example {example.id}: {len(gold)} gold documents for {len(placement.positions)} position(s)"
        )
    needed = n_docs - len(gold)
    if len(example.distractors) < needed:
        raise PosgapError(
            f"example {example.id}: {len(example.distractors)} distractors, but {n_docs} documents need {needed}"
        )
    documents = list(example.distractors[:needed])
    for position, document in sorted(zip(placement.positions, gold), key=lambda pair: pair[0]):
        documents.insert(position - 1, document)
    return documents


def all_placements(n_docs: int, n_gold: int) -> list[Placement]:
    """Every placement of `n_gold` gold documents among `n_docs`, in order of their positions."""
    return [Placement(positions, n_docs) for positions in permutations(range(1, n_docs + 1), n_gold)]
