"""Two relevant documents with a distance between them, as in LongPiBench (Tian et al. 2024): how accuracy depends on
where they begin, and on how far apart they stand."""

from collections.abc import Sequence
from itertools import pairwise, product

from posgap.foundation.errors import PosgapError
from posgap.tasks.placements import Placement, spaced_positions
from posgap.tasks.slots import Slots, insert_gold
from posgap.tasks.task import Task, search_results

FIRSTS, DISTANCES = 5, 4  # of a grid that is not told which: first positions, and distances
CATEGORY = "distance "


def distance(positions: Sequence[int]) -> int:
    """How many slots further on the next of the positions is, where that is the same for all of them; otherwise 0."""
    steps = {after - before for before, after in pairwise(positions)}
    return steps.pop() if len(steps) == 1 and min(steps) > 0 else 0


def distance_category(positions: Sequence[int]) -> str:
    """ "distance 4" where every gold document stands four slots after the one before it; "uneven" for others."""
    step = distance(positions)
    return f"{CATEGORY}{step}" if step else "uneven"


def grid(n_docs: int, n_gold: int) -> list[Placement]:
    """Placements of two gold documents at every first position with every distance, so that neither is confounded with
    the other.

    There are up to four distances, from 1 to half of the prompt, and up to five first positions from which all of
    these fit. Raises `PosgapError` where the documents are too few for two of either.
    """
    farthest = n_docs // 2
    last = n_docs - farthest
    if farthest < 2 or last < 2:
        raise PosgapError(
            f"n_docs={n_docs}: too few for two gold documents at two distances; give 4 or more, or name the placements "
            "(--positions)"
        )
    pairs = product(spaced_positions(farthest, DISTANCES), spaced_positions(last, FIRSTS))
    return [Placement((first, first + step), n_docs) for step, first in pairs]


SPANS = Task(
    name="spans",
    help="a question that rests on two documents, at several distances",
    template=(
        "Answer the question using only the documents below; some of them are irrelevant. The answer rests on more "
        "than one document.\n\n{documents}\n\nQuestion: {question}\nAnswer:"
    ),
    render=search_results,
    metric="all_of",
    max_new_tokens=100,
    n_gold=2,
    slots=Slots(insert_gold, grid, distance_category),
    synthetic="spans",
)
