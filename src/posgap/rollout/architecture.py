"""From the description of an architecture to its predicted rollout."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from posgap.foundation.errors import PosgapError
from posgap.rollout.attention import Mask, RelativeAttention, last_row, sum_kernel
from posgap.rollout.kernels import ExponentialKernel, Kernel, TabulatedKernel

Scores = Callable[[np.ndarray], np.ndarray]  # from signed distances i - j


@dataclass(frozen=True)
class Architecture:
    """The properties of a model that decide its rollout before any text is read.

    `n` is the number of tokens N, `lambdas` [L] the residual strength of each layer, `mask` one for all layers or a
    list. Position enters through `scores`, a function of signed distances or a list of each layer's (None: a layer
    without positions), or else through `slopes` [L, H] (zeros mean no encoding). `diagonal` [L, H] is the extra score
    of a token on itself. It and `slopes` may have a single row for all layers and a single column for all heads.
    Attention is averaged over heads.
    """

    n: int
    mask: Mask | Sequence[Mask]
    lambdas: np.ndarray
    slopes: np.ndarray = field(default_factory=lambda: np.zeros((1, 1)))
    scores: Scores | Sequence[Scores | None] | None = None
    diagonal: np.ndarray = field(default_factory=lambda: np.zeros((1, 1)))

    def layers(self) -> list[RelativeAttention]:
        """Yields the attention of each layer, L in all; layers with the same positions share their sums."""
        n_layers = len(self.lambdas)
        n_heads = max(np.shape(self.slopes)[1], np.shape(self.diagonal)[1])
        slopes = np.broadcast_to(np.asarray(self.slopes, dtype=float), (n_layers, n_heads))
        diagonal = np.broadcast_to(np.asarray(self.diagonal, dtype=float), (n_layers, n_heads))
        masks = [self.mask] * n_layers if isinstance(self.mask, Mask) else self.mask
        scores = self.scores if isinstance(self.scores, Sequence) else [self.scores] * n_layers
        kernels: dict[tuple, tuple[Kernel, np.ndarray, np.ndarray]] = {}
        layers = []
        for mask, own_scores, own_slopes, own_diagonal in zip(masks, scores, slopes, diagonal, strict=True):
            position = (mask, own_scores, own_slopes.tobytes())
            if position not in kernels:
                kernel, groups = self._kernel(own_scores, own_slopes)
                kernels[position] = (kernel, sum_kernel(self.n, mask, kernel), groups)
            layers.append(RelativeAttention(mask, *kernels[position], own_diagonal))
        return layers

    def rollout(self) -> np.ndarray:
        """The last token's rollout over input positions, [N].

        Raises `PosgapError` if scores are so large that it cannot be computed.
        """
        with np.errstate(all="ignore"):
            shares = last_row(self.n, self.layers(), self.lambdas)
        if not np.isfinite(shares).all():
            raise PosgapError("the rollout overflows because its scores are too large; give smaller ones")
        return shares

    def _kernel(self, by_distance: Scores | None, slopes: np.ndarray) -> tuple[Kernel, np.ndarray]:
        """The kernel of a layer, and each head's group [H]: heads with equal slopes share a group's sums."""
        if by_distance is not None:
            return TabulatedKernel(by_distance(np.arange(1 - self.n, self.n))), np.zeros(len(slopes), dtype=int)
        distinct, groups = np.unique(slopes, return_inverse=True)
        return ExponentialKernel(distinct), groups
