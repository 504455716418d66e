"""Finds the temperature of a teacher that is unsure of its correct answers: the student would learn its doubt."""

import torch
from torch import Tensor

from posgap.distillation.losses import token_cross_entropy

TEMPERATURES = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
SURE = 0.8  # mean probability of the least likely token of its correct answers that makes a teacher sure


def log_probabilities(logits: Tensor, targets: Tensor) -> Tensor:
    """The log-probability of each token at each of `TEMPERATURES`, `[M, V], [M]` to `[M, T]`."""
    return torch.stack([-token_cross_entropy(logits / each, targets) for each in TEMPERATURES], -1)


def choose_temperature(least: Tensor) -> tuple[float, float, float]:
    """Returns the highest of `TEMPERATURES` that makes the teacher sure, else the lowest; and the mean probability of
    the least likely tokens at 1 and at that temperature.

    `least [N, T]` has the log-probability of each answer's least likely token.
    """
    means = least.exp().mean(0).tolist()
    chosen = next((i for i, mean in enumerate(means) if mean >= SURE), len(means) - 1)
    return TEMPERATURES[chosen], means[0], means[chosen]
