"""Accuracy by position and its uncertainty.

`correct [E, P]` holds one row an example and one column a placement: the score of the response, from 0 to 1. Examples
are the sample: a row counts once, however many placements it has. Everything returned is in points, 0 to 100, unless it
is called a share. docs/statistics.md gives the reason for each method.
"""

import math
from collections.abc import Sequence
from typing import Annotated

import numpy as np
import scipy  # which imports its parts when they are used
from pydantic import Field

Points = Annotated[float, Field(ge=-1e-6, le=100 + 1e-6)]  # beyond 0 and 100 by rounding alone
Count = Annotated[int, Field(ge=0)]
CONFIDENCE = 0.95
LEVEL = 1 - CONFIDENCE
EACH_END = LEVEL / 2  # how often either end of a two-sided interval may be wrong
# Means of several placements, and scores between 0 and 1, vary less than rights and wrongs. How much less is estimated,
# as if the sample had two more examples, a right and a wrong one: this is their sum of squares about their mean. So a
# few examples that happen to agree are not taken for certainty.
VARIANCE_OF_TWO = 0.5
_STEPS = 100  # steps to find the saddle point of `chance_of_less`; some ten are enough
_Counts = tuple[np.ndarray, np.ndarray, np.ndarray]
SPLITS = 9  # of the examples into halves, by content; the median over them is reported
FLIPS = 1999  # of the signs of examples' contrasts; with the signs seen they make 2,000


def accuracy(correct: np.ndarray) -> np.ndarray:
    """Accuracy [P] at each placement."""
    return 100 * correct.sum(axis=0) / len(correct)


def gap(accuracies: np.ndarray) -> float:
    """Best minus worst placement, of `accuracies [P]`."""
    return float(accuracies.max() - accuracies.min())


def mean_interval(scores: np.ndarray, error: float = EACH_END) -> np.ndarray:
    """Interval `[..., 2]` of the mean of `scores [E, ...]` over the examples; each end is wrong with chance `error`.

    Wilson's score interval (1927), which does not collapse at 0 and 100 %. Scores between 0 and 1 count as fewer or
    more examples of rights and wrongs, in the ratio of the variances.
    """
    z = -scipy.special.ndtri(error)
    share = scores.mean(axis=0)
    rights_and_wrongs = len(scores) * share * (1 - share)
    ratio = (((scores - share) ** 2).sum(axis=0) + VARIANCE_OF_TWO) / (rights_and_wrongs + VARIANCE_OF_TWO)
    n = len(scores) / ratio
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    # The exact bounds at 0 and 1 are 0 and 1; rounding strays from them.
    low = np.minimum(centre - half, share).clip(0)
    high = np.maximum(centre + half, share).clip(max=1)
    return 100 * np.stack([low, high], axis=-1)


def tango_bound(more: np.ndarray, fewer: np.ndarray, n: np.ndarray | float, error: float) -> np.ndarray:
    """Upper bound, a share, of the difference of two proportions of the same n examples (Tango 1998).

    `more` examples are right in the first way only and `fewer` in the second only; arrays of one shape. The bound
    is the largest difference that the score test does not refute, and is too low with chance `error`. At 20 of 20
    alike it is z^2 / (20 + z^2), not 0. Swapped counts give the lower bound, with its sign turned.
    """
    low = (more - fewer) / n
    high = np.ones_like(low)
    for _ in range(40):  # halvings, to the twelfth digit
        middle = (low + high) / 2
        refuted = tango_refutes(middle, more, fewer, n, error)
        low = np.where(refuted, low, middle)
        high = np.where(refuted, middle, high)
    return high


