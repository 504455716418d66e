"""The losses of Pos2Distill (section 3; design, section 4) and how rows of a batch are weighed.

M response tokens of a batch, D the hidden width, V the vocabulary, R rows (prompts), N rows of the
global batch. Divergences and cross-entropies are computed in float32.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Logits that exist at once, in numbers: 64 MiB in float32.
LOGITS_AT_ONCE = 1 << 24


def token_kl(teacher_logits: Tensor, student_logits: Tensor) -> Tensor:
    """KL(teacher || student) of each token over the full vocabulary: `[M, V], [M, V]` to `[M]`."""
    a, b = teacher_logits.float(), student_logits.float()
    over = torch.logsumexp(b, -1) - torch.logsumexp(a, -1)
    return (torch.softmax(a, -1) * (a - b)).sum(-1) + over


def token_cross_entropy(targets: Tensor, student_logits: Tensor) -> Tensor:
    """-log q(target) of each token: `[M], [M, V]` to `[M]`."""
    return F.cross_entropy(student_logits.float(), targets, reduction="none")


def in_chunks(loss: Callable[..., Tensor], vocabulary: int, *per_token: Tensor) -> Tensor:
    """`loss(*per_token)` over chunks of tokens, so that all M tokens' logits `[M, V]` never exist.

    `loss` computes logits itself, from hidden states; each chunk's are dropped after the forward
    pass and computed again in the backward one. Equal to `loss(*per_token)`: `[M, ...]` to `[M]`.
    """
    size = max(1, LOGITS_AT_ONCE // vocabulary)
    parts = zip(*(tensor.split(size) for tensor in per_token))
    return torch.cat([checkpoint(loss, *part, use_reentrant=False, preserve_rng_state=False) for part in parts])


def per_row(token_losses: Tensor, lengths: Tensor) -> Tensor:
    """Sums `token_losses [M]`, laid out row after row, over each row's `lengths [R]` tokens: `[R]`."""
    rows = torch.repeat_interleave(torch.arange(len(lengths), device=lengths.device), lengths)
    return token_losses.new_zeros(len(lengths)).index_add(0, rows, token_losses)


def alignment_weights(losses: Tensor, bins: Tensor, alignment: str = "paper") -> Tensor:
    """How much each (position i, example j) pair of the global batch weighs in L_Act.

    `losses [N]` and the position each belongs to, `bins [N]`, any integers; `[N]` is returned, a
    constant to the gradient.

    - `none`: 1 / N, the plain mean.
    - `paper`: alpha_ij = softmax_i(mean_j L_ij) * L_ij / max_k L_ik (Pos2Distill, section 3.1).
    - `balanced`: softmax_i(mean_j L_ij) * L_ij / sum_k L_ik. The paper's factors, but a position's
      share does not grow with how often it was drawn, and L_Act stays on the scale of one KL
      whatever the batch size.

    A position whose losses are all zero weighs nothing.
    """
    losses = losses.detach()
    if alignment == "none":
        return torch.full_like(losses, 1 / max(len(losses), 1))
    _, bins = bins.unique(return_inverse=True)
    zeros = losses.new_zeros(int(bins.max()) + 1)
    total = zeros.index_add(0, bins, losses)
    between = torch.softmax(total / zeros.index_add(0, bins, torch.ones_like(losses)), 0)
    scale = total if alignment == "balanced" else zeros.scatter_reduce(0, bins, losses, "amax")
    return between[bins] * losses / scale[bins].clamp_min(torch.finfo(losses.dtype).tiny)
