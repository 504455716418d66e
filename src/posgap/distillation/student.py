"""The model in training: it takes batches of prompts and returns one loss per row."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posgap.distillation.batches import Batch
from posgap.distillation.head import Head, require_plain_head, response_states
from posgap.distillation.losses import per_row
from posgap.distillation.objectives import Objective
from posgap.distillation.teacher_states import Teacher


class Student(nn.Module):
    """Wraps a causal language model so that its forward pass returns losses.

    All computation is inside `forward`, where data parallelism and ZeRO-3 expect parameters to be used: hidden states
    for the whole prompt, and logits only for the response tokens, in chunks.
    """

    def __init__(self, model: PreTrainedModel, objective: Objective, teacher: Teacher | None = None):
        super().__init__()
        self.model, self.head, self.objective, self.teacher = model, Head.of(model), objective, teacher
        self.checked = False

    def forward(self, batch: Batch, states_alone: bool = False) -> Tensor:
        """The loss of each row, `[R]`: the sum of the objective's losses over its response tokens, or their mean.

        With `states_alone`, the final hidden states `[M, D]` from which the loss would be computed.
        """
        embedding: Any = self.model.get_input_embeddings()
        if getattr(embedding, "sparse", False) and torch.is_grad_enabled():
            self.head.gradient_of(embedding.weight)  # what is sparse is added to one that is not
        if not self.checked and not batch.branches:
            require_plain_head(self.model, batch)
            self.checked = True
        states = response_states(self.model, batch)
        if states_alone:
            return states
        per_token = [batch.targets]
        if self.teacher is not None:
            per_token.append(self.teacher.hidden(batch))
        losses = per_row(self.head.losses(self._token_losses, states, *per_token), batch.lengths)
        return losses / batch.lengths if self.objective.averaged else losses

    def _token_losses(self, logits: Tensor, targets: Tensor, teacher_hidden: Tensor | None = None) -> Tensor:
        teacher_logits = None
        if self.teacher is not None and teacher_hidden is not None:
            with torch.no_grad():
                teacher_logits = self.teacher.head(teacher_hidden)
        return self.objective.token_losses(logits, targets, teacher_logits)
