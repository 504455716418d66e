"""Accuracy by position and its uncertainty.

`correct [E, P]` holds one row an example and one column a placement: the score of the response,
from 0 to 1. One bootstrap resample draws whole rows, so that an example comes with all its placements.
Everything returned is in points, 0 to 100.
"""

import numpy as np

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


def interval(samples: np.ndarray) -> list:
    """95 % percentile interval `[low, high]` of `samples [resamples]`, or `[[low, high], ...]`
    of `[resamples, P]`."""
    tail = 100 * (1 - CONFIDENCE) / 2
    return np.percentile(samples, [tail, 100 - tail], axis=0).T.tolist()


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
) -> tuple[float, list[float]]:
    """Mean of `candidate` minus mean of `reference`, with its interval.

    Both `[E]` or `[E, P]` over the same examples in the same order; a resample draws an example
    for both.
    """
    difference = candidate.astype(np.float64) - reference.astype(np.float64)
    rows = difference.reshape(len(difference), -1).mean(axis=1)
    weights = bootstrap_weights(len(rows), resamples, rng)
    return float(100 * rows.mean()), interval(100 * weights @ rows / len(rows))
