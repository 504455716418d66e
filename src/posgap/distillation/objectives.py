"""The objectives of the methods: the prompts of a step, and the loss and weight of each row.

A step's loss is sum_r w_r L_r over the rows of the global batch, with weights w_r that are constants to the gradient.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from posgap.distillation.batches import Draw, Pair, Positions, Row
from posgap.distillation.losses import alignment_weights, token_cross_entropy, token_kl


class Objective(Protocol):
    """A method's part of the training loop."""

    weighs_by_loss: bool  # whether `weights` needs the losses of the whole global batch
    averaged: bool  # whether a row's loss is the mean over its response tokens, rather than their sum

    def token_losses(self, logits: Tensor, targets: Tensor, teacher_logits: Tensor | None) -> Tensor:
        """The loss `[M]` of each response token, given the student's `logits [M, V]` before it, the token itself in
        `targets [M]` and, if the method needs a teacher, the teacher's logits `[M, V]`."""
        ...

    def rows(self, draws: Sequence[Draw]) -> list[Row]:
        """The prompts of a step."""
        ...

    def weights(self, rows: Sequence[Row], losses: Tensor) -> Tensor:
        """The weights w `[N]` of a global batch's `rows`, given their `losses [N]`."""
        ...

    def figures(self, rows: Sequence[Row], losses: Tensor) -> dict[str, float]:
        """The figures of a step to log beside its loss."""
        ...


AUTHORS_PROMPTS_AT_ONCE = 4  # micro_train_batch_size of their scripts/train_nq.sh


class R1:
    """Pos2Distill-R1, for retrieval: L = sum_ij alpha_ij L_ij + lambda mean_j L_Anc,j.

    L_ij is the mean KL from the teacher at the advantageous placement to the student at trivial placement i, and
    L_Anc,j the mean KL when the student, too, reads the advantageous placement.
    """

    def __init__(self, advantageous: Positions, alignment: str, anchoring: float):
        self.advantageous, self.alignment, self.anchoring = advantageous, alignment, anchoring
        self.weighs_by_loss = alignment != "none"

    averaged = True

    def token_losses(self, logits: Tensor, targets: Tensor, teacher_logits: Tensor | None) -> Tensor:
        assert teacher_logits is not None
        return token_kl(teacher_logits, logits)

    def rows(self, draws: Sequence[Draw]) -> list[Row]:
        anchors = (self.advantageous,) if self.anchoring else ()
        return [Row(draw.pair, positions) for draw in draws for positions in (*anchors, *draw.placements)]

    def weights(self, rows: Sequence[Row], losses: Tensor) -> Tensor:
        anchor = self._anchors(rows, losses)
        weights = torch.zeros_like(losses)
        as_authors = self.alignment == "authors"
        if anchor.any():
            weights[anchor] = self.anchoring / (1 if as_authors else anchor.sum())
        trivial = [row.positions for row in rows if row.positions != self.advantageous]
        if trivial:
            number = {positions: i for i, positions in enumerate(trivial)}  # any, so long as it is one for each
            bins = torch.tensor([number[positions] for positions in trivial], device=losses.device)
            weights[~anchor] = alignment_weights(losses[~anchor], bins, self.alignment)
        # The authors' processes each sum the losses of the prompts that they read at once, and average the gradients.
        return weights * AUTHORS_PROMPTS_AT_ONCE / len(rows) if as_authors else weights

    def figures(self, rows: Sequence[Row], losses: Tensor) -> dict[str, float]:
        anchor = self._anchors(rows, losses)
        named = {"activation_kl": losses[~anchor], "anchoring_kl": losses[anchor]}
        return {name: float(values.mean()) for name, values in named.items() if len(values)}

    def _anchors(self, rows: Sequence[Row], losses: Tensor) -> Tensor:
        return torch.tensor([row.positions == self.advantageous for row in rows], device=losses.device)


class CrossEntropy:
    """L = -sum log q(response | prompt) over the step's tokens, divided by their number.

    The loss of Pos2Distill-R2 (the teacher's chains of thought at K pairs of positions) and of
    the baselines seqkd (its responses) and sft (gold answers).
    """

    weighs_by_loss = False
    averaged = False

    def __init__(self, pairs: Sequence[Pair]):
        self.pairs = pairs

    def token_losses(self, logits: Tensor, targets: Tensor, teacher_logits: Tensor | None) -> Tensor:
        return token_cross_entropy(targets, logits)

    def rows(self, draws: Sequence[Draw]) -> list[Row]:
        return [Row(draw.pair, positions) for draw in draws for positions in draw.placements]

    def weights(self, rows: Sequence[Row], losses: Tensor) -> Tensor:
        return torch.full_like(losses, 1 / self._tokens(rows))

    def figures(self, rows: Sequence[Row], losses: Tensor) -> dict[str, float]:
        return {"cross_entropy": float(losses.sum()) / self._tokens(rows)}

    def _tokens(self, rows: Sequence[Row]) -> int:
        return sum(len(self.pairs[row.pair].response.token_ids) for row in rows)
