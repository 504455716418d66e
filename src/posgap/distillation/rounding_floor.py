"""The part of the trained divergence that rounding alone makes: below it a gradient is noise.

On SmolLM2 the gradient of a KL above bfloat16's floor has a cosine of 0.9 or more with float32's gradient; at a
hundredth of the floor it may have any.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from posgap.distillation.batches import teacher_prompts
from posgap.distillation.losses import token_kl
from posgap.distillation.student import Student

ROWS = 4  # that are read for it
FIGURE = "rounding_kl"  # its name in the history's first step
_SIGNAL = "activation_kl"  # what the objective with a teacher calls the divergence that it reduces


@torch.no_grad()
def measure_floor(student: Student, device: torch.device) -> float:
    """The KL per token between two readings of one model with unrelated rounding errors.

    It is twice the KL between the teacher's states, made in training's arithmetic, and those that the untrained student
    makes of the same prompts in float32.
    """
    assert student.teacher
    collate = student.teacher.collate
    kls = []

    def loss(logits: Tensor, states: Tensor) -> Tensor:
        return token_kl(logits, student.teacher.head(states))  # type: ignore[union-attr]

    for row in teacher_prompts(collate.pairs[:ROWS]):  # one at a time, which takes no more memory than a step
        batch = collate([row]).to(device)
        exact = student.response_states(batch)
        kls.append(student.head.losses(loss, exact, student.teacher.states_of(batch)))
    return 2 * float(torch.cat(kls).mean())


def warning(history: Sequence[dict[str, float]]) -> str:
    """Returns a line if steps were trained on a divergence below the floor; nothing if none was, or if the floor is
    unknown.
    """
    floor = history[0].get(FIGURE, 0.0) if history else 0.0
    below = [int(figures["step"]) for figures in history if figures.get(_SIGNAL, floor) < floor]
    if not below:
        return ""
    precise = "tf32" if torch.cuda.is_available() else "float32"
    return (
        f"bfloat16: rounding alone makes a KL of {floor:.1e} a token, and in {len(below)} of "
        f"{len(history)} steps, the first of them step {below[0]}, the loss is smaller, so their "
        f"gradients are mostly noise; use --dtype {precise}"
    )
