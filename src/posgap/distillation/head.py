"""From hidden states to logits, for the student as for the teacher's frozen copy."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posgap.distillation.batches import Batch
from posgap.errors import PosgapError


class Head:
    """An output head and what the model does to its logits (soft-capping, in Gemma 2).

    Not a module, so that a trained model which holds one does not take its parameters for its own.
    """

    def __init__(self, linear: nn.Linear, soft_cap: float | None):
        self.linear, self.soft_cap = linear, soft_cap

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Head":
        soft_cap = getattr(model.config.get_text_config(), "final_logit_softcapping", None)
        return cls(model.get_output_embeddings(), soft_cap)

    @property
    def vocabulary(self) -> int:
        return self.linear.out_features

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits `[M, V]` of final hidden states `[M, D]`."""
        logits = self.linear(hidden)
        return torch.tanh(logits / self.soft_cap) * self.soft_cap if self.soft_cap else logits


def response_states(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Final hidden states `[M, D]` where the next token is a response token."""
    return model.base_model(input_ids=batch.input_ids, use_cache=False).last_hidden_state[batch.predicts]


@torch.no_grad()
def require_plain_head(model: PreTrainedModel, batch: Batch) -> None:
    """Refuses models that make their logits of more than the head and its soft cap."""
    columns = batch.predicts[0].nonzero().flatten()
    ids = batch.input_ids[:1, : columns[-1] + 1]
    wanted = model(input_ids=ids, use_cache=False, logits_to_keep=len(columns)).logits[0]
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, -len(columns) :]
    if not torch.allclose(Head.of(model)(hidden).float(), wanted.float(), atol=1e-3, rtol=1e-2):
        raise PosgapError(
            f"{type(model).__name__}: its logits are not those of its output head at the last hidden state, which "
            "distillation needs; this architecture is not supported"
        )
