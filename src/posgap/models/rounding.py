"""Stores trained weights in a lower precision, and measures how much of the training is left in them.

A number in bfloat16 has 8 significant bits: near 0.016 the next one is 1.2e-4 away. Twenty steps at the paper's
learning rate of 3e-6 move a weight by at most 6e-5. Rounded to the nearest number, nearly all weights are then the
base's again, and the training is lost.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from zlib import crc32

import torch
from torch import Tensor
from transformers import PreTrainedModel

from posgap.foundation.errors import BadModel

MIN_KEPT = 0.9  # the least share of the update that the stored weights must keep
_IN_WORDS = {"nearest": "to the nearest numbers", "stochastic": "up or down at random"}
_AT_ONCE = 1 << 24  # numbers
_COUNTED_AT_ONCE = 1 << 20  # each needs half a dozen copies in float64


@dataclass
class UpdateRetention:
    """The share of an update, from the base's weights to the trained ones, in the stored weights."""

    along: float = 0.0  # the sum of (stored - base) (trained - base)
    whole: float = 0.0  # the sum of (trained - base)^2
    changed: int = 0  # numbers that training changed
    differing: int = 0  # those that differ from the base when stored

    def add_tensor(self, base: Tensor, trained: Tensor, stored: Tensor) -> None:
        """Adds one tensor: the base's, the trained one (in float32), and the stored one."""
        for parts in zip(*(tensor.flatten().split(_COUNTED_AT_ONCE) for tensor in (base, trained, stored))):
            before, after, written = (part.double() for part in parts)
            update = after - before
            left = written - before
            self.along += float((left * update).sum())
            self.whole += float((update * update).sum())
            moved = update != 0
            self.changed += int(moved.sum())
            self.differing += int((moved & (left != 0)).sum())

    @property
    def update(self) -> float:
        """The distance of the stored weights from the base's in the direction of training, as a share of the trained
        distance: 1 for all of it, 0 for the base. It is 1 if training changed nothing.

        It is the projection of one difference on the other. Noise from rounding has no direction and does not count;
        nor does it matter that few large steps stand for many small ones.
        """
        return self.along / self.whole if self.whole else 1.0

    @property
    def numbers(self) -> float:
        """The share of the numbers that training changed which, stored, are not the base's."""
        return self.differing / self.changed if self.changed else 1.0


@dataclass(frozen=True)
class RoundedWeights:
    """A model's weights as stored: `state` by name, without tied ones, in `dtype` for tensors in which the base has its
    own, rounded as `rounding` says; and how much of the update is `kept` in them."""

    state: Mapping[str, Tensor]
    dtype: torch.dtype
    rounding: str
    kept: UpdateRetention

    def __str__(self) -> str:
        how = _IN_WORDS[self.rounding]
        return f"in {dtype_name(self.dtype)}, rounded {how}, the weights keep {100 * self.kept.update:.1f} %"


def round_weights(
    base: PreTrainedModel, after: Mapping[str, Tensor], dtype: torch.dtype, seed: int = 0
) -> RoundedWeights:
    """Returns the stored weights of `base` in `dtype`, replaced by those of `after` (float32).

    They are rounded to the nearest numbers if that keeps the update, else at random by `seed`. Raises `PosgapError` if
    `dtype` cannot hold a weight.
    """
    before = base.state_dict()
    tied = getattr(base, "all_tied_weights_keys", None) or {}
    for way in ("nearest", "stochastic"):
        kept = UpdateRetention()
        state = {}
        for name, tensor in before.items():
            if name in tied:
                continue
            # Tensors that a family keeps in their own precision stay in it.
            kind = dtype if tensor.dtype == base.dtype else tensor.dtype
            value = after.get(name, tensor).detach().cpu()
            is_rounded = way == "stochastic" and value.is_floating_point()
            state[name] = round_stochastically(value.float(), kind, seed, name) if is_rounded else value.to(kind)
            if value.is_floating_point() and not state[name].isfinite().all():
                raise BadModel(f"{dtype_name(kind)} cannot hold {name}")
            if name in after:
                kept.add_tensor(tensor, value, state[name])
        if kept.update >= MIN_KEPT:
            break
    return RoundedWeights(state, dtype, way, kept)


def dtype_name(dtype: torch.dtype) -> str:
    """Returns the name of a precision in configs and files."""
    return str(dtype).removeprefix("torch.")


def round_stochastically(values: Tensor, dtype: torch.dtype, seed: int, name: str = "") -> Tensor:
    """Returns `values` (float32) in `dtype`, each the next number below or above with the probabilities that make its
    expectation the value itself; numbers that `dtype` can hold stay.

    It depends only on its arguments; `name` gives each of a model's tensors its own draws.
    """
    if dtype.itemsize > 2:
        return values.to(dtype)
    generator = torch.Generator().manual_seed(crc32(f"{seed} {name}".encode()))  # it takes 32 bits, and ignores more
    parts = [_round_part(part, dtype, generator) for part in values.flatten().split(_AT_ONCE)]
    return torch.cat(parts).view(values.shape)


def _round_part(values: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    near = values.to(dtype)
    # In both formats of 16 bits the next number away from zero, or towards it, is the next integer.
    away = values.abs() > near.float().abs()
    next_over = (near.view(torch.int16) + torch.where(away, 1, -1).to(torch.int16)).view(dtype)
    # NaN if the value is zero or infinite; no draw chooses it then.
    share = (values - near.float()) / (next_over.float() - near.float())
    return torch.where(torch.rand(values.shape, generator=generator) < share, next_over, near)
