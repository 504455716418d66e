"""The output head, which turns hidden states into logits: the student's, and the teacher's frozen copy."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from posgap.distillation.batches import Batch
from posgap.foundation.errors import PosgapError
from posgap.models.rope_lengths import RopeLengths

# What the logits of some families are multiplied by, from the text model's configuration; by the beginning of its type.
_FACTORS: dict[str, Callable[[Any], float]] = {
    "cohere": lambda config: config.logit_scale,
    "falcon_h1": lambda config: config.lm_head_multiplier,
    "granite": lambda config: 1 / config.logits_scaling,
    "hyperclovax": lambda config: config.logits_scaling,
}
# The names of soft caps in the configurations of Gemma and NanoChat, RecurrentGemma, and xLSTM.
_SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")


class Head:
    """An output head, with the constant factor (Granite, Cohere) and the soft cap (Gemma 2) of some families' logits.

    It is not a module, so that a module that holds it does not register its parameters a second time.
    """

    def __init__(self, linear: nn.Linear, factor: float = 1.0, soft_cap: float | None = None):
        self.linear, self.factor, self.soft_cap = linear, factor, soft_cap

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Head":
        """The output head of a model."""
        config: Any = model.config.get_text_config()
        factors = [factor(config) for family, factor in _FACTORS.items() if config.model_type.startswith(family)]
        soft_cap = next((cap for name in _SOFT_CAPS if (cap := getattr(config, name, None))), None)
        return cls(model.get_output_embeddings(), (factors or [1.0])[0] or 1.0, soft_cap)

    @property
    def vocabulary(self) -> int:
        """The size V of the vocabulary."""
        return self.linear.out_features

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits `[M, V]` of final hidden states `[M, D]`."""
        logits = self.linear(hidden)
        if self.factor != 1:
            logits = logits * self.factor
        return torch.tanh(logits / self.soft_cap) * self.soft_cap if self.soft_cap else logits


def response_states(model: PreTrainedModel, batch: Batch) -> Tensor:
    """The final hidden states `[M, D]` at the columns whose next token is a response token.

    Raises `PosgapError` where RoPE follows the length, and would not be as it is when the model writes the responses.
    """
    if rope := RopeLengths.of(model.config):
        # Rows are read with the frequencies of the widest, padding and all.
        width, n_new = batch.input_ids.shape[1] + 1, batch.lengths.tolist()
        first = batch.predicts.int().argmax(1).tolist()  # the prompt's last column
        lengths = [(column + 1, max(n, width - column - 1)) for column, n in zip(first, n_new)]
        if reason := rope.against_teacher_forcing(lengths):
            raise PosgapError(f"{type(model).__name__}: {reason}; it cannot be distilled on prompts of such lengths")
    shared: dict[str, Any] = {}
    if batch.branches:
        # No mask is made for a "prepared" one, with four dimensions; attention over branches looks at none.
        prepared = batch.predicts.new_ones(1, 1, 1, 1)
        shared = {"position_ids": batch.positions, "attention_mask": prepared, "branches": batch.branches}
    return model.base_model(input_ids=batch.input_ids, use_cache=False, **shared).last_hidden_state[batch.predicts]


@torch.no_grad()
def require_plain_head(model: PreTrainedModel, batch: Batch) -> None:
    """Raises `PosgapError` for a model whose logits are computed by more than `Head` knows."""
    columns = batch.predicts[0].nonzero().flatten()
    ids = batch.input_ids[:1, : columns[-1] + 1]
    wanted = model(input_ids=ids, use_cache=False, logits_to_keep=len(columns)).logits[0]
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, -len(columns) :]
    if not torch.allclose(Head.of(model)(hidden).float(), wanted.float(), atol=1e-3, rtol=1e-2):
        raise PosgapError(
            f"{type(model).__name__}: its logits are not its output head applied to the last hidden state, up "
            "to a known factor and soft cap, as distillation assumes; this architecture is not supported"
        )
