"""The in-context classification task of Reddy (ICLR 2024), as Wu et al. (ICML 2025) use it for position bias.

A sequence is n items, each followed by its label's vector, and then a query: 2 n + 1 vectors of size d. The
query's class occurs among the items, and the network must name that class's label. Whole batches are drawn at once.
"""

import math
from dataclasses import dataclass
from itertools import permutations

import torch
from torch import Generator, Tensor

PLACES = ("first", "middle", "last")
PAIRS = tuple(permutations(PLACES, 2))


@dataclass(frozen=True)
class TaskSizes:
    """The task's sizes, by default those of appendix J.

    A sequence has n `items` of `size` d: `burstiness` (B) items of each of n / B classes. The classes are drawn from
    `classes` (K) in all, and each has one of `labels` (L) labels. Items are Gaussian mixtures with within-class
    variability `spread` (the paper's gamma). Components have variance 1/d and the middle is item n/2, as in the paper's
    text; its public code takes standard deviation 1/d and item n/2 + 1.
    """

    items: int = 8
    size: int = 64
    burstiness: int = 4
    classes: int = 2048
    labels: int = 32
    spread: float = 0.75

    @property
    def tokens(self) -> int:
        """The length of a sequence, T = 2 n + 1."""
        return 2 * self.items + 1

    def place(self, name: str) -> int:
        """The index, counted from 0, of the item called "first", "middle" or "last"."""
        return {"first": 0, "middle": self.items // 2 - 1, "last": self.items - 1}[name]


class InContextTask:
    """Draws sequences of one task; `rng` draws the class means, the classes' labels and the label vectors once."""

    def __init__(self, sizes: TaskSizes, rng: Generator):
        self.sizes = sizes
        self.deviation = 1 / math.sqrt(sizes.size)
        self.means = self._vectors(rng, sizes.classes)
        self.labels = torch.randint(sizes.labels, (sizes.classes,), generator=rng, device=rng.device)
        self.label_vectors = self._vectors(rng, sizes.labels)
        self._vectors(rng)  # drawn so that a seed gives the sequences of the published figures

    def _vectors(self, rng: Generator, *shape: int) -> Tensor:
        return self.deviation * torch.randn(*shape, self.sizes.size, generator=rng, device=rng.device)

    def training(self, batch: int, rng: Generator) -> tuple[Tensor, Tensor]:
        """Sequences [batch, 2 n + 1, d] and the labels of their queries [batch], each of any item's class."""
        s = self.sizes
        classes = distinct(batch, s.items // s.burstiness, s.classes, rng)
        order = self._draw_order(batch, rng)
        item = torch.randint(s.items, (batch, 1), generator=rng, device=rng.device)
        return self._sequences(self.means[classes], self.labels[classes], order, order.gather(1, item)[:, 0], rng)

    def novel(self, batch: int, rng: Generator, pair: tuple[str, str] | None = None) -> tuple[Tensor, Tensor]:
        """Sequences, and the labels of their queries, of classes never seen in training, with labels that differ.

        `pair` = (a, b) makes a test of section 5.1's form [a, b]: the query is of a's class, and the items at a and b
        are the same vector with different labels. Without a pair, the query is of any item's class.
        """
        s = self.sizes
        m = s.items // s.burstiness
        means = self._vectors(rng, batch, m)
        labels = distinct(batch, m, s.labels, rng)
        order = self._draw_order(batch, rng)
        if pair is None:
            item = torch.randint(s.items, (batch, 1), generator=rng, device=rng.device)
            return self._sequences(means, labels, order, order.gather(1, item)[:, 0], rng)
        a, b = map(s.place, pair)
        # An item of class 0 moves to a, then one of class 1 to b; the items that stood there take their places.
        order = _swap_labels(order, a, 0)
        order = _swap_labels(order, b, 1, keep=a)
        inputs, answers = self._sequences(means, labels, order, order.new_zeros(batch), rng)
        inputs[:, 2 * b] = inputs[:, 2 * a]
        return inputs, answers

    def _draw_order(self, batch: int, rng: Generator) -> Tensor:
        """The class of each item, [batch, n]: B items of each of n / B classes, in random order."""
        s = self.sizes
        return torch.rand(batch, s.items, generator=rng, device=rng.device).argsort(1) % (s.items // s.burstiness)

    def _sequences(
        self, means: Tensor, labels: Tensor, order: Tensor, query: Tensor, rng: Generator
    ) -> tuple[Tensor, Tensor]:
        """The vectors of sequences of m classes with `means` [batch, m, d] and `labels` [batch, m], and the answers.

        `order` [batch, n] holds the class of each item, `query` [batch] the query's class.
        """
        s = self.sizes
        batch = len(order)
        of = torch.cat([order, query[:, None]], dim=1)
        noise = self._vectors(rng, batch, s.items + 1)
        items = means.gather(1, of[:, :, None].expand(-1, -1, s.size)) + s.spread * noise
        inputs = items.new_empty(batch, s.tokens, s.size)
        inputs[:, ::2] = items / math.sqrt(1 + s.spread**2)
        inputs[:, 1::2] = self.label_vectors[labels.gather(1, order)]
        return inputs, labels.gather(1, query[:, None])[:, 0]


def distinct(batch: int, count: int, below: int, rng: Generator) -> Tensor:
    """Rows of `count` different integers from 0 to `below` - 1 in random order, [batch, count]."""
    drawn = torch.empty(batch, 0, dtype=torch.long, device=rng.device)
    for taken in range(count):
        following = torch.randint(below - taken, (batch, 1), generator=rng, device=rng.device)
        # `following` counts among the integers not yet taken: each taken integer at or below it moves it up by 1.
        for other in drawn.sort(1).values.unbind(1):
            following += following >= other[:, None]
        drawn = torch.cat([drawn, following], dim=1)
    return drawn


def _swap_labels(order: Tensor, at: int, wanted: int, keep: int | None = None) -> Tensor:
    """`order` [batch, n] with class `wanted` at index `at`: the item there changes places with one of that class."""
    order = order.clone()
    is_wanted = order == wanted
    if keep is not None:
        is_wanted[:, keep] = False
    # An item that already has the class stays in place.
    source = torch.where(is_wanted[:, at], at, is_wanted.int().argmax(1))[:, None]
    moved = order[:, at].clone()
    order[:, at] = wanted
    return order.scatter(1, source, torch.where(source[:, 0] == at, wanted, moved)[:, None])
