"""The R1 losses (Pos2Distill, section 3.1; design: L = L_Act + lambda L_Anc).

Rows R are prompts of one global batch, T response tokens, V the vocabulary. Everything is
computed in float32.
"""

import torch
from torch import Tensor


def response_kl(teacher_logits: Tensor, student_logits: Tensor, mask: Tensor) -> Tensor:
    """Mean over response tokens of KL(teacher || student), full vocabulary.

    `teacher_logits, student_logits [R, T, V]` predict the response tokens r_1..r_T, so column t
    belongs to the token *before* r_t; `mask [R, T]` is true where a row has a response token.
    Returns `[R]`.
    """
    p = torch.log_softmax(teacher_logits.float(), dim=-1)
    q = torch.log_softmax(student_logits.float(), dim=-1)
    per_token = (p.exp() * (p - q)).sum(-1)
    return (per_token * mask).sum(-1) / mask.sum(-1)


def alignment_weights(losses: Tensor, positions: Tensor) -> Tensor:
    """alpha_ij = softmax_i(mean_j L_ij) * L_ij / max_k L_ik (Pos2Distill, position-aware alignment).

    `losses [M]` of (position, example) pairs over the whole global batch and their `positions [M]`;
    pairs at one position make one bin i. Weights are constants to the gradient. A position whose
    losses are all zero weighs nothing. Returns `[M]`.
    """
    losses = losses.detach()
    _, bins = positions.unique(return_inverse=True)
    n_bins = int(bins.max()) + 1
    zeros = losses.new_zeros(n_bins)
    mean = zeros.index_add(0, bins, losses) / zeros.index_add(0, bins, torch.ones_like(losses))
    highest = zeros.scatter_reduce(0, bins, losses, "amax")
    within = losses / highest[bins].clamp_min(torch.finfo(losses.dtype).tiny)
    return torch.softmax(mean, 0)[bins] * within
