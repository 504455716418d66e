"""Position's part in the theory: ALiBi's slopes, RoPE's expected score; and residual strengths by layer."""

import math
from collections.abc import Sequence

import numpy as np

from posgap.foundation.errors import BadOption


def alibi_slopes(n_heads: int) -> np.ndarray:
    """Slopes [H] of ALiBi (Press et al. 2022): for H a power of two, a geometric series that starts at 2^(-8/H).

    Other H take all slopes of the next lower power of two, and then every second slope of the next higher one.
    """
    below = 2 ** math.floor(math.log2(n_heads))
    slopes = 2.0 ** (-8 / below * np.arange(1, below + 1))
    between = 2.0 ** (-4 / below * np.arange(1, 2 * (n_heads - below), 2))
    return np.concatenate([slopes, between])


def rope_angles(theta: float, head_size: int) -> np.ndarray:
    """Base angles [d/2] of RoPE (Su et al. 2023): theta^(-2(l-1)/d), fastest first."""
    return theta ** (-np.arange(0, head_size, 2) / head_size)


def rotation_scores(distances: np.ndarray, angles: Sequence[float] | np.ndarray, strength: float = 1.0) -> np.ndarray:
    """Returns scores of a query at i and a key at j for signed `distances` i - j, in the shape of `distances`, if a
    token's position rotates its planes by `angles` [d/2] (radians a token).

    Before rotation, query and key are parallel in each of the d/2 planes, and their norms are spread evenly over the
    planes. The score is strength * mean_l cos((i - j) theta_l), with `strength` = |q| |k| / sqrt(d). With d = 2 this is
    Lemma 4.6's score, in general appendix I's (Wu et al. 2025), for an angle of 0 between the two.
    """
    distances = np.asarray(distances, dtype=float)
    total = sum((np.cos(distances * base) for base in angles), start=np.zeros_like(distances))
    return strength * total / len(angles)


def require_lambdas(lambdas: Sequence[float] | np.ndarray) -> np.ndarray:
    """The schedule [L] as floats; raises `PosgapError` if any of them lies outside [0, 1]."""
    values = np.asarray(lambdas, dtype=float)
    outside = np.flatnonzero((values < 0) | (values > 1) | np.isnan(values))
    if len(outside):
        layer = outside[0]
        raise BadOption(f"residual strength {values[layer]:g} of layer {layer + 1}: must lie in [0, 1]")
    return values
