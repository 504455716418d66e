"""The in-context classification task of Reddy (ICLR 2024), as Wu et al. (ICML 2025) use it for position bias.

A sequence is n items, each followed by its label's vector, and a query: 2 n + 1 vectors of size d. The
query's class occurs among the items, and the network must name its label. Whole batches are drawn at once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Generator, Tensor

PLACES = ("first", "middle", "last")
PAIRS = tuple(permutations(PLACES, 2))


@dataclass(frozen=True)
class TaskSizes:
    """Appendix J's: n items of size d, B of each of n / B classes, K classes with one of L labels each.

    Items are Gaussian mixtures with within-class variability `spread` (the paper's gamma), or, with
    `vocabulary`, class vectors that share a component of strength `spread` (appendix L's lambda).
    Components have variance 1/d, and the middle is item n/2, as the paper says; with `as_coded`
    standard deviation 1/d and item n/2 + 1, as its public code has them.
    """

    items: int = 8
    size: int = 64
    burstiness: int = 4
    classes: int = 2048
    labels: int = 32
    spread: float = 0.75
    vocabulary: bool = False
    as_coded: bool = False

    @property
    def tokens(self) -> int:
        return 2 * self.items + 1

    def place(self, name: str) -> int:
        """The index of an item from 0 by its name."""
        return {"first": 0, "middle": self.items // 2 - (not self.as_coded), "last": self.items - 1}[name]


class InContextTask:
    """Draws sequences. Class means, their labels and the labels' vectors are drawn once, by `rng`."""

    def __init__(self, sizes: TaskSizes, rng: Generator):
        self.sizes = sizes
        self.deviation = 1 / sizes.size if sizes.as_coded else 1 / math.sqrt(sizes.size)
        self.means = self._vectors(rng, sizes.classes)
        self.labels = torch.randint(sizes.labels, (sizes.classes,), generator=rng, device=rng.device)
        self.label_vectors = self._vectors(rng, sizes.labels)
        self.shared = self._vectors(rng)

    def _vectors(self, rng: Generator, *shape: int) -> Tensor:
        return self.deviation * torch.randn(*shape, self.sizes.size, generator=rng, device=rng.device)

    def training(self, batch: int, rng: Generator, places: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
        """Sequences [batch, 2 n + 1, d] with their query's label [batch].

        The query's class is that of an item drawn evenly from `places`, or from all where there are none.
        """
        s = self.sizes
        classes = distinct(batch, s.items // s.burstiness, s.classes, rng)
        order = self._order(batch, rng)
        choice = torch.tensor(places or range(s.items), device=rng.device)
        asked = choice[torch.randint(len(choice), (batch, 1), generator=rng, device=rng.device)]
        return self._sequences(self.means[classes], self.labels[classes], order, order.gather(1, asked)[:, 0], rng)

    def novel(self, batch: int, rng: Generator, pair: tuple[str, str] | None = None) -> tuple[Tensor, Tensor]:
        """Sequences of classes never seen in training; of those labels that differ.

        With `pair` = (a, b) a test of section 5.1's form [a, b]: the query is of a's class, and the items
        at a and b are the same vector, b with another label. Without, the query is any item's.
        """
        s = self.sizes
        m = s.items // s.burstiness
        means, labels = self._vectors(rng, batch, m), distinct(batch, m, s.labels, rng)
        order = self._order(batch, rng)
        if pair is None:
            asked = torch.randint(s.items, (batch, 1), generator=rng, device=rng.device)
            return self._sequences(means, labels, order, order.gather(1, asked)[:, 0], rng)
        a, b = map(s.place, pair)
        # What stands at a becomes class 0, then what stands at b class 1; the classes swap their places.
        order = _swapped(order, a, 0)
        order = _swapped(order, b, 1, keep=a)
        inputs, answers = self._sequences(means, labels, order, order.new_zeros(batch), rng)
        inputs[:, 2 * b] = inputs[:, 2 * a]
        return inputs, answers

    def _order(self, batch: int, rng: Generator) -> Tensor:
        """Which of the n / B classes each item is of, [batch, n]: each of B items, in random order."""
        s = self.sizes
        return torch.rand(batch, s.items, generator=rng, device=rng.device).argsort(1) % (s.items // s.burstiness)

    def _sequences(
        self, means: Tensor, labels: Tensor, order: Tensor, asked: Tensor, rng: Generator
    ) -> tuple[Tensor, Tensor]:
        """Writes out sequences of m classes with `means` [batch, m, d] and `labels` [batch, m].

        `order` [batch, n] says which of the classes each item is of, `asked` [batch] the query's.
        """
        s, batch = self.sizes, len(order)
        of = torch.cat([order, asked[:, None]], dim=1)
        noise = self.shared if s.vocabulary else self._vectors(rng, batch, s.items + 1)
        items = means.gather(1, of[:, :, None].expand(-1, -1, s.size)) + s.spread * noise
        inputs = items.new_empty(batch, s.tokens, s.size)
        inputs[:, ::2] = items / math.sqrt(1 + s.spread**2)
        inputs[:, 1::2] = self.label_vectors[labels.gather(1, order)]
        return inputs, labels.gather(1, asked[:, None])[:, 0]


def distinct(batch: int, count: int, below: int, rng: Generator) -> Tensor:
    """`count` different integers from 0 to `below` - 1 in every row, [batch, count], in random order."""
    drawn = torch.empty(batch, 0, dtype=torch.long, device=rng.device)
    for taken in range(count):
        following = torch.randint(below - taken, (batch, 1), generator=rng, device=rng.device)
        # The r-th of those not yet taken: step over each taken one that is not above.
        for other in drawn.sort(1).values.unbind(1):
            following += following >= other[:, None]
        drawn = torch.cat([drawn, following], dim=1)
    return drawn


def _swapped(order: Tensor, at: int, wanted: int, keep: int | None = None) -> Tensor:
    """`order` [batch, n] with class `wanted` at `at`: that item changes places with one of its class."""
    order = order.clone()
    is_wanted = order == wanted
    if keep is not None:
        is_wanted[:, keep] = False
    # An item that has the class already stays where it is.
    source = torch.where(is_wanted[:, at], at, is_wanted.int().argmax(1))[:, None]
    moved = order[:, at].clone()
    order[:, at] = wanted
    return order.scatter(1, source, torch.where(source[:, 0] == at, wanted, moved)[:, None])
