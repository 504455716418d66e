"""The objectives of the methods: the prompts of a step, and the loss and weight of each row.

A step's loss is sum_r w_r L_r over the rows of the global batch, with weights w_r that are constants to the gradient.
"""

import statistics
from collections.abc import Hashable, Mapping, Sequence

import torch
from torch import Tensor

from posgap.distillation.batches import Draw, Pair, Positions, TrainingPrompt
from posgap.distillation.losses import alignment_weights, index_on, token_cross_entropy, token_kl
from posgap.tasks.placements import Placement


class Objective:
    """A method's part of the training loop. As it stands here, a row's loss is the mean KL from the teacher over its
    response, and all rows weigh alike."""

    averaged = True  # whether a row's loss is the mean over its response tokens, rather than their sum
    anchors: Sequence[Positions] | None = None  # the placement of each pair that is read in any case, and never drawn

    def token_losses(self, logits: Tensor, targets: Tensor, teacher_logits: Tensor | None) -> Tensor:
        """The loss `[M]` of each response token, given the student's `logits [M, V]` before it, the token itself in
        `targets [M]` and, if the method needs a teacher, the teacher's logits `[M, V]`."""
        assert teacher_logits is not None
        return token_kl(teacher_logits, logits)

    def draw_prompts(self, draws: Sequence[Draw]) -> list[TrainingPrompt]:
        """The prompts of a step."""
        return [TrainingPrompt(draw.pair, positions) for draw in draws for positions in draw.placements]

    def weight_groups(self, rows: Sequence[TrainingPrompt]) -> list[Hashable | None]:
        """Returns a group per row. Rows of a group need each other's losses; None means a fixed weight."""
        return [None] * len(rows)

    def weights(self, rows: Sequence[TrainingPrompt], losses: Tensor, is_known: Sequence[bool] = ()) -> Tensor:
        """Returns the weights w `[N]` of a global batch's `rows`, given their `losses [N]`, on the same device.

        `is_known [N]` says which rows' losses are computed already; empty: all. The losses of rows with the same key
        arrive together. When others arrive, all earlier weights by loss change by one factor.
        """
        return torch.full_like(losses, 1 / len(rows))

    def step_figures(self, rows: Sequence[TrainingPrompt], losses: Tensor) -> dict[str, float]:
        """The figures of a step to log beside its loss."""
        raise NotImplementedError

    def summarize_weights(self, history: Sequence[Mapping[str, float]]) -> str:
        """Returns a line on the weights of a run's steps; empty if there is nothing to say."""
        return ""


MIN_EFFECTIVE_ROWS = 2.0  # below which one prompt has most of a step's weight


def effective_rows(weights: Tensor) -> float:
    """Returns the number of equal weights that would average away as much noise as `weights [N]`: (sum w)^2 / sum w^2,
    from 1, if one row has all the weight, to N. Returns 0 if all weights are 0.
    """
    squares = float(weights.square().sum())
    return float(weights.sum()) ** 2 / squares if squares else 0.0


