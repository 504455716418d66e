"""Training without the noise that some models add to themselves in training."""

from typing import Any

from torch import nn

_NOISE = ("drop", "jitter")  # as in `attention_dropout`, `layerdrop`, `router_jitter_noise`


def without_dropout(model: nn.Module) -> None:
    """Makes `model` compute the same in training as in answering.

    The teacher answers without dropout, and the student begins as the teacher. With dropout there would be a loss even
    without a gap, and the student would learn to undo its own noise.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        _silence(module)
        if hasattr(module, "config"):
            _silence(module.config)  # which Falcon reads at every call


def _silence(owner: Any) -> None:
    for name, value in list(vars(owner).items()):
        if isinstance(value, float) and any(noise in name for noise in _NOISE):
            setattr(owner, name, 0.0)