def tango_refutes(
    difference: np.ndarray | float, more: np.ndarray, fewer: np.ndarray, n: np.ndarray | float, error: float
) -> np.ndarray:
    """Whether a difference D, larger than the one seen, is refuted at the level `error` by Tango's score test (1998).

    That is so if n D - more + fewer exceeds z times the root of n (2 q + D (1 - D)), with q the likeliest share of
    `fewer` if D is true: the positive root of 2 n q^2 + b q = c.
    """
    b = (2 * n - more + fewer) * difference - more - fewer
    c = fewer * difference * (1 - difference)
    q = (np.sqrt(b**2 + 8 * n * c) - b) / (4 * n)
    strayed = n * difference - more + fewer
    return strayed > -scipy.special.ndtri(error) * np.sqrt(n * (2 * q + difference * (1 - difference)))


def _as_rights_and_wrongs(above: np.ndarray, below: np.ndarray, squares: np.ndarray, n: int) -> _Counts:
    """The counts of examples right in one way only, in the other only, and of all, that n differences between -1 and 1
    are worth.

    Takes the sum of positive differences, minus the sum of negative ones, and the sum of squares. Graded scores have a
    smaller variance than rights and wrongs with the same positive and negative parts, and count as correspondingly more
    examples.
    """
    ratio = (squares + VARIANCE_OF_TWO) / (above + below + VARIANCE_OF_TWO)
    return above / ratio, below / ratio, n / ratio


def difference_interval(differences: np.ndarray, error: float = EACH_END) -> np.ndarray:
    """Interval `[..., 2]` of the mean of paired `differences [E, ...]`, each between -1 and 1, over the examples.

    Each end is wrong with chance `error`: Tango's score interval (1998) if all differences are -1, 0 or 1
    (`tango_bound`), else Gaffke's bounds (`chance_of_less`).
    """
    columns = differences.reshape(len(differences), -1)
    ends = [[-_upper_bound(-column, error), _upper_bound(column, error)] for column in columns.T]
    return 100 * np.reshape(ends, (*differences.shape[1:], 2))


def _upper_bound(column: np.ndarray, error: float) -> float:
    """The upper end of `difference_interval`, a share, of one column of differences [E]."""
    if are_rights_and_wrongs(column):
        above, below = (np.asarray((column == sign).sum(), float) for sign in (1, -1))
        return float(tango_bound(above, below, float(len(column)), error))
    values, counts = (each[:, None] for each in np.unique((-column).round(12), return_counts=True))
    low = scipy.optimize.brentq(
        lambda mean: chance_of_less(values, counts, mean)[0] - error, -1, -column.mean(), xtol=1e-11
    )
    return -float(low)


def are_rights_and_wrongs(differences: np.ndarray) -> np.ndarray:
    """Returns whether all paired `differences [E, ...]` come from rights and wrongs: -1, 0 or 1 [...]."""
    return np.asarray(((differences == 0) | (abs(differences) == 1)).all(axis=0))


