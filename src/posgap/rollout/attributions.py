"""Measures what each token gives through a layer's attention: norms of its weighted values, and gradients of its
weights.

In shapes, B counts texts, N tokens, H heads that share their values in K groups, d a head's values and D the stream.
"""

import torch
from torch import Tensor, nn

AT_ONCE = 1 << 22  # numbers of written values worked on at a time: 16 MiB in float32
ROUNDING = 0.02  # of a norm: allowed difference between the reassembled and the model's own


class HeadOutputs:
    """The vectors that a layer's attention writes to the stream for each token and head: f_h(x_j) = v_hj W_h.

    `values` [B, K, N, d] have their bias in them; `matrix` [H d, D] is the output projection without its bias, which is
    no token's.
    """

    def __init__(self, values: Tensor, matrix: Tensor):
        self.values = values.float()
        groups = values.shape[1]
        size = values.shape[3]
        self.matrix = matrix.float().reshape(groups, -1, size, matrix.shape[1])  # [K, H / K, d, D]
        self.products = self._products()

    def _products(self) -> Tensor:
        """The products of all pairs of heads' vectors of a token, [B, N, H, H], from a few tokens' vectors at once."""
        texts, groups, tokens, _ = self.values.shape
        heads = groups * self.matrix.shape[1]
        width = self.matrix.shape[3]
        rows = max(1, AT_ONCE // (texts * heads * width))
        products = self.values.new_empty(texts, tokens, heads, heads)
        for first in range(0, tokens, rows):
            part = torch.einsum("bknd,kgde->bnkge", self.values[:, :, first : first + rows], self.matrix).flatten(2, 3)
            products[:, first : first + rows] = part @ part.transpose(2, 3)
        return products

    def shares(self, a: Tensor) -> Tensor:
        """Each token's share [B, Q, N] of the norms |sum_h a_hij f_h(x_j)|, with the attention `a` [B, H, Q, N]."""
        by_token = a.permute(0, 3, 2, 1)  # [B, N, Q, H]
        squares = ((by_token @ self.products) * by_token).sum(dim=3).transpose(1, 2)
        norms = squares.clamp(min=0).sqrt()  # heads that cancel can leave less than nothing
        return norms / norms.sum(dim=2, keepdim=True).clamp(min=torch.finfo(norms.dtype).tiny)

    def gradients(self, gradient: Tensor) -> Tensor:
        """Returns the gradients [B, H, Q, N] with respect to attention, from those [B, Q, D] with respect to its
        output."""
        of_heads = torch.einsum("bqe,kgde->bkgqd", gradient.float(), self.matrix)
        return torch.einsum("bkgqd,bknd->bkgqn", of_heads, self.values).flatten(1, 2)

    def heads(self, a: Tensor) -> Tensor:
        """Returns what the heads made for the last query, [B, H d], with its attention `a` [B, H, N]."""
        return torch.einsum("bkgn,bknd->bkgd", a.unflatten(1, self.matrix.shape[:2]), self.values).flatten(1)


def matrix_of(module: nn.Module, width: int, like: Tensor) -> Tensor:
    """The matrix [width, D] of a linear `module` of any kind, as it maps rows of the type and device of `like`."""
    rows = torch.eye(width, dtype=like.dtype, device=like.device)
    return (module(rows[None])[0] - module(torch.zeros_like(rows[:1])[None])[0]).float()
