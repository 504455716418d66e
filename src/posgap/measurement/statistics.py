"""Accuracy by position and its uncertainty.

`correct [E, P]` holds one row an example and one column a placement: the score of the response,
from 0 to 1. One bootstrap resample draws whole rows, so that an example comes with all its placements.
Everything returned is in points, 0 to 100.
"""

import numpy as np
from scipy import special

CONFIDENCE = 0.95


def accuracy(correct: np.ndarray) -> np.ndarray:
    """Accuracy [P] at each placement."""
    return 100 * correct.sum(axis=0) / len(correct)


def gap(accuracies: np.ndarray) -> np.ndarray:
    """Best minus worst placement: `accuracies [..., P]` to `[...]`."""
    return accuracies.max(axis=-1) - accuracies.min(axis=-1)


def bootstrap_weights(n_examples: int, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """How often each resample drew each example: `[resamples, E]`, rows summing to E."""
    return rng.multinomial(n_examples, np.full(n_examples, 1 / n_examples), size=resamples)


def bootstrap_accuracy(correct: np.ndarray, resamples: int, rng: np.random.Generator) -> np.ndarray:
    """Accuracies `[resamples, P]` of bootstrap resamples of the examples."""
    weights = bootstrap_weights(len(correct), resamples, rng)
    return 100 * weights @ correct.astype(np.float64) / len(correct)


def interval(samples: np.ndarray) -> tuple[float, float]:
    """95 % percentile interval (low, high) of `samples [resamples]`."""
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(samples, [tail, 100 - tail])
    return float(low), float(high)


def wilson_interval(correct: np.ndarray) -> list[list[float]]:
    """95 % interval `[[low, high], ...]` of the accuracy at each placement.

    Wilson's score interval (1927) does not collapse at 0 and 100 %, as resampling does. Scores
    between 0 and 1 vary no more than rights and wrongs of the same mean, so that for them it is wide.
    """
    n, share, z = len(correct), correct.mean(axis=0), special.ndtri(0.5 + CONFIDENCE / 2)
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    # The exact bounds at 0 and 1 are 0 and 1, from which rounding strays.
    low, high = np.minimum(centre - half, share).clip(0), np.maximum(centre + half, share).clip(max=1)
    return (100 * np.stack([low, high], axis=-1)).tolist()


def gap_interval(accuracies: np.ndarray, resampled: np.ndarray) -> tuple[float, float]:
    """95 % interval of the gap, from `accuracies [P]` and those of bootstrap resamples.

    The largest of noisy differences is too large, and a resample's is so once more: percentiles
    of the resampled gap leave out a small gap nearly always. So only the upper end is a percentile.
    The lower end comes from simultaneous intervals of all pairs of placements: the estimate less
    what no pair's difference strays in 97.5 % of resamples. Both ends err on the side of caution.
    """
    upper = 50 + 50 * CONFIDENCE
    strayed = np.percentile(gap(resampled - accuracies), upper)
    return max(0.0, float(gap(accuracies) - strayed)), float(np.percentile(gap(resampled), upper))


def cochran_q(correct: np.ndarray) -> tuple[float, int, float]:
    """Cochran's Q (1950) for equal accuracy at every placement: statistic, degrees of freedom, p-value.

    Q = (P - 1) sum_j (column total - their mean)^2 / sum_ij (score - mean of its row)^2 is chi-squared
    with P - 1 degrees of freedom if position does not matter, for many examples. For rights and wrongs
    it is Cochran's; for scores in between (F1) it is the same test of whether the scores of an example
    could as well stand in any other order, with the scores' own variance in place of p (1 - p).
    """
    placements = correct.shape[1]
    within = ((correct - correct.mean(axis=1, keepdims=True)) ** 2).sum()
    if placements < 2 or within < 1e-12:
        return 0.0, placements - 1, 1.0
    totals = correct.sum(axis=0)
    q = float((placements - 1) * ((totals - totals.mean()) ** 2).sum() / within)
    return q, placements - 1, float(special.chdtrc(placements - 1, q))


def gap_noise(correct: np.ndarray, resamples: int, rng: np.random.Generator) -> float:
    """The gap expected from a flat model with the same examples and the same mean.

    If position did not matter, each example's outcomes would be exchangeable over placements.
    So outcomes are permuted within each example, and the gap of the result is averaged over
    permutations.
    """
    gaps = np.empty(resamples)
    for i in range(resamples):
        gaps[i] = gap(accuracy(rng.permuted(correct, axis=1)))
    return float(gaps.mean())


def paired_difference(
    candidate: np.ndarray, reference: np.ndarray, resamples: int, rng: np.random.Generator
) -> tuple[float, tuple[float, float]]:
    """Mean of `candidate` minus mean of `reference`, with its interval.

    Both `[E]` or `[E, P]` over the same examples in the same order; a resample draws an example
    for both.
    """
    difference = candidate.astype(np.float64) - reference.astype(np.float64)
    rows = difference.reshape(len(difference), -1).mean(axis=1)
    weights = bootstrap_weights(len(rows), resamples, rng)
    return float(100 * rows.mean()), interval(100 * weights @ rows / len(rows))


def placement_differences(candidate: np.ndarray, reference: np.ndarray, comparisons: int = 1) -> np.ndarray:
    """Interval `[P, 2]` of the difference in accuracy at each placement, of scores `[E, P]` of the same examples.

    Agresti and Min (2005): two examples are added that the models answer alike on average, so that
    the interval does not collapse where the models never differ. `comparisons` of these intervals
    hold together with 95 % (Bonferroni).
    """
    difference = candidate.astype(np.float64) - reference.astype(np.float64)
    n, z = len(difference) + 2, special.ndtri(1 - (1 - CONFIDENCE) / (2 * comparisons))
    mean = difference.sum(axis=0) / n
    half = z * np.sqrt(((difference**2).sum(axis=0) + 1) / n - mean**2) / np.sqrt(n)
    return 100 * np.stack([mean - half, mean + half], axis=-1).clip(-1, 1)


def gap_difference(
    candidate: np.ndarray, reference: np.ndarray, resamples: int, rng: np.random.Generator
) -> tuple[float, tuple[float, float]]:
    """Gap of `candidate` minus gap of `reference`, with a 95 % interval.

    Resampled gaps are too large, more so for the flatter model. The interval spans the percentile
    and the reverse percentile interval, of which one errs to each side.
    """
    weights = bootstrap_weights(len(candidate), resamples, rng)
    low, high = interval(
        gap(100 * weights @ candidate.astype(np.float64) / len(candidate))
        - gap(100 * weights @ reference.astype(np.float64) / len(candidate))
    )
    estimate = float(gap(accuracy(candidate)) - gap(accuracy(reference)))
    return estimate, (min(low, 2 * estimate - high), max(high, 2 * estimate - low))
