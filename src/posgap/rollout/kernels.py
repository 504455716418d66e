"""Sums over distances, the inner loop of a rollout: what each token receives from those that attend to it.

A kernel holds the weights k(i - j) before the softmax's normalisation for G groups of heads and has

    own [G]             the weight k(0) of a token on itself, which the sums leave out
    back(u, width)      y_j = sum of u_i k(i - j) over i = j + 1 .. j + width - 1, `u [G, N]` to `[G, N]`
    ahead(u)            y_j = sum of u_i k(i - j) over i < j

Neither ever holds an N x N matrix.
"""

from typing import Protocol

import numpy as np
from scipy.signal import convolve, lfilter


class Kernel(Protocol):
    own: np.ndarray

    def back(self, u: np.ndarray, width: int) -> np.ndarray: ...

    def ahead(self, u: np.ndarray) -> np.ndarray: ...


class ExponentialKernel:
    """k = exp(-slope |i - j|), one slope a group: no encoding (slope 0), decay, ALiBi.

    Such sums are linear recurrences in the position: O(N) each, and no terms cancel, so that the
    tiniest weights keep their relative precision.
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
        blocks, offsets, rates = -(-n // width) + 1, np.arange(width), self.rates[:, None, None]
        padded = np.zeros((len(u), blocks * width))
        padded[:, :n] = u
        padded = padded.reshape(len(u), blocks, width)
        sums = self._recur(padded[..., ::-1], [1.0])[..., ::-1]
        heads = np.cumsum(padded * rates**offsets, axis=-1)
        sums[:, :-1, 1:] += heads[:, 1:, :-1] * rates ** (width - offsets[1:])
        return sums.reshape(len(u), -1)[:, :n]

    def _recur(self, u: np.ndarray, given: list[float]) -> np.ndarray:
        """y_t = sum_s given_s rate^s u_(t-s) + rate y_(t-1), along the last axis."""
        out = np.empty(u.shape)
        for group, rate in enumerate(self.rates):
            out[group] = lfilter(given * rate ** np.arange(len(given)), [1.0, -rate], u[group])
        return out


class TabulatedKernel:
    """k given at every distance, one group: RoPE. `scores [2 N - 1]` at distances -(N - 1) .. N - 1.

    Convolutions, direct where they are short and by FFT, O(N log N), where they are long.
    """

    def __init__(self, scores: np.ndarray):
        weights = np.exp(scores - scores.max())
        zero = len(weights) // 2
        self.own = weights[zero : zero + 1].copy()
        weights[zero] = 0.0
        self.backward, self.forward = weights[zero:], weights[zero::-1]

    def back(self, u: np.ndarray, width: int) -> np.ndarray:
        return self._sums(u[0, ::-1], self.backward[:width])[None, ::-1]

    def ahead(self, u: np.ndarray) -> np.ndarray:
        return self._sums(u[0], self.forward)[None]

    @staticmethod
    def _sums(u: np.ndarray, weights: np.ndarray) -> np.ndarray:
        # An FFT leaves rounding errors of either sign where sums of non-negative terms vanish.
        return np.maximum(convolve(u, weights[: len(u)])[: len(u)], 0.0)
