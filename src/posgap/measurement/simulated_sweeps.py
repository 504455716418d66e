"""Sweeps drawn at random: what two models that are equally good at every position say to the same examples.

An example has a chance to be answered right, which follows a beta distribution; given the chance the placements are
independent. So any two placements are equally alike, and mean and correlation are just what is assumed. With a chance
of `agreement` the other model has the example's chance too, else one of its own, so that the chances of the two
correlate by just that much.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy

from posgap.measurement.power import Assumptions

BATCH = 32  # sweeps that are drawn in one piece
_QUANTILES = 4096  # of the chances
_WHOLE = 2**32


class SimulatedSweeps(NamedTuple):
    """Rights and wrongs, 1 and 0, of R sweeps with n examples of a `candidate [n, R, P]` and of its `reference`, and
    the chance with which each bound of their verdicts may be wrong."""

    candidate: np.ndarray
    reference: np.ndarray
    error: float


def simulate_sweeps(assumed: Assumptions, n: int, pieces: int) -> Iterator[SimulatedSweeps]:
    """So many pieces of `BATCH` sweeps each. The first examples of a sweep are the same for any n.

    They are made of the bits that a generator gives, which are the same everywhere and in every version of numpy: a
    verdict says what follows from them, and is judged again elsewhere.
    """
    chances = _chances(assumed)
    placements = assumed.placements
    agreement = round(assumed.agreement * _WHOLE)
    for piece in range(pieces):
        difficulty, other, alike, *answers = (
            np.random.PCG64(np.random.SeedSequence([piece, stream])) for stream in range(5)
        )
        own, others = (chances[_bits(bits, n) >> 20] for bits in (difficulty, other))
        shared = np.where(_bits(alike, n) < agreement, own, others)
        candidate, reference = (
            (_bits(bits, n, placements) < of_example[..., None]).astype(np.float32)
            for bits, of_example in zip(answers, (own, shared), strict=True)
        )
        yield SimulatedSweeps(candidate, reference, assumed.error)


def _bits(bits: np.random.PCG64, n: int, *shape: int) -> np.ndarray:
    """Random whole numbers `[n, TOGETHER, *shape]` below 2^32."""
    each = BATCH * int(np.prod(shape))
    return bits.random_raw(n * each // 2).view(np.uint32).reshape(n, BATCH, *shape)


def _chances(assumed: Assumptions) -> np.ndarray:
    """Quantiles of examples' chances to be right, in 2^-32: below so much a random number means a right answer."""
    mean = assumed.mean
    correlation = assumed.correlation
    at = (np.arange(_QUANTILES) + 0.5) / _QUANTILES
    if correlation > 1 - 1e-9:
        chances = (at > 1 - mean).astype(float)
    elif correlation < 1e-6 or not 0 < mean < 1:
        chances = np.full(_QUANTILES, mean)
    else:
        size = (1 - correlation) / correlation
        chances = scipy.special.betaincinv(mean * size, (1 - mean) * size, at)
    return np.round(chances * _WHOLE).astype(np.uint64)