def chance_of_less(values: np.ndarray, counts: np.ndarray, mean: float) -> np.ndarray:
    """Returns the chance [R] that a mean is at most `mean`, for R samples; sample r has `values [V, R]` or `[V, 1]`,
    between -1 and 1, `counts [V, R]` times.

    The examples, and one more at the lowest value -1, get uniformly random weights; the result is the chance that their
    weighted mean is at most `mean`. The mean at which it equals an error is a lower bound that is too high with at most
    that error. This holds however skewed the values are, even if the sample lacks the largest losses (Gaffke 2005;
    Learned-Miller and Thomas 2019; no counterexample is known). For rights and wrongs it is Clopper and Pearson's
    bound. Weights are exponential numbers divided by their sum, so Lugannani and Rice's approximation (1980) for sums
    of exponential numbers applies; its relative error is a hundredth.
    """
    seen = np.concatenate([np.broadcast_to(values, counts.shape), np.full_like(counts[:1], -1, dtype=float)]) - mean
    weights = np.concatenate([counts, np.ones_like(counts[:1])]).astype(float)
    largest = np.where(weights > 0, seen, -np.inf).max(axis=0)
    least = np.where(weights > 0, seen, np.inf).min(axis=0)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        low = (1 - 1e-12) / least
        high = (1 - 1e-12) / largest
        tilt = np.zeros_like(low)
        for _ in range(_STEPS):  # Newton's, or a halving if that would leave the rest of the interval
            shares = seen / (1 - tilt * seen)
            slope = (weights * shares).sum(axis=0)
            low = np.where(slope < 0, tilt, low)
            high = np.where(slope < 0, high, tilt)
            step = tilt - slope / (weights * shares**2).sum(axis=0)
            before = tilt
            tilt = np.where((low < step) & (step < high), step, (low + high) / 2)
            if not (abs(tilt - before) > 1e-11 * abs(tilt)).any():
                break
        rest = 1 - tilt * seen
        root = np.sign(tilt) * np.sqrt(np.maximum(0, 2 * (weights * np.log(rest)).sum(axis=0)))
        slope = tilt * np.sqrt((weights * (seen / rest) ** 2).sum(axis=0))
        chance = scipy.special.ndtr(root) + _density(root) * (1 / root - 1 / slope)
        spread = np.sqrt((weights * seen**2).sum(axis=0))
        at = -(weights * seen).sum(axis=0) / spread
        skewness = 2 * (weights * seen**3).sum(axis=0) / spread**3
        near = scipy.special.ndtr(at) - skewness / 6 * (at**2 - 1) * _density(at)  # if the quotients lose all digits
        chance = np.where(abs(tilt) * spread < 0.01, near, chance)
    return np.where(largest <= 0, 1.0, np.where(least >= 0, 0.0, chance))


def _density(at: np.ndarray) -> np.ndarray:
    return np.exp(-(at**2) / 2) / math.sqrt(2 * math.pi)


def difference_reaches(differences: np.ndarray, least: float, error: float) -> np.ndarray:
    """Whether `difference_interval` begins at `least` (a share below 1) or above, found without a search [...]."""
    if least <= -1:
        return np.ones(differences.shape[1:], bool)
    columns = differences.reshape(len(differences), -1)
    above, below = ((columns == sign).sum(axis=0).astype(float) for sign in (1, -1))
    reached = tango_refutes(-least, below, above, len(columns), error)
    graded = ~are_rights_and_wrongs(columns)
    if graded.any():
        reached[graded] = chance_of_less(*_value_counts(columns[:, graded]), least) <= error
    return np.asarray(reached.reshape(differences.shape[1:]))


