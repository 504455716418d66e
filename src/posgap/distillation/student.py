"""The model in training: prompts in, one loss a row out."""

from functools import partial

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posgap.distillation.batches import Batch
from posgap.distillation.head import Head, require_plain_head, response_states
from posgap.distillation.losses import in_chunks, per_row, token_cross_entropy, token_kl
from posgap.distillation.teacher_states import Teacher


class Student(nn.Module):
    """Wraps a causal language model so that its forward pass ends in losses.

    Everything happens inside `forward`, where data parallelism and ZeRO-3 expect parameters to be
    used: hidden states for the whole prompt, logits for the response tokens alone, in chunks.
    """

    def __init__(self, model: PreTrainedModel, teacher: Teacher | None):
        super().__init__()
        self.model, self.head, self.teacher = model, Head.of(model), teacher
        self.checked = False

    def forward(self, batch: Batch) -> Tensor:
        """The loss of each row, `[R]`: the mean over its response tokens of KL(teacher || student),
        or, without a teacher, the sum of -log q(token)."""
        if not self.checked:
            require_plain_head(self.model, batch)
            self.checked = True
        hidden = response_states(self.model, batch)
        if self.teacher is None:
            losses = in_chunks(self._cross_entropy, self.head.vocabulary, batch.targets, hidden)
            return per_row(losses, batch.lengths)
        kl = partial(self._kl, self.teacher.head)
        losses = in_chunks(kl, self.head.vocabulary, self.teacher.hidden(batch), hidden)
        return per_row(losses, batch.lengths) / batch.lengths

    def _cross_entropy(self, targets: Tensor, hidden: Tensor) -> Tensor:
        return token_cross_entropy(targets, self.head(hidden))

    def _kl(self, head: Head, teacher: Tensor, hidden: Tensor) -> Tensor:
        with torch.no_grad():
            teacher_logits = head(teacher)
        return token_kl(teacher_logits, self.head(hidden))
