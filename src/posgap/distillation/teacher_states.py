"""The teacher's distributions, computed once per example.

A position's teacher distributions are the same in every epoch and for every trivial position, so
the frozen model reads each example once, at the advantageous placement. Kept are its final hidden
states at the T response tokens, which the frozen output head turns back into the logits: at
7B and a 128k vocabulary some 30 times less than the logits themselves.
"""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from posgap.distillation.batches import Batch, Collator, Pair, chunks
from posgap.errors import PosgapError
from posgap.progress import track


class TeacherStates:
    """Final hidden states [T, D] of each pair's response, and the frozen head.

    `mixed`: the arithmetic is in bfloat16, as the student's is.
    """

    def __init__(
        self, model: PreTrainedModel, pairs: Sequence[Pair], collate: Collator, batch_size: int, mixed: bool = False
    ):
        self.mixed = mixed
        self.head = copy.deepcopy(model.get_output_embeddings()).requires_grad_(False)
        self.soft_cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
        self.states: list[Tensor] = []
        rows = [(index, pair.response.placement[0]) for index, pair in enumerate(pairs)]
        batches = list(chunks(rows, batch_size))
        for batch_rows in track(batches, len(batches), "teacher distributions"):
            self._read(model, collate(batch_rows).to(model.device))

    @torch.no_grad()
    def _read(self, model: PreTrainedModel, batch: Batch) -> None:
        with self._precision(model.device):
            hidden = model.base_model(**batch.model_inputs(), use_cache=False).last_hidden_state[:, -batch.window :]
            if not self.states:
                self._require_plain_head(model, batch, hidden)
        self.states += [state[mask].cpu() for state, mask in zip(hidden, batch.response_mask)]

    def _require_plain_head(self, model: PreTrainedModel, batch: Batch, hidden: Tensor) -> None:
        """Refuses models that do more to their hidden states than the head can give back."""
        wanted = model(**batch.model_inputs(), use_cache=False, logits_to_keep=batch.window).logits.float()
        if not torch.allclose(self._logits(hidden), wanted, atol=1e-3, rtol=1e-2):
            raise PosgapError(f"{type(model).__name__}: logits are not the output head of the last hidden state")

    def _logits(self, hidden: Tensor) -> Tensor:
        logits = self.head(hidden).float()
        return torch.tanh(logits / self.soft_cap) * self.soft_cap if self.soft_cap else logits

    @torch.no_grad()
    def logits(self, batch: Batch) -> Tensor:
        """The teacher's logits [R, T, V] for a batch's rows, zero where a row has no response token."""
        device = batch.input_ids.device
        width = self.states[0].shape[-1]
        hidden = torch.zeros(*batch.response_mask.shape, width, dtype=self.states[0].dtype, device=device)
        for row, index in enumerate(batch.pairs.tolist()):
            state = self.states[index].to(device)
            hidden[row, -len(state) :] = state
        with self._precision(device):
            return self._logits(hidden)

    def _precision(self, device: torch.device) -> torch.autocast:
        return torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.mixed)
