"""What positions alone add to an attention score: ALiBi slopes, RoPE's expected score, residual schedules."""

import math
from collections.abc import Sequence

import numpy as np

from posgap.errors import PosgapError


def alibi_slopes(n_heads: int) -> np.ndarray:
    """Slopes [H] of ALiBi (Press et al. 2022): geometric from 2^(-8/H) for a power of two.

    For other H, those of the power of two below, then every other one of the power of two above.
    """
    below = 2 ** math.floor(math.log2(n_heads))
    slopes = 2.0 ** (-8 / below * np.arange(1, below + 1))
    between = 2.0 ** (-4 / below * np.arange(1, 2 * (n_heads - below), 2))
    return np.concatenate([slopes, between])


def rope_angles(theta: float, head_size: int) -> np.ndarray:
    """Base angles [d/2] of RoPE (Su et al. 2023): theta^(-2(l-1)/d), fastest first."""
    return theta ** (-np.arange(0, head_size, 2) / head_size)


def rope_scores(
    distances: np.ndarray, theta: float, head_size: int, angle: float = 0.0, strength: float = 1.0
) -> np.ndarray:
    """Score of a query and a key at signed `distances` i - j, of the same shape.

    Query and key stand at `angle` (radians) before rotation in each of the d/2 planes, which share their
    norm evenly: strength * mean_l cos(angle - (i - j) theta_l), where `strength` is |q| |k| / sqrt(d).
    With d = 2 this is Lemma 4.6's score, in general appendix I's (Wu et al. 2025).
    """
    distances = np.asarray(distances, dtype=float)
    mean = np.zeros_like(distances)
    angles = rope_angles(theta, head_size)
    for base in angles:
        mean += np.cos(angle - distances * base)
    return strength * mean / len(angles)


def constant_schedule(strength: float, n_layers: int) -> np.ndarray:
    """The same residual strength at every layer, [L]."""
    return np.full(n_layers, float(strength))


def power_schedule(strength: float, power: float, n_layers: int) -> np.ndarray:
    """Residual strength that falls with depth as strength * l^(-power), l = 1 .. L: [L]."""
    return strength * np.arange(1, n_layers + 1, dtype=float) ** -power


def checked_lambdas(lambdas: Sequence[float]) -> np.ndarray:
    """The schedule [L] as floats; `PosgapError` where one lies outside [0, 1]."""
    values = np.asarray(lambdas, dtype=float)
    outside = np.flatnonzero((values < 0) | (values > 1) | np.isnan(values))
    if len(outside):
        layer = outside[0]
        raise PosgapError(f"residual strength {values[layer]:g} of layer {layer + 1}: must lie in [0, 1]")
    return values
