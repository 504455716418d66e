"""From the description of an architecture to its predicted rollout."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from posgap.foundation.errors import PosgapError
from posgap.rollout.attention import Attention, Mask, RelativeAttention, last_row, sum_kernel
from posgap.rollout.kernels import ExponentialKernel, Kernel, TabulatedKernel

Scores = Callable[[np.ndarray], np.ndarray]  # from signed distances i - j


@dataclass(frozen=True)
class Architecture:
    """The properties of a model that decide its rollout before any text is read.

    `n` is the number of tokens N, `lambdas` [L] the residual strength of each layer, `mask` that of all layers or a
    list of each layer's. Position enters through `scores`, a function of signed distances or a list of each layer's
    (None: a layer without positions), or else through `slopes` [L, H] (zeros mean no encoding). `factors` [L] divide
    the distances of `scores` layer by layer, as LPES does; empty means that no distance is divided. `diagonal` [L, H]
    is the extra score of a token on itself. It and `slopes` may have a single row for all layers and a single column
    for all heads. Attention is averaged over heads.
    """

    n: int
    mask: Mask | Sequence[Mask]
    lambdas: np.ndarray
    slopes: np.ndarray = field(default_factory=lambda: np.zeros((1, 1)))
    scores: Scores | Sequence[Scores | None] | None = None
    factors: Sequence[float] = ()
    diagonal: np.ndarray = field(default_factory=lambda: np.zeros((1, 1)))

    def layers(self) -> list[Attention]:
        """The attention of each layer, L in all; layers with equal parameters share one object."""
        n_layers, n_heads = len(self.lambdas), self._heads()
        slopes = self._spread(self.slopes, n_layers, n_heads, "slopes")
        diagonal = self._spread(self.diagonal, n_layers, n_heads, "diagonal scores")
        factors = np.broadcast_to(np.asarray(self.factors or [1.0], dtype=float), n_layers)
        masks = [self.mask] * n_layers if isinstance(self.mask, Mask) else self.mask
        scores = self.scores if isinstance(self.scores, Sequence) else [self.scores] * n_layers
        if len(masks) != n_layers or len(scores) != n_layers:
            raise PosgapError(
                f"{len(masks)} masks and scores for {len(scores)} layers: the architecture has {n_layers} layers"
            )
        kernels: dict[tuple, tuple[Kernel, np.ndarray, np.ndarray]] = {}
        made: dict[tuple, RelativeAttention] = {}
        layers: list[Attention] = []
        for mask, own_scores, own_slopes, factor, own_diagonal in zip(masks, scores, slopes, factors, diagonal):
            position, content = (mask, own_scores, own_slopes.tobytes(), factor), own_diagonal.tobytes()
            if position not in kernels:
                kernel, groups = self._kernel(own_scores, own_slopes, factor)
                kernels[position] = (kernel, sum_kernel(self.n, mask, kernel), groups)
            if (position, content) not in made:
                made[position, content] = RelativeAttention(mask, *kernels[position], own_diagonal)
            layers.append(made[position, content])
        return layers

    def rollout(self) -> np.ndarray:
        """The last token's rollout over input positions, [N].

        Raises `PosgapError` where scores are so large that it cannot be computed.
        """
        with np.errstate(all="ignore"):
            shares = last_row(self.n, self.layers(), self.lambdas)
        if not np.isfinite(shares).all():
            raise PosgapError("the rollout is no number: its scores are too large; moderate them")
        return shares

    def _kernel(self, by_distance: Scores | None, slopes: np.ndarray, factor: float) -> tuple[Kernel, np.ndarray]:
        """The kernel of a layer, and each head's group [H]: heads with equal slopes share a group's sums."""
        if by_distance is not None:
            scores = by_distance(np.arange(1 - self.n, self.n) / factor)
            return TabulatedKernel(scores), np.zeros(len(slopes), dtype=int)
        distinct, groups = np.unique(slopes, return_inverse=True)
        return ExponentialKernel(distinct), groups

    def _heads(self) -> int:
        return max(np.shape(self.slopes)[1], np.shape(self.diagonal)[1])

    @staticmethod
    def _spread(values: np.ndarray, n_layers: int, n_heads: int, what: str) -> np.ndarray:
        values = np.asarray(values, dtype=float)
        try:
            return np.broadcast_to(values, (n_layers, n_heads))
        except ValueError:
            raise PosgapError(
                f"{what} for {values.shape[0]} layers of {values.shape[1]} heads: the architecture has {n_layers} "
                f"layers of {n_heads} heads"
            ) from None
