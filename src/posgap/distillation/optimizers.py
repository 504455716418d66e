"""AdamW, and its state for each parameter."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

BYTES_KEPT = 8  # of each number: two means in float32
MAX_GRAD_NORM = 1.0  # longer gradients are clipped, as the Hugging Face Trainer does


def adamw(parameters: Iterable[Tensor], learning_rate: float) -> torch.optim.AdamW:
    """torch's AdamW without weight decay, in one kernel a parameter, on a GPU as on a CPU; its step needs no memory
    besides its state."""
    return torch.optim.AdamW(parameters, lr=learning_rate, weight_decay=0.0, fused=True)


def initial_state(parameter: Tensor) -> dict[str, Any]:
    """Returns the state that AdamW keeps of a parameter before its first step."""
    means = {mean: torch.zeros_like(parameter) for mean in ("exp_avg", "exp_avg_sq")}
    return {"step": torch.zeros((), device=parameter.device), **means}
