"""Attention as the theory sees it, and the rollout of the last token through layers of it.

Token i attends to token j with weight softmax_j(score(i - j) + diagonal * [i = j]) over the j that the
mask allows, averaged over heads. A layer mixes as R = (1 - lambda) I + lambda A, the rollout is
R_L ... R_1, and its last row says how much of each input position reaches the last token. That row
is carried from the last layer down; no product of matrices is ever needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from posgap.rollout.kernels import Kernel

LEAST_SCORE = -600.0


@dataclass(frozen=True)
class Mask:
    """Token i sees the `width` tokens that end with itself, and all of the first `prefix` ones.

    A prefix goes with an unlimited width.
    """

    width: int
    prefix: int = 0

    @classmethod
    def causal(cls, n: int) -> "Mask":
        return cls(n)

    @classmethod
    def window(cls, width: int) -> "Mask":
        """At most `width` tokens, the token itself included (Theorem 4.2)."""
        return cls(width)

    @classmethod
    def prefixed(cls, n: int, prefix: int) -> "Mask":
        """Every token sees the first `prefix` ones, those that stand after it included (Theorem 4.3)."""
        return cls(n, min(prefix, n))

    @classmethod
    def full(cls, n: int) -> "Mask":
        return cls(n, n)


class Attention(Protocol):
    def carry(self, row: np.ndarray) -> np.ndarray:
        """The product `row @ A`, [N] to [N]."""
        ...


class MatrixAttention:
    """Any row-stochastic matrix A [N, N]."""

    def __init__(self, matrix: np.ndarray):
        self.matrix = matrix

    def carry(self, row: np.ndarray) -> np.ndarray:
        return row @ self.matrix


def totals(n: int, mask: Mask, kernel: Kernel) -> np.ndarray:
    """Sums [G, N] of the kernel over the tokens that each of `n` tokens sees, but for itself."""
    ones = np.ones((len(kernel.own), n))
    sums = kernel.back(ones, mask.width)[:, ::-1].copy()
    if mask.prefix:
        sums[:, : mask.prefix] += kernel.ahead(ones[:, : mask.prefix])[:, ::-1]
    return sums


class RelativeAttention:
    """Heads whose scores depend on the distance, and an extra score where a token attends to itself.

    `totals [G, N]` are the kernel's `totals` under the mask, `groups [H]` says which of its groups each
    head belongs to, `diagonal [H]` are the extra scores and `weights [H]` the heads' shares of the
    average, which sum to one.
    """

    def __init__(
        self, mask: Mask, kernel: Kernel, totals: np.ndarray, groups: np.ndarray, diagonal: np.ndarray, weights
    ):
        self.mask, self.kernel, self.groups = mask, kernel, groups
        # Of the two scores, the diagonal's and the others' 0, the greater is taken out: no overflow. Below
        # the least score a token that sees itself alone would underflow to a weight of none.
        diagonal = np.maximum(diagonal, LEAST_SCORE)
        greatest = np.maximum(diagonal, 0.0)
        self.others, self.own = np.exp(-greatest), np.exp(diagonal - greatest) * kernel.own[groups]
        self.totals, self.weights = totals, weights

    def carry(self, row: np.ndarray) -> np.ndarray:
        u, received = np.zeros((len(self.kernel.own), len(row))), np.zeros(len(row))
        # Head by head: what all heads give at once would be the greatest array of all.
        for group, others, own, weight in zip(self.groups, self.others, self.own, self.weights):
            given = weight * row / (others * self.totals[group] + own)
            u[group] += others * given
            received += own * given
        received += self.kernel.back(u, self.mask.width).sum(axis=0)
        if prefix := self.mask.prefix:
            received[:prefix] += self.kernel.ahead(u[:, :prefix]).sum(axis=0)
        return received


def last_row(n: int, layers: Sequence[Attention], lambdas: np.ndarray) -> np.ndarray:
    """How much of each of the `n` input positions reaches the last token: [N], sums to one.

    `layers` and `lambdas` [L] from the first layer to the last.
    """
    row = np.zeros(n)
    row[-1] = 1.0
    for attention, strength in zip(reversed(layers), reversed(lambdas), strict=True):
        row = (1 - strength) * row + strength * attention.carry(row)
    return row
