"""Attention as the theory describes it, and the rollout of the last token through its layers.

Token i attends to token j with weight softmax_j(score(i - j) + diagonal * [i = j]) over the j that the
mask allows, averaged over heads. A layer mixes as R = (1 - lambda) I + lambda A, the rollout is
R_L ... R_1, and its last row says how much of each input position reaches the last token. That row
is computed from the last layer down by products of a vector and a matrix; two matrices are never multiplied.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posgap.rollout.kernels import Kernel

MIN_SCORE = -600.0


@dataclass(frozen=True)
class Mask:
    """Token i sees the `width` tokens that end with itself (Theorem 4.2), and the first `prefix` tokens of the text.

    A mask with a prefix has an unlimited width.
    """

    width: int
    prefix: int = 0

    @classmethod
    def causal(cls, n: int) -> "Mask":
        """Each of `n` tokens sees itself and every token before it."""
        return cls(n)

    @classmethod
    def with_prefix(cls, n: int, prefix: int) -> "Mask":
        """Causal, and every token also sees the first `prefix` tokens, even those that stand after it (Theorem 4.3)."""
        return cls(n, min(prefix, n))

    @classmethod
    def full(cls, n: int) -> "Mask":
        """Each of `n` tokens sees all of them."""
        return cls(n, n)


def sum_kernel(n: int, mask: Mask, kernel: Kernel) -> np.ndarray:
    """Sums [G, N] of the kernel over the tokens that each of `n` tokens sees, itself left out."""
    ones = np.ones((len(kernel.own), n))
    sums = kernel.back(ones, mask.width)[:, ::-1].copy()
    if mask.prefix:
        sums[:, : mask.prefix] += kernel.ahead(ones[:, : mask.prefix])[:, ::-1]
    return sums


class RelativeAttention:
    """One layer's attention, averaged over heads. Its scores depend only on the distance, except for an extra score of
    each token on itself.

    `totals [G, N]` are the kernel's sums under the mask (`sum_kernel`), `groups [H]` says which of the kernel's groups
    each head belongs to, and `diagonal [H]` are the extra scores.
    """

    def __init__(self, mask: Mask, kernel: Kernel, totals: np.ndarray, groups: np.ndarray, diagonal: np.ndarray):
        self.mask = mask
        self.kernel = kernel
        self.groups = groups
        # The greater of the two scores (the diagonal's, and 0 for the others) is subtracted from both, against
        # overflow. The least score keeps a token that sees only itself from underflowing to weight 0.
        diagonal = np.maximum(diagonal, MIN_SCORE)
        greatest = np.maximum(diagonal, 0.0)
        self.others = np.exp(-greatest)
        self.own = np.exp(diagonal - greatest) * kernel.own[groups]
        self.totals = totals

    def carry(self, row: np.ndarray) -> np.ndarray:
        """The product `row @ A`, [N] to [N]."""
        u = np.zeros((len(self.kernel.own), len(row)))
        received = np.zeros(len(row))
        # Head by head: an array over all heads would be the largest of the whole computation.
        for group, others, own in zip(self.groups, self.others, self.own):
            spread = row / len(self.groups) / (others * self.totals[group] + own)
            u[group] += others * spread
            received += own * spread
        received += self.kernel.back(u, self.mask.width).sum(axis=0)
        prefix = self.mask.prefix
        if prefix:
            received[:prefix] += self.kernel.ahead(u[:, :prefix]).sum(axis=0)
        return received


def last_row(n: int, layers: Sequence[RelativeAttention], lambdas: np.ndarray) -> np.ndarray:
    """Returns how much of each of the `n` input positions reaches the last token: [N], which sums to one.

    `layers` and `lambdas` [L] are in the order of the model, the first layer first.
    """
    row = np.zeros(n)
    row[-1] = 1.0
    for attention, strength in zip(reversed(layers), reversed(lambdas), strict=True):
        row = (1 - strength) * row + strength * attention.carry(row)
    return row
