"""What a distribution over input positions looks like, and how far two of them are apart.

A distribution [N] has the first token's share first and sums to one.
"""

import numpy as np
from scipy.stats import rankdata

END, STRETCH = 0.02, 0.1  # share of the positions that an end is, and a stretch that is compared with it
CLEARLY = 1.2  # how many times another is clearly more


def normalized(values: np.ndarray) -> np.ndarray:
    """Non-negative `values [..., N]` as distributions; all-zero rows become uniform."""
    sums = values.sum(axis=-1, keepdims=True)
    return np.where(sums > 0, values / np.where(sums > 0, sums, 1.0), 1 / values.shape[-1])


def spearman(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Spearman's rank correlation over positions: `a [..., N]` with `b [N]`; nan where either is constant."""
    x, y = rankdata(a, axis=-1), rankdata(b)
    x, y = x - x.mean(axis=-1, keepdims=True), y - y.mean()
    with np.errstate(invalid="ignore"):
        return (x @ y) / np.sqrt((x**2).sum(axis=-1) * (y**2).sum())


def wasserstein(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Wasserstein-1 distance in tokens: `a [..., N]` to `b [N]`, the sum over |difference of the cumulative sums|."""
    return np.abs(np.cumsum(a - b, axis=-1)).sum(axis=-1)


def profile(distribution: np.ndarray) -> dict[str, float]:
    """Mean shares, relative to a uniform one: of the ends (2 % of the positions, at least one token each),
    and of the stretches (10 %) between them that draw least and most."""
    n = len(distribution)
    end, stretch = max(1, round(END * n)), max(1, round(STRETCH * n))
    between = distribution[end : n - end] if n > 2 * end else distribution
    stretch = min(stretch, len(between))
    sums = np.cumsum(np.concatenate([[0.0], between]))
    stretches = n * (sums[stretch:] - sums[:-stretch]) / stretch
    return {
        "first": float(n * distribution[:end].mean()),
        "trough": float(stretches.min()),
        "crest": float(stretches.max()),
        "last": float(n * distribution[-end:].mean()),
    }


def shape(distribution: np.ndarray) -> str:
    """U-shaped, primacy, recency, middle-heavy or flat, by whether each end draws more than the trough."""
    found = profile(distribution)
    first, last = found["first"] > CLEARLY * found["trough"], found["last"] > CLEARLY * found["trough"]
    if found["crest"] > CLEARLY * max(found["first"], found["last"]):
        return "greatest between the ends"
    if first and last:
        return "U-shaped"
    if first:
        return "falling from the first token (primacy)"
    return "rising to the last token (recency)" if last else "flat"


def describe(distribution: np.ndarray) -> dict:
    """The shape and the shares by which one reads it."""
    n, found = len(distribution), profile(distribution)
    return {
        "shape": shape(distribution),
        "first_token": float(distribution[0]),
        "first_token_times_uniform": float(distribution[0] * n),
        "last_token": float(distribution[-1]),
        "last_token_times_uniform": float(distribution[-1] * n),
        "trough_times_uniform": found["trough"],
        "crest_times_uniform": found["crest"],
    }


def reading(distribution: np.ndarray, lambdas: np.ndarray, without_residuals: np.ndarray) -> str:
    """One sentence on why a rollout looks as it does.

    `lambdas` [L] are the residual strengths it has, `without_residuals` [N] the rollout that the same
    attention would have with none.
    """
    found = describe(distribution)
    first, last = lambdas[0], lambdas[-1]
    if abs(first - last) < 0.01:
        strengths = f"residual strength {first:.2f} at the first layer and the last"
    else:
        moves = "falls" if last < first else "rises"
        strengths = f"residual strength {moves} from {first:.2f} to {last:.2f} over depth"
    return (
        f"{found['shape'][0].upper()}{found['shape'][1:]}; the first token draws "
        f"{found['first_token_times_uniform']:.1f} times its share, the last {found['last_token_times_uniform']:.1f} "
        f"times; {strengths}; without residuals the same attention would put {100 * without_residuals[0]:.0f} % on "
        f"token 1 and {100 * without_residuals[-1]:.0f} % on the last"
    )
