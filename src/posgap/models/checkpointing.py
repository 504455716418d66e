"""Keeping less of a forward pass: activations are computed again in the backward pass."""

from posgap.foundation.heavy_types import PreTrainedModel


def checkpoint_activations(model: PreTrainedModel) -> None:
    """Makes the model's layers keep only their inputs, and compute the rest again in the backward pass."""
    # transformers 5.19, which vLLM 0.32 wants, knows only the older name.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
