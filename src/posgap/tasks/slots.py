"""How the items of an example take the slots of a prompt: documents their positions, options their letters."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from posgap.foundation.errors import PosgapError
from posgap.tasks.examples import AnyExample, Document
from posgap.tasks.placements import Placement, category, spread_placements


def insert_gold(example: AnyExample, placement: Placement, shuffle: int = 0) -> list[Document]:
    """The n documents of a prompt, with the gold documents at the placement's positions.

    Distractors have the same order at every placement, so that two prompts of one example differ only in the gold
    documents' positions. Their order is the example's, or, for a `shuffle` other than 0, a random order with that seed.
    Raises `PosgapError` if the example has too few documents for the placement.
    """
    gold = example.gold
    if len(gold) != len(placement.positions):
        raise PosgapError(
            f"example {example.id}: {len(gold)} gold documents for {len(placement.positions)} position(s)"
        )
    others = example.distractors
    needed = placement.n_docs - len(gold)
    if len(others) < needed:
        raise PosgapError(
            f"example {example.id}: {len(others)} distractors, but {placement.n_docs} documents need {needed}; give "
            f"n_docs of at most {placement.n_docs - needed + len(others)}"
        )
    documents = shuffle_documents(others[:needed], example, shuffle)
    for position, document in sorted(zip(placement.positions, gold)):
        documents.insert(position - 1, document)
    return documents


def rotate_items(example: AnyExample, placement: Placement, shuffle: int = 0) -> list[Document]:
    """Returns the n items of a prompt, rotated until the item that matters is at the placement's position.

    So a sweep of all positions puts every item in every slot once, and an attractive item does not look like a
    preference for a slot. `shuffle` and errors are as in `insert_gold`.
    """
    first = insert_gold(example, Placement((1,) * len(placement.positions), placement.n_docs), shuffle)
    turns = placement.positions[0] - 1
    return first[len(first) - turns :] + first[: len(first) - turns]


def shuffle_documents(documents: Sequence[Document], example: AnyExample, shuffle: int) -> list[Document]:
    """An example's documents in a random order with the seed `shuffle`; 0: in their own."""
    documents = list(documents)
    if shuffle:
        random.Random(f"{shuffle} {example.id}").shuffle(documents)
    return documents


@dataclass(frozen=True)
class Slots:
    """How the items of an example take the slots of a prompt.

    `arrange(example, placement, shuffle)` says which item stands in each slot. `swept(n_docs, n_gold)` are a sweep's
    default placements. `category(positions)` is the group that a placement is shown in, empty if there is only one. A
    position can stand for a group `of_any_number` of gold documents. `as_given(example, n_docs)` is the data's original
    order; None if there is none.
    """

    arrange: Callable[[AnyExample, Placement, int], list[Document]]
    swept: Callable[[int, int], list[Placement]] = spread_placements
    category: Callable[[Sequence[int]], str] = category
    of_any_number: bool = False
    as_given: Callable[[AnyExample, int], list[Document]] | None = None


INSERTED = Slots(insert_gold)
ROTATED = Slots(rotate_items)
