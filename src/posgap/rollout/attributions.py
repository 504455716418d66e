"""What each token gives through a layer's attention: norms of its weighted values, and its part in the answer's logit.

In shapes, B counts texts, N tokens, H heads that share their values in K groups, d a head's values and D the stream.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from posgap.foundation.errors import PosgapError

AT_ONCE = 1 << 22  # numbers of written values worked on at a time: 16 MiB in float32
ROUNDING = 0.02  # of a norm, by which what was put together may differ from what the model made

Back = Callable[[Tensor], Tensor]


class Written:
    """What a layer's attention writes to the stream for each token and head: f_h(x_j) = v_hj W_h.

    `values` [B, K, N, d] have their bias in them; `matrix` [H d, D] is the output projection without its bias, which is
    no token's.
    """

    def __init__(self, values: Tensor, matrix: Tensor):
        self.values = values.float()
        groups, size = values.shape[1], values.shape[3]
        self.matrix = matrix.float().reshape(groups, -1, size, matrix.shape[1])  # [K, H / K, d, D]
        self.products = self._products()

    def _products(self) -> Tensor:
        """The products of all pairs of heads' vectors of a token, [B, N, H, H], from a few tokens' vectors at once."""
        texts, groups, tokens, _ = self.values.shape
        heads, width = groups * self.matrix.shape[1], self.matrix.shape[3]
        rows = max(1, AT_ONCE // (texts * heads * width))
        products = self.values.new_empty(texts, tokens, heads, heads)
        for first in range(0, tokens, rows):
            part = torch.einsum("bknd,kgde->bnkge", self.values[:, :, first : first + rows], self.matrix).flatten(2, 3)
            products[:, first : first + rows] = part @ part.transpose(2, 3)
        return products

    def shares(self, a: Tensor) -> Tensor:
        """Of the attention `a` [B, H, Q, N], each token's share [B, Q, N] of the norms |sum_h a_hij f_h(x_j)|."""
        by_token = a.permute(0, 3, 2, 1)  # [B, N, Q, H]
        squares = ((by_token @ self.products) * by_token).sum(dim=3).transpose(1, 2)
        norms = squares.clamp(min=0).sqrt()  # heads that cancel can leave less than nothing
        return norms / norms.sum(dim=2, keepdim=True).clamp(min=torch.finfo(norms.dtype).tiny)

    def heads(self, a: Tensor) -> Tensor:
        """What the heads made for the last query, [B, H d], with its attention `a` [B, H, N]."""
        return torch.einsum("bkgn,bknd->bkgd", self._grouped(a), self.values).flatten(1)

    def given(self, a: Tensor, direction: Tensor) -> Tensor:
        """What each token gives along `direction` [B, D] to the last query, [B, N]; `a` [B, H, N] is its attention."""
        by_head = torch.einsum("be,kgde->bkgd", direction, self.matrix)
        along = torch.einsum("bkgd,bknd->bkgn", by_head, self.values)
        return (along * self._grouped(a)).sum(dim=(1, 2))

    def _grouped(self, a: Tensor) -> Tensor:
        return a.unflatten(1, self.matrix.shape[:2])


def matrix_of(module: nn.Module, width: int, like: Tensor) -> Tensor:
    """The matrix [width, D] of a linear `module` of any kind, as it maps rows of the type and device of `like`."""
    rows = torch.eye(width, dtype=like.dtype, device=like.device)
    return (module(rows[None])[0] - module(torch.zeros_like(rows[:1])[None])[0]).float()


def scaled_back(norm: nn.Module, x: Tensor, made: Tensor) -> Back:
    """How a direction in what the normalisation `norm` made of `x`, `made` [B, D], reads in `x`, with the norm's scale
    as it is: y = g (x - m) / s + b is linear in x where s is held (m is the mean of x, or zero in an RMS norm).

    Raises `PosgapError` where the module makes something else of x.
    """
    signs = torch.ones_like(x[:1])
    signs[:, 1::2] = -1
    nothing = norm(torch.zeros_like(signs)).float()
    even, mixed = norm(torch.ones_like(signs)).float() - nothing, norm(signs).float() - nothing
    gains, centred = mixed * signs.float(), float(even.norm()) < ROUNDING * float(mixed.norm())
    x, made = x.float(), made.float() - nothing
    linear = gains * (x - x.mean(dim=1, keepdim=True) if centred else x)
    scale = (made * linear).sum(dim=1, keepdim=True) / linear.square().sum(dim=1, keepdim=True)
    if not float((made - scale * linear).norm()) < ROUNDING * float(made.norm()):
        raise PosgapError(f"{type(norm).__name__}: is no layer norm or RMS norm, so that its scale cannot be held")

    def back(direction: Tensor) -> Tensor:
        into = scale * gains * direction
        return into - into.mean(dim=1, keepdim=True) if centred else into

    return back


def answer_direction(head: nn.Module, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The most probable token of last `states` [B, D], [B]; its logit less the mean of all tokens' logits, [B]; and
    the direction [B, D] in the states along which that grows. Softmax knows no common part of all logits."""
    with torch.enable_grad():
        states = states.detach().requires_grad_()
        logits = head(states).float()
        best = logits.max(dim=-1)
        above = best.values - logits.mean(dim=-1)
        (direction,) = torch.autograd.grad(above.sum(), states)
    return best.indices, above.detach(), direction.float()
