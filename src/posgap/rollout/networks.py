"""Attention-only networks (Wu et al. 2025, section 5), many of them trained side by side as one.

Networks of equal depth differ only in a table of numbers: masks and decay are a bias on the scores. So R networks are
one stack of parameters with a leading dimension R, and training one of them does not affect the others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

HIDDEN_LAYERS = 3


@dataclass(frozen=True)
class Design:
    """One network. `width` (w) belongs to mask "window", `prefix` (K) to "prefix"; `slope` (m) is its decay's."""

    depth: int
    mask: Literal["causal", "window", "prefix"] = "causal"
    width: int = 0
    prefix: int = 0
    slope: float = -math.log(0.8)

    def bias(self, tokens: int) -> Tensor:
        """Returns the bias on the scores [T, T]: -inf if the mask forbids, and a decay's loss by distance elsewhere."""
        i = torch.arange(tokens)[:, None]
        j = torch.arange(tokens)[None, :]
        allowed = {
            "causal": j <= i,
            "window": (j <= i) & (i - j < self.width),
            "prefix": (j <= i) | (j < self.prefix),
        }[self.mask]
        return (-self.slope * (i - j).abs()).masked_fill(~allowed, -math.inf)


class NetworkStack(nn.Module):
    """R attention-only networks of equal depth and size, each followed by its own classifier.

    A layer is X <- X + softmax(X W_Q (X W_K)^T / sqrt(d) + bias) X W_V with one head. The classifier
    reads the last token through three hidden layers with ReLU and returns the labels' logits. Each network's
    parameters are drawn by its own generator of `rngs`, so they do not depend on the networks trained beside it.
    """

    bias: Tensor

    def __init__(self, designs: Sequence[Design], tokens: int, size: int, labels: int, rngs: Sequence[Generator]):
        super().__init__()
        (self.depth,) = {design.depth for design in designs}
        self.size = size

        def draw(*shape: int) -> nn.Parameter:
            uniform = [torch.rand(*shape, generator=rng, device=rng.device) for rng in rngs]
            return nn.Parameter((2 * torch.stack(uniform) - 1) / math.sqrt(size))

        self.maps = nn.ParameterList([draw(3, size, size) for _ in range(self.depth)])  # W_Q, W_K, W_V
        widths = [size] * HIDDEN_LAYERS + [labels]
        self.weights = nn.ParameterList(map(partial(draw, size), widths))
        self.biases = nn.ParameterList(map(partial(draw, 1), widths))

        stacked = torch.stack([design.bias(tokens) for design in designs])[:, None]
        self.register_buffer("bias", stacked.float())

    def forward(self, inputs: Tensor, seen: list[Tensor] | None = None) -> Tensor:
        """Logits [R, B, labels] of `inputs` [R, B, T, d]; each layer's attention [R, B, T, T] is appended to `seen`."""
        x = inputs
        for layer, maps in enumerate(self.maps):
            # Only the last token of the last layer is read, so there the maps are applied to the last token's
            # side of each product, which then costs next to nothing.
            queries = slice(-1, None) if layer == self.depth - 1 and seen is None else slice(None)
            to_query, to_key, to_value = maps.unbind(1)
            query = _apply_maps(x[:, :, queries], to_query)
            products = _apply_maps(query, to_key.transpose(1, 2)) @ x.transpose(2, 3)
            scores = products / math.sqrt(self.size) + self.bias[:, :, queries]
            attention = scores.softmax(-1)
            if seen is not None:
                seen.append(attention)
            x = x[:, :, queries] + _apply_maps(attention @ x, to_value)
        hidden = x[:, :, -1]
        for weight, bias in zip(self.weights[:-1], self.biases[:-1]):
            hidden = F.relu(hidden @ weight + bias)
        return hidden @ self.weights[-1] + self.biases[-1]


def _apply_maps(x: Tensor, maps: Tensor) -> Tensor:
    """Each network's `x` [R, B, T, d] times its own matrix [R, d, d]."""
    return (x.flatten(1, 2) @ maps).unflatten(1, x.shape[1:3])
