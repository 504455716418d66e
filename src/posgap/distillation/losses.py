"""The losses of Pos2Distill (section 3), and the weights of a batch's rows.

Nothing here makes the host wait for a GPU.

Shapes: M response tokens of a batch, V tokens of the vocabulary, R rows (prompts) of a batch, N rows of the global
batch. Divergences and cross-entropies are computed in float32 from float32 logits (`Head`).
"""

from collections.abc import Hashable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def index_on(device: torch.device, numbers: Sequence[int]) -> Tensor:
    """Returns whole numbers as a tensor on `device`; the host does not wait for the copy."""
    return torch.tensor(numbers, device="cpu").to(device, non_blocking=True)


def token_kl(teacher_logits: Tensor, student_logits: Tensor) -> Tensor:
    """KL(teacher || student) of each token over the full vocabulary: `[M, V], [M, V]` to `[M]`."""
    a = teacher_logits.float()
    b = student_logits.float()
    over = torch.logsumexp(b, -1) - torch.logsumexp(a, -1)
    return (torch.softmax(a, -1) * (a - b)).sum(-1) + over


def token_cross_entropy(student_logits: Tensor, targets: Tensor) -> Tensor:
    """-log q(target) of each token: `[M, V], [M]` to `[M]`."""
    return F.cross_entropy(student_logits.float(), targets, reduction="none")


def per_row(token_losses: Tensor, lengths: Tensor) -> Tensor:
    """The sums `[R]` of `token_losses [M]` over each row's `lengths [R]` tokens, laid out row after row."""
    # 0 as often as the first row has tokens, then 1, ... With an unknown length it would be read from the device.
    rows = torch.repeat_interleave(lengths, output_size=len(token_losses))
    return token_losses.new_zeros(len(lengths)).index_add(0, rows, token_losses)


def alignment_weights(losses: Tensor, positions: Sequence[Hashable], alignment: str) -> Tensor:
    """Returns the weight `[N]` of each pair (position i, example j) of the global batch in the loss L_Act.

    `positions [N]` are the positions of `losses [N]`. Weights are constants to the gradient. The kinds of `alignment`
    are:

    - `none`: 1 / N, the plain mean.
    - `paper`: alpha_ij = softmax_i(mean_j L_ij) * L_ij / max_k L_ik (Pos2Distill, section 3.1).

    A position has weight 0 if all its losses are zero.
    """
    losses = losses.detach()
    if alignment == "none":
        return torch.full_like(losses, 1 / len(losses))
    number = {position: index for index, position in enumerate(dict.fromkeys(positions))}
    bins = index_on(losses.device, [number[position] for position in positions])
    zeros = losses.new_zeros(len(number))
    total = zeros.index_add(0, bins, losses)
    count = zeros.index_add(0, bins, torch.ones_like(losses))
    between = torch.softmax(total / count, 0)
    largest = zeros.scatter_reduce(0, bins, losses, "amax")
    return between[bins] * losses / largest[bins].clamp_min(torch.finfo(losses.dtype).tiny)
