"""Pos2Distill-R1: the teacher's distributions at the advantageous position, for retrieval."""

from collections.abc import Sequence

import torch
from torch import Tensor

from posgap.distillation.batches import Batch, Draw
from posgap.distillation.losses import alignment_weights, response_kl
from posgap.distillation.processes import gather, rank_and_world
from posgap.distillation.teacher_states import TeacherStates


class R1:
    """L = sum_ij alpha_ij L_ij + lambda mean_j L_Anc,j over the global batch.

    A step's rows are each drawn example at its K trivial positions and at the advantageous one.
    """

    def __init__(self, teacher: TeacherStates, advantageous: int, anchoring: float):
        self.teacher, self.advantageous, self.anchoring = teacher, advantageous, anchoring

    def rows(self, draws: Sequence[Draw]) -> list[tuple[int, int]]:
        """(pair, position) of each prompt one process reads in a step."""
        anchors = (self.advantageous,) if self.anchoring else ()
        return [(draw.pair, position) for draw in draws for position in (*anchors, *draw.positions)]

    def loss(self, logits: Tensor, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        """The loss of this process's rows, from `logits [R, T, V]`, and figures of the global batch.

        Sums over processes of what is returned are the loss of the global batch.
        """
        losses = response_kl(self.teacher.logits(batch), logits, batch.response_mask)
        anchor = batch.positions == self.advantageous
        activation, anchoring = losses[~anchor], losses[anchor]
        # Alpha weighs every process's pairs against each other, so each computes it over all of them.
        mine = (activation.tolist(), batch.positions[~anchor].tolist(), anchoring.tolist())
        everyone = gather(mine)
        values = torch.tensor([value for share in everyone for value in share[0]], device=losses.device)
        positions = torch.tensor([position for share in everyone for position in share[1]], device=losses.device)
        anchors = [value for share in everyone for value in share[2]]
        alpha = alignment_weights(values, positions)
        before = sum(len(share[0]) for share in everyone[: rank_and_world()[0]])
        own_alpha = alpha[before : before + len(activation)]
        anchor_weight = self.anchoring / max(len(anchors), 1)
        loss = (own_alpha * activation).sum() + anchor_weight * anchoring.sum()
        figures = {
            "loss": float((alpha * values).sum()) + anchor_weight * sum(anchors),
            "activation_kl": float(values.mean()),
            "anchoring_kl": sum(anchors) / max(len(anchors), 1),
        }
        return loss, figures
