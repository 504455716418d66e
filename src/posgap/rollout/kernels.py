"""Sums over distances, the inner loop of a rollout: how much each token receives from those that attend to it.

A kernel holds the softmax's weights k(i - j), before they are normalised, for G groups of heads. It has

    own [G]             the weight k(0) of a token on itself, which the sums below leave out
    back(u, width)      y_j = sum of u_i k(i - j) over i = j + 1 .. j + width - 1, `u [G, N]` to `[G, N]`
    ahead(u)            y_j = sum of u_i k(i - j) over i < j

Neither ever holds an N x N matrix.
"""

import numpy as np
from scipy.signal import convolve, lfilter


class ExponentialKernel:
    """k = exp(-slope |i - j|) with one slope per group: no encoding (slope 0), decay, ALiBi.

    Such sums are linear recurrences in the position: each takes O(N), and no terms cancel, so even the
    smallest weights keep their relative precision.
    """

    def __init__(self, slopes: np.ndarray):
        self.rates = np.exp(-np.asarray(slopes, dtype=float))
        self.own = np.ones(len(self.rates))

    def back(self, u: np.ndarray, width: int) -> np.ndarray:
        n = u.shape[-1]
        if width >= n:
            return self.ahead(u[:, ::-1])[:, ::-1]
        received = np.zeros(u.shape)
        if width > 1:
            received[:, :-1] = self.rates[:, None] * self._windows(u[:, 1:], width - 1)
        return received

    def ahead(self, u: np.ndarray) -> np.ndarray:
        # y_t = rate (u_(t-1) + y_(t-1))
        return self._recur(u, [0.0, 1.0])

    def _windows(self, u: np.ndarray, width: int) -> np.ndarray:
        """Sums over i = j .. j + width - 1: the rest of one block of `width` tokens and the head of the next."""
        n = u.shape[-1]
        blocks = -(-n // width) + 1
        offsets = np.arange(width)
        rates = self.rates[:, None, None]
        padded = np.zeros((len(u), blocks * width))
        padded[:, :n] = u
        padded = padded.reshape(len(u), blocks, width)
        sums = self._recur(padded[..., ::-1], [1.0])[..., ::-1]
        heads = np.cumsum(padded * rates**offsets, axis=-1)
        sums[:, :-1, 1:] += heads[:, 1:, :-1] * rates ** (width - offsets[1:])
        return sums.reshape(len(u), -1)[:, :n]

    def _recur(self, u: np.ndarray, taps: list[float]) -> np.ndarray:
        """y_t = sum_s taps_s rate^s u_(t-s) + rate y_(t-1), along the last axis."""
        out = np.empty(u.shape)
        for group, rate in enumerate(self.rates):
            out[group] = lfilter(taps * rate ** np.arange(len(taps)), [1.0, -rate], u[group])
        return out


class TabulatedKernel:
    """k from a table of `scores [2 N - 1]` at distances -(N - 1) .. N - 1, for a single group: RoPE.

    The sums are convolutions, computed directly if they are short and by FFT, in O(N log N), if they are long.
    """

    def __init__(self, scores: np.ndarray):
        weights = np.exp(scores - scores.max())
        zero = len(weights) // 2
        self.own = weights[zero : zero + 1].copy()
        weights[zero] = 0.0
        self.backward = weights[zero:]
        self.forward = weights[zero::-1]

    def back(self, u: np.ndarray, width: int) -> np.ndarray:
        return self._sums(u[0, ::-1], self.backward[:width])[None, ::-1]

    def ahead(self, u: np.ndarray) -> np.ndarray:
        return self._sums(u[0], self.forward)[None]

    @staticmethod
    def _sums(u: np.ndarray, weights: np.ndarray) -> np.ndarray:
        # All terms are non-negative, but an FFT can leave rounding errors below 0 if their sum vanishes.
        return np.maximum(convolve(u, weights[: len(u)])[: len(u)], 0.0)


Kernel = ExponentialKernel | TabulatedKernel