def _value_counts(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the values [V, 1] of columns [E, R], and how often [V, R] each column has them. If there are many values,
    returns the columns themselves, each value counted once."""
    values, at = np.unique(columns.round(12), return_inverse=True)
    if len(values) > len(columns) / 4:
        return columns, np.ones_like(columns)
    cells = at.reshape(columns.shape) + len(values) * np.arange(columns.shape[1])
    counts = np.bincount(cells.ravel(), minlength=len(values) * columns.shape[1])
    return values[:, None], counts.reshape(columns.shape[1], len(values)).T


def gap_ends_by(right: np.ndarray, most: float, error: float = LEVEL) -> np.ndarray:
    """Whether `gap_interval` of each of many sweeps, rights and wrongs `right [E, R, P]`, ends at `most` (a share) or
    below [R]."""
    runs, placements = right.shape[1:]
    if most >= 1:
        return np.ones(runs, bool)
    by_sweep = np.ascontiguousarray(right.transpose(1, 2, 0))
    both = by_sweep @ by_sweep.transpose(0, 2, 1)
    totals = by_sweep.sum(axis=2)
    more = (totals[:, :, None] - both).astype(float)  # right at the row's placement, and not at the column's
    refuted = tango_refutes(most, more, more.transpose(0, 2, 1), len(right), upper_error(placements, error))
    return np.asarray((refuted | np.eye(placements, dtype=bool)).all(axis=(1, 2)))


def paired_difference(
    candidate: np.ndarray, reference: np.ndarray, error: float = EACH_END
) -> tuple[float, tuple[float, float]]:
    """Mean of `candidate` minus mean of `reference`, with its interval: each end is wrong with chance `error`.

    Both `[E]` or `[E, P]` over the same examples in the same order.
    """
    difference = np.subtract(candidate, reference, dtype=np.float64)
    rows = difference.reshape(len(difference), -1).mean(axis=1)
    low, high = difference_interval(rows, error)
    return float(100 * rows.mean()), (float(low), float(high))


def placement_differences(candidate: np.ndarray, reference: np.ndarray, comparisons: int = 1) -> np.ndarray:
    """Interval `[P, 2]` of the difference in accuracy at each placement, of scores `[E, P]` of the same examples.

    `comparisons` of these intervals hold together with 95 % (Bonferroni).
    """
    return difference_interval(np.subtract(candidate, reference, dtype=np.float64), EACH_END / comparisons)


def pair_bounds(
    correct: np.ndarray, error: float, less: np.ndarray | None = None, more_variance: float = 0.0
) -> np.ndarray:
    """Upper bounds `[P, P]` of accuracy at the row's placement minus that at the column's; NaN on the diagonal.

    Each is too low with chance `error`. If `less [E]`, from -1 to 1, is taken off every example's difference, a
    difference of differences is bounded, and may reach from -200 to 200. An example's difference has `more_variance`
    than is seen.
    """
    scores = np.asarray(correct, np.float64)
    placements = correct.shape[1]
    taken_off, scale = (0.0, 1.0) if less is None else (less[:, None], 2.0)
    above, below, squares = np.empty((3, placements, placements))
    for i in range(placements):
        differences = (scores[:, [i]] - scores - taken_off) / scale
        above[i], below[i] = differences.clip(min=0).sum(axis=0), (-differences).clip(min=0).sum(axis=0)
        squares[i] = (differences**2).sum(axis=0) + len(scores) * more_variance / scale**2
    bounds = 100 * scale * tango_bound(*_as_rights_and_wrongs(above, below, squares, len(scores)), error)
    np.fill_diagonal(bounds, np.nan)
    return bounds


def upper_error(placements: int, error: float = LEVEL) -> float:
    """Returns the error of a single pair's upper bound, given the number of placements that bound the gap together.

    With two placements one pair is the gap, and each end of its interval is wrong in half of `error`, so that both
    together hold in all else. With more the interval's lower end hardly ever misses, and the upper one may in `error`.
    """
    return error / 2 if placements == 2 else error


def gap_interval(correct: np.ndarray, error: float = LEVEL) -> tuple[float, float]:
    """Returns the interval of the gap: either end is wrong with a chance of at most `error`, whatever the number of
    placements.

    The upper end is the largest upper bound of any ordered pair of placements. It covers the gap whenever the bound of
    the pair that attains the gap does, so each pair needs no correction (intersection-union: calling the gap at most G
    is then a test of this level). The lower end is the largest lower bound of a pair, all of which hold together
    (Bonferroni); it is 0 if `flatness_p` does not refute equal accuracy everywhere. With two placements each end is
    wrong in half of `error` (`upper_error`). One placement says nothing of a gap: 0 to 100.
    """
    placements = correct.shape[1]
    high = gap_upper_end(correct, error)
    if placements < 2 or flatness_p(correct) >= error:
        return 0.0, high
    return gap_lower_bound(correct, error / (placements * (placements - 1))), high


def gap_lower_bound(correct: np.ndarray, error: float) -> float:
    """The largest lower bound of a difference of two placements, each too high with chance `error`; 0 at least."""
    if correct.shape[1] < 2:
        return 0.0
    return max(0.0, float(np.nanmax(-pair_bounds(correct, error))))


def gap_upper_end(correct: np.ndarray, error: float = LEVEL) -> float:
    """The upper end of `gap_interval` alone, without the tests that the lower end takes."""
    if correct.shape[1] < 2:
        return 100.0
    return float(np.nanmax(pair_bounds(correct, upper_error(correct.shape[1], error))))


def flatness_p(correct: np.ndarray) -> float:
    """Returns the p-value of the claim that accuracy is the same at every placement, given scores `correct [E, P]`.

    The statistic is the sum of squares of the placements' totals about their mean. If position does not matter, an
    example's scores minus their own mean are zero on average, so their signs could as well be flipped. The p-value is
    the share of random sign flips that make the statistic larger; a flip turns all contrasts of an example together (a
    sign-flip test; ties count half). This keeps any correlation between the placements, so the test holds if
    neighbouring positions resemble each other, and with more placements than examples. With two placements it is
    McNemar's exact test with the mid-p-value. The flips are the same in every call.
    """
    contrasts = correct - correct.mean(axis=1, keepdims=True)
    rounding = 1e-9 * (contrasts**2).sum()
    if rounding < 1e-21:
        return 1.0
    seen = (contrasts.sum(axis=0) ** 2).sum()
    rng = np.random.default_rng(0)
    larger = 0
    alike = 1
    for start in range(0, FLIPS, 256):  # which keeps memory small
        signs = 2.0 * rng.integers(0, 2, (min(256, FLIPS - start), len(contrasts))) - 1
        flipped = ((signs @ contrasts) ** 2).sum(axis=1)
        larger += int((flipped > seen + rounding).sum())
        alike += int((abs(flipped - seen) <= rounding).sum())
    return (larger + alike / 2) / (FLIPS + 1)


def gap_noise(correct: np.ndarray, rng: np.random.Generator, permutations: int = 500) -> float:
    """The gap expected from a flat model with the same examples and the same mean.

    If position did not matter, each example's outcomes would be exchangeable over placements.
    So outcomes are permuted within each example, and the gap of the result is averaged over
    permutations.
    """
    return float(np.mean([gap(accuracy(rng.permuted(correct, axis=1))) for _ in range(permutations)]))


def split_halves(n: int) -> np.ndarray:
    """Assigns each of n rows to the half 0 or 1, by each of `SPLITS` splits [SPLITS, n], which are the same in every
    call. If rows stand in the order of their content, that alone decides."""
    bits = np.random.PCG64(n).random_raw(SPLITS * n)
    return bits.reshape(SPLITS, n).argsort(axis=1).argsort(axis=1) % 2


def extremes_elsewhere(correct: np.ndarray, half: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns for each example the placements (best [E], worst [E]) at which the examples of the other `half [E]` do
    best and worst; for sweeps [E, R, P], for each [E, R].

    A maximum is biased upwards on the examples that chose it; on held-out examples it is unbiased.
    """
    totals = np.stack([correct[half == 1].sum(axis=0), correct[half == 0].sum(axis=0)])
    return totals.argmax(axis=-1)[half], totals.argmin(axis=-1)[half]


def _sums_at_best(differences: np.ndarray, chooser: np.ndarray) -> tuple[np.ndarray, _Counts]:
    """For each split [2, S, ...], finds the placement at which `chooser [E, ..., P]` is best on one half of the
    examples. Returns the sums of `differences [E, ..., P]` there on the other half: those above 0, those below 0
    without sign, and their squares [S, ...]."""
    half = split_halves(len(chooser))
    halves = np.stack([half == 1, half == 0]).astype(chooser.dtype)
    chosen = np.tensordot(halves, chooser, 1).argmax(axis=-1)
    others = halves[::-1].astype(differences.dtype)
    sums = []
    for part in (differences.clip(min=0), (-differences).clip(min=0), differences**2):
        there = np.take_along_axis(np.tensordot(others, part, 1), chosen[..., None], axis=-1)[..., 0]
        sums.append(there.sum(axis=0))
    above, below, squares = sums
    return chosen, (above, below, squares)


def difference_at_best(
    differences: np.ndarray, chooser: np.ndarray, error: float = EACH_END
) -> tuple[float, tuple[float, float], list[int]]:
    """Returns the mean of `differences [E, P]` at the placement where `chooser [E, P]` is best, its interval (each end
    is wrong with chance `error`), and all placements that were best.

    The best placement is chosen on one half of the examples, and the differences are taken from the other half. Mean
    and ends are medians over `SPLITS` splits.
    """
    chosen, _ = _sums_at_best(differences, np.asarray(chooser, np.float64))
    half = split_halves(len(differences))
    splits = np.arange(SPLITS)[:, None]
    there = differences[np.arange(len(differences)), chosen[half, splits]]  # of each example at the other half's choice
    low, high = np.median(difference_interval(there.T, error), axis=0).tolist()
    return float(100 * np.median(there.mean(axis=1))), (low, high), sorted(set(chosen.ravel().tolist()))


def difference_at_best_reaches(differences: np.ndarray, chooser: np.ndarray, least: float, error: float) -> np.ndarray:
    """Whether the interval of `difference_at_best` begins at `least` (a share below 1) or above, for each of R sweeps
    of rights and wrongs [E, R, P], found without a search [R]."""
    if least <= -1:
        return np.ones(differences.shape[1], bool)
    _, (above, below, squares) = _sums_at_best(differences, chooser)
    counts = _as_rights_and_wrongs(below, above, squares, len(differences))
    return np.asarray(tango_refutes(-least, *counts, error).sum(axis=0) > SPLITS / 2)


def gap_difference(
    candidate: np.ndarray, reference: np.ndarray, error: float = EACH_END
) -> tuple[float, tuple[float, float]]:
    """Returns the gap of `candidate` minus the gap of `reference`, from scores [E, P] of the same examples, with an
    interval; each end is wrong with chance `error`.

    The best of noisy accuracies is too high and the worst too low, the more so the noisier the model. So a model's best
    and worst placement are chosen on one half of the examples and compared on the other. The estimate is the difference
    of the two remainders; a gap below 0 counts as 0. The interval's upper end is the largest upper bound, over pairs of
    placements, of the candidate's difference minus the reference's at its chosen pair: that difference is at most the
    reference's gap, and one of the pairs is the candidate's gap. The lower end is likewise, with the models exchanged.
    All three are medians over `SPLITS` splits into halves.
    """
    if candidate.shape[1] < 2:
        return 0.0, (-100.0, 100.0)
    new = np.asarray(candidate, np.float64)
    old = np.asarray(reference, np.float64)
    rows = np.arange(len(new))
    found = []
    # The halves are not independent: each half's noise affects both its own choice and the value at the other's choice.
    # That adds 2 / pi to the variance of a held-out gap. With more placements the largest bound is high enough.
    added = 2 / math.pi if new.shape[1] == 2 else 0.0
    for half in split_halves(len(new)):
        held_out = []
        for scores in (new, old):
            best, worst = extremes_elsewhere(scores, half)
            held_out.append(scores[rows, best] - scores[rows, worst])
        new_gap, old_gap = held_out
        estimate = max(0.0, float(new_gap.mean())) - max(0.0, float(old_gap.mean()))
        low = -np.nanmax(pair_bounds(old, error, new_gap, added * new_gap.var()))
        found.append((100 * estimate, low, np.nanmax(pair_bounds(new, error, old_gap, added * old_gap.var()))))
    estimate, low, high = np.median(found, axis=0).tolist()
    return estimate, (max(-100.0, low), min(100.0, high))


def ends(interval: Sequence[float], form: str = ".1f") -> str:
    """An interval as text, like "38.5 to 46.2"."""
    low, high = interval
    return f"{low:{form}} to {high:{form}}"
