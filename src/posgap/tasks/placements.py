"""Placements: the positions of the gold documents among the n documents of a prompt."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from posgap.foundation.errors import PosgapError
from posgap.tasks.positions import format_positions, parse_positions, parse_shard

CATEGORIES = ("connected", "disconnected", "reversed")


@dataclass(frozen=True, order=True)
class Placement:
    """The 1-based positions of the gold documents, in the order of `Example.gold`, and n.

    A `baseline` has a name instead of positions: it places the documents itself.
    """

    positions: tuple[int, ...]
    n_docs: int
    baseline: str = ""

    def __post_init__(self):
        if len(set(self.positions)) != len(self.positions):
            raise PosgapError(f"placement {format_positions(self.positions)}: two gold documents at one position")
        for position in self.positions:
            if not 1 <= position <= self.n_docs:
                raise PosgapError(f"position {position}: must lie in 1..{self.n_docs}, the number of documents")

    def among(self, n_docs: int) -> "Placement":
        """The placement at the same depth among `n_docs` documents, with the gold documents in the same order.

        The first position stays the first, and the last the last. Raises `PosgapError` if there are more gold documents
        than documents.
        """
        scale = (n_docs - 1) / max(self.n_docs - 1, 1)
        order = sorted(range(len(self.positions)), key=lambda at: self.positions[at])
        found = list(self.positions)
        for rank, at in enumerate(order):
            least = found[order[rank - 1]] + 1 if rank else 1
            found[at] = max(least, round((self.positions[at] - 1) * scale) + 1)
        most = n_docs
        for at in reversed(order):
            found[at] = min(found[at], most)
            most = found[at] - 1
        return Placement(tuple(found), n_docs, self.baseline)

    @property
    def name(self) -> str:
        """The placement as text: "7", "3+7", or the name of a baseline."""
        return self.baseline or format_positions(self.positions)


def category(positions: Sequence[int]) -> str:
    """The category of two gold documents' positions (pre, post), in the order of reasoning.

    "connected": post directly follows pre; "disconnected": it comes later; "reversed": it comes before pre. "" for
    another number of gold documents.
    """
    if len(positions) != 2:
        return ""
    pre, post = positions
    return "connected" if post == pre + 1 else "disconnected" if post > pre else "reversed"


def in_order(categories: Iterable[str]) -> list[str]:
    """Returns the existing categories, each once: those of pairs in the order of `CATEGORIES`, others in their order of
    appearance."""
    names = dict.fromkeys(name for name in categories if name)
    return sorted(names, key=lambda name: CATEGORIES.index(name) if name in CATEGORIES else len(CATEGORIES))


def all_placements(n_docs: int, n_gold: int) -> list[Placement]:
    """Every placement: all positions for one gold document, all ordered pairs of positions for two."""
    return [Placement(positions, n_docs) for positions in permutations(range(1, n_docs + 1), n_gold)]


def spread_placements(n_docs: int, n_gold: int) -> list[Placement]:
    """Every position for one gold document, and pairs of all categories for two.

    Pairs are formed at five anchors spread evenly over the documents: neighbours at each anchor, each anchor with each
    later one, and all of these swapped. Raises `PosgapError` for more gold documents, which have too many placements.
    """
    if n_gold > 2:
        raise PosgapError(f"positions: name the placements of {n_gold} gold documents, like 1+2+3,8+9+10")
    return all_placements(n_docs, 1) if n_gold == 1 else _anchored_pairs(n_docs)


def swept_placements(n_docs: int, n_gold: int, chosen: Sequence[str] = ()) -> list[Placement]:
    """Returns the placements of a sweep: the chosen ones, written as text, or else those of `spread_placements`.

    Raises `PosgapError` if a chosen placement is impossible or has another number of gold documents than the task.
    """
    if not chosen:
        return spread_placements(n_docs, n_gold)
    placements = [Placement(parse_positions(text), n_docs) for text in chosen]
    for placement in placements:
        require_n_gold(placement, n_gold)
        if placements.count(placement) > 1:
            raise PosgapError(f"placement {format_positions(placement.positions)}: given twice")
    return placements


def shard_of(placements: Sequence[Placement], shard: str) -> list[Placement]:
    """The part of the placements that `shard` names, as a run of neighbours; all placements if it is empty.

    Prompts of neighbouring placements begin alike, and a common beginning is read only once.
    """
    if not shard:
        return list(placements)
    part, parts = parse_shard(shard)
    if parts > len(placements):
        raise PosgapError(f"shard {shard}: there are {len(placements)} placements, too few for {parts} parts")
    return list(placements[len(placements) * (part - 1) // parts : len(placements) * part // parts])


def spaced_positions(n_docs: int, count: int) -> list[int]:
    """At most `count` evenly spaced positions from 1 to n, both ends included; all positions if `count` is below 2."""
    if not 2 <= count < n_docs:
        return list(range(1, n_docs + 1))
    return sorted({round(1 + i * (n_docs - 1) / (count - 1)) for i in range(count)})


def require_n_gold(placement: Placement, n_gold: int) -> None:
    """Raises `PosgapError` unless the placement has `n_gold` gold documents."""
    if len(placement.positions) != n_gold:
        several = "+".join(str(3 + 4 * i) for i in range(n_gold))
        wanted = f"{n_gold} gold documents: write positions like {several}"
        if n_gold == 1:
            wanted = "one gold document: write a position like 7"
        raise PosgapError(f"placement {format_positions(placement.positions)}: the task has {wanted}")


def _anchored_pairs(n_docs: int) -> list[Placement]:
    if n_docs < 2:
        raise PosgapError(f"n_docs={n_docs}: a prompt with two gold documents has at least 2 documents")
    anchors = spaced_positions(n_docs, 5)
    neighbours = {min(anchor, n_docs - 1) for anchor in anchors}
    connected = [(pre, pre + 1) for pre in sorted(neighbours)]
    disconnected = [(pre, post) for pre, post in combinations(anchors, 2) if post > pre + 1]
    swapped = sorted((post, pre) for pre, post in connected + disconnected)
    return [Placement(pair, n_docs) for pair in connected + disconnected + swapped]
