"""The model in training: it takes batches of prompts and returns one loss per row."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posgap.distillation.batches import Batch
from posgap.distillation.head import Head, HeadLosses, require_plain_head
from posgap.distillation.losses import per_row, token_cross_entropy
from posgap.distillation.objectives import Objective
from posgap.distillation.teacher_states import Teacher
from posgap.foundation.errors import PosgapError
from posgap.models.rope_lengths import RopeLengths


class Student(nn.Module):
    """Wraps a causal language model so that its forward pass returns losses.

    All computation is inside `forward`, where data parallelism and ZeRO-3 expect parameters to be used. Hidden states
    are computed for the whole prompt, and logits only for the response tokens, in chunks.
    """

    def __init__(self, model: PreTrainedModel, objective: Objective, teacher: Teacher | None = None):
        super().__init__()
        self.model = model
        self.head = Head.from_model(model)
        self.objective = objective
        self.teacher = teacher
        self.head_losses = HeadLosses(self.head)
        self.rope = RopeLengths.from_config(model.config) or None
        self.is_checked = False

    def forward(self, batch: Batch, states_alone: bool = False, judged: bool = False) -> Tensor:
        """Returns the loss of each row, `[R]`: the sum of the objective's losses over its response tokens, or their
        mean.

        With `states_alone`, returns the final hidden states `[M, D]` that the loss needs. With `judged`, returns each
        row's nats a token and whether all its tokens are the most probable ones, `[R, 2]`.
        """
        embedding: Any = self.model.get_input_embeddings()
        if getattr(embedding, "sparse", False) and torch.is_grad_enabled():
            self.head.gradient_of(embedding.weight)  # a sparse gradient is added to one that is not
        if not self.is_checked and not batch.branches:
            require_plain_head(self.model, batch)
            self.is_checked = True
        states = self.response_states(batch)
        if states_alone:
            return states
        if judged:
            return self._judge(states, batch)
        per_token = [batch.targets]
        if self.teacher is not None:
            per_token.append(self.teacher.states_of(batch))
        losses = per_row(self.head_losses(states, loss=self._token_losses, per_token=per_token), batch.lengths)
        return losses / batch.lengths if self.objective.averaged else losses

    def response_states(self, batch: Batch) -> Tensor:
        """Returns the final hidden states `[M, D]` at the columns that precede a response token.

        Raises `PosgapError` if RoPE depends on the length and would differ from that during generation.
        """
        if self.rope:
            # Rows are read with the frequencies of the widest, padding and all.
            width = batch.input_ids.shape[1]
            lengths = []
            for columns in batch.columns.split(batch.lengths.tolist()):
                prompt = int(columns[0]) % width + 1
                lengths.append((prompt, max(len(columns), width + 1 - prompt)))
            reason = self.rope.why_not_forced(lengths)
            if reason:
                family = type(self.model).__name__
                raise PosgapError(f"{family}: {reason}; it cannot be distilled on prompts of such lengths")
        shared: dict[str, Any] = {}
        if batch.branches:
            # No mask is made for a "prepared" one, with four dimensions; attention over branches looks at none.
            prepared = batch.input_ids.new_ones(1, 1, 1, 1, dtype=torch.bool)
            shared = {"position_ids": batch.positions, "attention_mask": prepared, "branches": batch.branches}
        read = self.model.base_model(input_ids=batch.input_ids, use_cache=False, **shared)
        return read.last_hidden_state.flatten(0, 1)[batch.columns]

    def _judge(self, states: Tensor, batch: Batch) -> Tensor:
        found = []
        for loss in (token_cross_entropy, _misses):
            found.append(per_row(self.head_losses(states, loss=loss, per_token=[batch.targets]), batch.lengths))
        nats, misses = found
        return torch.stack([nats / batch.lengths, (misses == 0).to(nats)], dim=-1)

    def _token_losses(self, logits: Tensor, targets: Tensor, teacher_hidden: Tensor | None = None) -> Tensor:
        teacher_logits = None
        if self.teacher is not None and teacher_hidden is not None:
            with torch.no_grad():
                teacher_logits = self.teacher.logits(teacher_hidden)
        return self.objective.token_losses(logits, targets, teacher_logits)


def _misses(logits: Tensor, targets: Tensor) -> Tensor:
    """1 for each token `[M]` that is not the most probable one, else 0."""
    return (logits.argmax(-1) != targets).float()
