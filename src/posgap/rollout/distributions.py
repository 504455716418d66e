"""The shape of a distribution over input positions, the distance between two of them, and bootstrap intervals.

A distribution [N] begins with the first token's share and sums to one.
"""

import numpy as np
from scipy.stats import rankdata

from posgap.measurement.statistics import EACH_END

RESAMPLES = 2000  # of a bootstrap, over texts or prompts
END = 0.02
STRETCH = 0.1  # shares of the positions that make up one end, and a stretch between the ends
CLEARLY = 1.2  # a mean share is clearly greater than another from this ratio on


def normalize(values: np.ndarray) -> np.ndarray:
    """Divides non-negative `values [..., N]` by their sums; rows of zeros become uniform."""
    sums = values.sum(axis=-1, keepdims=True)
    return np.where(sums > 0, values / np.where(sums > 0, sums, 1.0), 1 / values.shape[-1])


def bin_distribution(values: np.ndarray, bins: int) -> np.ndarray:
    """Rebins distributions `values [..., N]` into stretches of equal length: a token in two of them is divided by its
    overlap. As many bins as tokens change nothing."""
    sums = np.concatenate([np.zeros_like(values[..., :1]), np.cumsum(values, axis=-1)], axis=-1)
    edges = np.linspace(0, values.shape[-1], bins + 1)
    token = np.minimum(edges.astype(int), values.shape[-1] - 1)
    return np.diff(sums[..., token] + (edges - token) * values[..., token], axis=-1)


def spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation over positions: `a [..., N]` with `b [N]`; nan if either is constant."""
    x = rankdata(a, axis=-1)
    y = rankdata(b)
    x = x - x.mean(axis=-1, keepdims=True)
    y = y - y.mean()
    with np.errstate(invalid="ignore"):
        return (x @ y) / np.sqrt((x**2).sum(axis=-1) * (y**2).sum())


def wasserstein(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Wasserstein-1 distance in tokens from `a [..., N]` to `b [N]`: the summed |difference of cumulative sums|."""
    return np.abs(np.cumsum(a - b, axis=-1)).sum(axis=-1)


def percentile_interval(resampled: np.ndarray) -> list[float]:
    """The 95 % interval of a figure from its values in bootstrap samples, `resampled [RESAMPLES]`."""
    return np.percentile(resampled, [100 * EACH_END, 100 * (1 - EACH_END)]).tolist()


def mean_interval(values: np.ndarray, rng: np.random.Generator) -> list[float] | None:
    """The 95 % bootstrap interval of the mean of `values [E]`; None of fewer than two."""
    if len(values) < 2:
        return None
    return percentile_interval(values[rng.integers(len(values), size=(RESAMPLES, len(values)))].mean(axis=1))


def profile(distribution: np.ndarray) -> dict[str, float]:
    """Mean shares relative to the uniform distribution's, in four places.

    `first` and `last` are the two ends (2 % of the positions each, at least one token), `trough` and `crest` the
    stretches between them (10 %) with the smallest and the greatest share. The last token is left out: it keeps itself
    through the residual connections, and would make most curves rise at their end.
    """
    uniform = 1 / len(distribution)
    distribution = distribution[:-1] if len(distribution) > 1 else distribution
    n = len(distribution)
    end = max(1, round(END * n))
    stretch = max(1, round(STRETCH * n))
    between = distribution[end : n - end] if n > 2 * end else distribution
    stretch = min(stretch, len(between))
    sums = np.cumsum(np.concatenate([[0.0], between]))
    stretches = (sums[stretch:] - sums[:-stretch]) / stretch
    return {
        "first": float(distribution[:end].mean() / uniform),
        "trough": float(stretches.min() / uniform),
        "crest": float(stretches.max() / uniform),
        "last": float(distribution[-end:].mean() / uniform),
    }


def shape(distribution: np.ndarray) -> str:
    """The name of the shape: U-shaped, primacy, recency, greatest in the middle, or flat; see `profile`."""
    shares = profile(distribution)
    first = shares["first"] > CLEARLY * shares["trough"]
    last = shares["last"] > CLEARLY * shares["trough"]
    if shares["crest"] > CLEARLY * max(shares["first"], shares["last"]):
        return "greatest between the ends"
    if first and last:
        return "U-shaped"
    if first:
        return "falling from the first token (primacy)"
    return "rising to the last token (recency)" if last else "flat"


def describe_distribution(distribution: np.ndarray) -> dict:
    """The shape, and the shares that it was read from."""
    n = len(distribution)
    shares = profile(distribution)
    return {
        "shape": shape(distribution),
        "first_token": float(distribution[0]),
        "first_token_times_uniform": float(distribution[0] * n),
        "last_token": float(distribution[-1]),
        "last_token_times_uniform": float(distribution[-1] * n),
        "trough_times_uniform": shares["trough"],
        "crest_times_uniform": shares["crest"],
    }


def strengths_text(lambdas: np.ndarray) -> str:
    """Describes in a clause how residual strengths `lambdas` [L] change over depth."""
    first = lambdas[0]
    last = lambdas[-1]
    if abs(first - last) < 0.01:
        return f"residual strength {first:.2f} at the first layer and the last"
    return f"residual strength {'falls' if last < first else 'rises'} from {first:.2f} to {last:.2f} over depth"


def prediction_text(distribution: np.ndarray, lambdas: np.ndarray, without_residuals: np.ndarray) -> str:
    """One sentence on a predicted rollout's shape over tokens, and its causes.

    `lambdas` [L] are its residual strengths, `without_residuals` [N] is the rollout of the same attention without
    residual connections.
    """
    description = describe_distribution(distribution)
    shape_name = description["shape"]
    return (
        f"{shape_name[0].upper()}{shape_name[1:]}; the first token draws "
        f"{description['first_token_times_uniform']:.1f} times its share, the last, which keeps itself, "
        f"{description['last_token_times_uniform']:.1f} times; {strengths_text(lambdas)}; without residuals the same "
        f"attention would put {100 * without_residuals[0]:.0f} % on token 1 and "
        f"{100 * without_residuals[-1]:.0f} % on the last"
    )
