"""Draws sweeps at random: the answers of two models that are equally good at every position, for the same examples.

Each example's chance of a right answer follows a beta distribution; given the chance, the placements are independent.
So any two placements correlate equally, and mean and correlation are exactly the assumed ones. With probability
`agreement` the other model has the example's chance too, else one of its own; so the two models' chances correlate by
exactly that much.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy

from posgap.measurement.power import Assumptions, examples_by_cochran, noncentrality
from posgap.measurement.statistics import CONFIDENCE

BATCH = 32  # sweeps that are drawn in one piece
_QUANTILES = 4096  # of the chances
_WHOLE = 2**32
_GAPS = 400  # sweeps that are drawn to see how often a gap is found
_MOST = 50_000  # outcomes of a sweep beyond which Cochran's number of examples is final


class SimulatedSweeps(NamedTuple):
    """Rights and wrongs, 1 and 0, of R sweeps with n examples of a `candidate [n, R, P]` and of its `reference`, and
    the error rate of each bound in their verdicts."""

    candidate: np.ndarray
    reference: np.ndarray
    error: float


def simulate_sweeps(assumed: Assumptions, n: int, pieces: int) -> Iterator[SimulatedSweeps]:
    """Draws this many pieces of `BATCH` sweeps each. The first examples of a sweep are the same for any n.

    They are made of a generator's raw bits, which are the same everywhere and in every version of numpy: a verdict
    states what follows from them, and other machines check it.
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


def examples_for_gap(gap: float, assumed: Assumptions, power: float) -> int:
    """Returns the examples for which the flatness test finds a gap (0 to 1) with this power, at the 5 % level.

    It takes the gap that is hardest to see: one placement half of it above and one half of it below all others, or as
    far above as there is room. Cochran's Q gives a first number. Simulated sweeps show how often the test finds the gap
    with it, and the noncentrality of that power corrects the number, three times. If near placements are more alike
    than far ones, the test finds less.
    """
    n = examples_by_cochran(gap, assumed, power)
    for _ in range(3):
        if n * assumed.placements > _MOST:
            break
        found = sum(map(_is_uneven, _simulate_gap(gap, assumed, math.ceil(n))))
        share = min(max(found, 1) / _GAPS, 1 - 1 / _GAPS)
        missing = noncentrality(assumed.placements, power) / noncentrality(assumed.placements, max(share, 0.06))
        n *= missing**0.7  # since a whole step oscillates if few outcomes differ
    return math.ceil(n)


def _simulate_gap(gap: float, assumed: Assumptions, n: int) -> Iterator[np.ndarray]:
    """Yields sweeps `[n, P]` of a model whose first placement is better than its last by the gap: there an answer that
    would be wrong is right, or the reverse, at random examples."""
    mean = assumed.mean
    above = min(gap / 2, 1 - mean)
    chances = _chances(assumed)
    for sweep in range(_GAPS):
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([sweep, 5])))
        correct = rng.integers(0, _WHOLE, (n, assumed.placements)) < chances[rng.integers(0, _QUANTILES, (n, 1))]
        correct[:, 0] |= rng.random(n) < above / (1 - mean)
        correct[:, -1] &= rng.random(n) >= min((gap - above) / mean, 1.0)
        yield correct.astype(float)


def _is_uneven(correct: np.ndarray) -> bool:
    """Whether the flatness test refutes that position is without effect, of `correct [n, P]`.

    In place of turning signs it takes what the statistic then follows, about: a scaled chi-squared with its mean and
    its variance, which are known (Box 1954).
    """
    contrasts = correct - correct.mean(axis=1, keepdims=True)
    covariance = contrasts.T @ contrasts
    mean = np.trace(covariance)
    half_variance = (covariance**2).sum() - ((contrasts**2).sum(axis=1) ** 2).sum()
    if half_variance <= 0:
        return False
    scale = half_variance / mean
    seen = (contrasts.sum(axis=0) ** 2).sum()
    return bool(scipy.special.chdtrc(mean / scale, seen / scale) < 1 - CONFIDENCE)


def _bits(bits: np.random.PCG64, n: int, *shape: int) -> np.ndarray:
    """Random whole numbers `[n, TOGETHER, *shape]` below 2^32."""
    each = BATCH * int(np.prod(shape))
    return bits.random_raw(n * each // 2).view(np.uint32).reshape(n, BATCH, *shape)


def _chances(assumed: Assumptions) -> np.ndarray:
    """Returns quantiles of examples' chances to be right, in 2^-32: a random number below the quantile means a right
    answer."""
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