class R1(Objective):
    """Pos2Distill-R1, for retrieval: L = sum_ij alpha_ij L_ij + lambda mean_j L_Anc,j.

    L_ij is the mean KL from the teacher at the advantageous placement to the student at trivial placement i, and
    L_Anc,j the mean KL when the student, too, reads the advantageous placement. `advantageous` has that placement of
    each pair. Without anchoring, it is drawn like the others: a placement that is never read can be lost.

    `n_docs` has the number of documents in each pair's prompts; empty: the same for all. Alignment compares placements
    of unlike numbers by their depth, among as many documents as the fewest are.
    """

    def __init__(self, advantageous: Sequence[Positions], alignment: str, anchoring: float, n_docs: Sequence[int] = ()):
        self.anchors = advantageous if anchoring else None
        self.alignment = alignment
        self.anchoring = anchoring
        self.n_docs = n_docs

    def draw_prompts(self, draws: Sequence[Draw]) -> list[TrainingPrompt]:
        prompts = []
        for draw in draws:
            if self.anchors:
                prompts.append(TrainingPrompt(draw.pair, self.anchors[draw.pair]))
            prompts += [TrainingPrompt(draw.pair, positions) for positions in draw.placements]
        return prompts

    def weight_groups(self, rows: Sequence[TrainingPrompt]) -> list[Hashable | None]:
        groups: list[Hashable | None] = [None] * len(rows)
        if self.alignment != "none":
            for index in self._split_anchors(rows)[1]:
                groups[index] = self._depth(rows[index])
        return groups

    def weights(self, rows: Sequence[TrainingPrompt], losses: Tensor, is_known: Sequence[bool] = ()) -> Tensor:
        anchors, others = self._split_anchors(rows)
        weights = torch.zeros_like(losses)
        if anchors:
            weights[index_on(losses.device, anchors)] = self.anchoring / len(anchors)
        if is_known and self.alignment != "none":
            # alpha is a softmax over positions: over the known ones alone it is the same except for a factor.
            others = [index for index in others if is_known[index]]
        if others:
            places = index_on(losses.device, others)
            depths = [self._depth(rows[index]) for index in others]
            weights[places] = alignment_weights(losses[places], depths, self.alignment)
        return weights

    def step_figures(self, rows: Sequence[TrainingPrompt], losses: Tensor) -> dict[str, float]:
        figures = {}
        anchors, others = self._split_anchors(rows)
        for name, indices in (("activation_kl", others), ("anchoring_kl", anchors)):
            if indices:
                figures[name] = float(losses[indices].mean())
        aligned = self.weights(rows, losses)[others]
        return figures | {"effective_rows": effective_rows(aligned), "alignment_sum": float(aligned.sum())}

    def summarize_weights(self, history: Sequence[Mapping[str, float]]) -> str:
        counted = [figures["effective_rows"] for figures in history if "effective_rows" in figures]
        if self.alignment == "none" or not counted:
            return ""
        least = min(counted)
        median = statistics.median(counted)
        most = max(counted)
        line = f"alignment: {median:.1f} effective prompts in the median step ({least:.1f} to {most:.1f})"
        line += ", anchors not counted"
        if median < MIN_EFFECTIVE_ROWS:
            line += "; one prompt has nearly all the weight of a step, as with divergences of a nat or more"
        return line

    def _depth(self, row: TrainingPrompt) -> Positions:
        """The row's positions among the fewest documents that a prompt has."""
        if not self.n_docs:
            return row.positions
        return Placement(row.positions, self.n_docs[row.pair]).among(min(self.n_docs)).positions

    def _split_anchors(self, rows: Sequence[TrainingPrompt]) -> tuple[list[int], list[int]]:
        """Returns the indices of the anchors (rows at their pair's advantageous placement) and of the other rows."""
        anchors: list[int] = []
        others: list[int] = []
        for index, row in enumerate(rows):
            is_anchor = self.anchors is not None and row.positions == self.anchors[row.pair]
            (anchors if is_anchor else others).append(index)
        return anchors, others


class CrossEntropy(Objective):
    """L = -sum log q(response | prompt) over the step's tokens, divided by their number.

    The loss of Pos2Distill-R2 (the teacher's chains of thought at K pairs of positions) and of
    the baselines seqkd (its responses) and sft (gold answers).
    """

    averaged = False

    def __init__(self, pairs: Sequence[Pair]):
        self.pairs = pairs

    def token_losses(self, logits: Tensor, targets: Tensor, teacher_logits: Tensor | None) -> Tensor:
        return token_cross_entropy(logits, targets)

    def weights(self, rows: Sequence[TrainingPrompt], losses: Tensor, is_known: Sequence[bool] = ()) -> Tensor:
        return torch.full_like(losses, 1 / self._count_tokens(rows))

    def step_figures(self, rows: Sequence[TrainingPrompt], losses: Tensor) -> dict[str, float]:
        return {"cross_entropy": float(losses.sum()) / self._count_tokens(rows)}

    def _count_tokens(self, rows: Sequence[TrainingPrompt]) -> int:
        return sum(len(self.pairs[row.pair].response.token_ids) for row in rows)
