"""Sets aside held-out examples from a search, and measures the gain of its factors on them.

The best of many candidates is the best partly by luck: on the examples that chose it, it gains more than on others (the
winner's curse). Held-out examples tell how much more.
"""

from collections.abc import Callable, Sequence

import numpy as np

from posgap.tasks.content import content_key
from posgap.tasks.examples import AnyExample

SHARE = 0.25  # of the examples that are kept aside
MIN_EXAMPLES = 8  # examples kept aside: an interval of fewer says nothing
_RESAMPLES = 1000


def hold_out(examples: Sequence[AnyExample]) -> tuple[list[AnyExample], list[AnyExample]]:
    """Returns the examples to search on, in their order, and the held-out ones: a `SHARE` of all, rounded down.

    The choice follows from the digest of the examples' contents alone; examples with the same content stay together. No
    example is held out if there would be fewer than `MIN_EXAMPLES` of them.
    """
    of_each = [content_key(example) for example in examples]
    different = sorted(set(of_each))
    count = int(len(different) * SHARE)
    aside = set(different[:count]) if count >= MIN_EXAMPLES else set()
    halves: tuple[list[AnyExample], list[AnyExample]] = [], []
    for example, name in zip(examples, of_each):
        halves[name in aside].append(example)
    return halves


def measure_gain(
    scaled: np.ndarray, unscaled: np.ndarray, fitness: Callable[[np.ndarray], float], seed: int
) -> tuple[float, tuple[float, float]]:
    """Returns how much fitter the scores `scaled [E, P]` are than `unscaled [E, P]`, 0 to 1, of the same examples, with
    the 95 % interval: the 2.5th and 97.5th percentile over examples drawn with replacement (Efron 1979), each with both
    of its rows. `fitness` maps an accuracy `[P]` in points to a fitness."""
    n = len(scaled)
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=_RESAMPLES)  # how often each example
    weights = np.vstack([np.ones(n), drawn]) / n
    seen, *resampled = [fitness(a) - fitness(b) for a, b in zip(100 * weights @ scaled, 100 * weights @ unscaled)]
    low, high = np.percentile(resampled, [2.5, 97.5])
    return float(seen), (float(low), float(high))
