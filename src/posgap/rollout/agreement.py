"""Whether measures of influence agree on which documents of a prompt, or which tokens of a text, draw more."""

from collections.abc import Mapping
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import rankdata
from typing_extensions import TypedDict

from posgap.rollout.distributions import mean_interval

OTHERS = ("gradient", "value_norm")  # those that a summary names


class Pair(TypedDict):
    """The agreement of two measures."""

    measures: list[str]
    spearman: float | None
    spearman_ci95: tuple[float, float] | None
    texts: int


class Agreement(TypedDict):
    """The result of `measure_agreement`."""

    of: str
    pairs: list[Pair]


def measure_agreement(shares: Mapping[str, np.ndarray], of: str, seed: int) -> dict[str, Any]:
    """Returns the agreement of every two measures for `measurement.json`, from each text's `shares [E, n]` over
    documents or tokens, which `of` names.

    It is Spearman's correlation over the n of a text, averaged over texts, with the 95 % bootstrap interval over texts.
    `texts` counts those with a defined correlation: neither measure is the same everywhere. Both are None if there is
    no such text.
    """
    rng = np.random.default_rng(seed)
    ranks = {name: _ranks(values) for name, values in shares.items()}
    pairs = []
    for one, other in combinations(ranks, 2):
        found = (ranks[one] * ranks[other]).sum(axis=1)
        found = found[np.isfinite(found)]
        pairs.append(
            {
                "measures": [one, other],
                "spearman": float(found.mean()) if len(found) else None,
                "spearman_ci95": mean_interval(found, rng),
                "texts": len(found),
            }
        )
    return {"of": of, "pairs": pairs}


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks of each row of `values [E, n]`, less their mean and of length one; nan if all are the same."""
    ranks = rankdata(values, axis=1) - (values.shape[1] + 1) / 2
    with np.errstate(invalid="ignore"):
        return ranks / np.linalg.norm(ranks, axis=1, keepdims=True)


def agreement_text(found: Mapping[str, Any], measure: str = "rollout") -> str:
    """Says in words how one measure agrees with those that are made in another way."""
    others = []
    for pair in found["pairs"]:
        other = next((name for name in pair["measures"] if name != measure and name in OTHERS), None)
        if measure in pair["measures"] and other and pair["spearman"] is not None:
            interval = pair["spearman_ci95"]
            between = f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
            others.append(f"{other.replace('_', ' ')} {pair['spearman']:.2f}{between}")
    if not others:
        return f"the {measure} orders no text's {found['of']}, so that no other measure can agree with it"
    return f"the order of a text's {found['of']} by {measure} agrees (Spearman) with that by {', '.join(others)}"
