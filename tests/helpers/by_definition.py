"""Twins by definition and brute force, which several files compare with."""

import math

import numpy as np
import torch
from safetensors.torch import load_file
from scipy import optimize, special, stats
from transformers import LlamaConfig

SHAPE = LlamaConfig(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=512, max_position_embeddings=512, tie_word_embeddings=False,
)  # fmt: skip


def alpha_by_definition(losses, positions):
    """softmax_i(mean_j L_ij) * L_ij / max_k(L_ik), in plain Python."""
    bins = {}
    for loss, position in zip(losses, positions):
        bins.setdefault(position, []).append(loss)
    total = sum(math.exp(sum(b) / len(b)) for b in bins.values())
    return [
        math.exp(sum(bins[p]) / len(bins[p])) / total * (loss / max(bins[p]) if max(bins[p]) else 0)
        for loss, p in zip(losses, positions)
    ]


def paired(more: int, fewer: int, n: int) -> np.ndarray:
    """Differences of n examples, of which `more` are right in the first way only and `fewer` in the second only."""
    return np.array([1.0] * more + [-1.0] * fewer + [0.0] * (n - more - fewer))


def bound_by_brute_force(more: int, fewer: int, n: int, error: float) -> float:
    """Tango's upper bound with the likelihood maximised over a grid, refined, and no formula for its maximum."""

    def score(difference: float) -> float:
        def unlikelihood(q: float) -> float:
            counts, shares = (more, fewer, n - more - fewer), (q + difference, q, 1 - 2 * q - difference)
            return -sum(special.xlogy(count, max(share, 0)) for count, share in zip(counts, shares))

        low, high = max(0.0, -difference), (1 - difference) / 2
        for _ in range(8):
            grid = np.linspace(low, high, 41)
            at = int(np.argmin([unlikelihood(q) for q in grid]))
            low, high = grid[max(0, at - 1)], grid[min(40, at + 1)]
        q = (low + high) / 2
        return (n * difference - more + fewer) / np.sqrt(n * (2 * q + difference * (1 - difference)))

    z = stats.norm.isf(error)
    return optimize.brentq(lambda d: score(d) - z, (more - fewer) / n + 1e-9, 1 - 1e-9)


def weights(folder) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")
