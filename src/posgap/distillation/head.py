"""The output head, which turns hidden states into logits: the student's, and the teacher's frozen copy.

Logits are float32 in every precision of training. Rounded to bfloat16, which knows a logit of 20 to 1/16, they alone
would make a KL of some 1e-3 between two models that are equal.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from posgap.distillation.batches import Batch
from posgap.foundation.errors import BadModel

# The factor of some families' logits, from the text model's configuration; by the beginning of its type.
_FACTORS: dict[str, Callable[[Any], float]] = {
    "cohere": lambda config: config.logit_scale,
    "falcon_h1": lambda config: config.lm_head_multiplier,
    "granite": lambda config: 1 / config.logits_scaling,
    "hyperclovax": lambda config: config.logits_scaling,
}
# The names of soft caps in the configurations of Gemma and NanoChat, RecurrentGemma, and xLSTM.
_SOFT_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
# Numbers of a product that are held at once: 32 MiB in float32, and 256 MiB on a GPU, where each part is a launch.
NUMBERS_AT_ONCE = 1 << 23
ON_A_GPU = 8


class Head:
    """An output head, with the constant factor (Granite, Cohere) and the soft cap (Gemma 2) of some families' logits.

    It is not a module, so a module that holds it does not register its parameters twice.
    """

    in_place = False  # whether `losses` adds the weight's gradient to the one that is there, rather than return another

    def __init__(self, linear: nn.Linear, factor: float = 1.0, soft_cap: float | None = None):
        self.linear = linear
        self.factor = factor
        self.soft_cap = soft_cap

    @classmethod
    def from_model(cls, model: PreTrainedModel) -> "Head":
        """The output head of a model."""
        config: Any = model.config.get_text_config()
        scale = 1.0
        soft_cap = None
        for family, factor in _FACTORS.items():
            if config.model_type.startswith(family):
                scale = factor(config) or 1.0
        for name in _SOFT_CAPS:
            soft_cap = soft_cap or getattr(config, name, None)
        return cls(model.get_output_embeddings(), scale, soft_cap or None)

    def __call__(self, hidden: Tensor) -> Tensor:
        """Logits `[M, V]` of final hidden states `[M, D]`; not under ZeRO-3, which has the weight in pieces."""
        with torch.autocast(hidden.device.type, enabled=False):
            return self.adjust(self.project(hidden))

    def losses(self, loss: Callable[..., Tensor], hidden: Tensor, *per_token: Tensor) -> Tensor:
        """Returns `loss(logits, *per_token)`, `[M, V]` and `[M, ...]` to `[M]`, for the logits of `hidden [M, D]`.

        The result and the gradients equal those of a single call, but all logits never exist at once. A chunk's logits
        are dropped after the forward pass and recomputed in the backward pass, which adds up the chunks' gradients of
        the weight `[V, D]` in one place. `per_token` has no gradient.
        """

        with torch.autocast(hidden.device.type, enabled=False):
            return _Losses.apply(self, loss, hidden, self.linear.weight, self.linear.bias, *per_token)

    def project(self, states: Tensor) -> Tensor:
        """The linear layer's outputs `[M, V]`."""
        weight = self.linear.weight
        bias = self.linear.bias
        parts = []
        if _is_on_gpu(weight) and states.dtype == weight.dtype and weight.dtype.itemsize == 2:
            outputs = torch.mm(states, weight.T, out_dtype=torch.float32)  # products of 16 bits are exact in it
            return outputs if bias is None else outputs + bias
        for rows, of in _slices(weight):
            parts.append(F.linear(states.to(of.dtype), of, None if bias is None else bias[rows].to(of.dtype)))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def adjust(self, outputs: Tensor) -> Tensor:
        """The logits of the linear layer's outputs."""
        logits = outputs * self.factor if self.factor != 1 else outputs
        return torch.tanh(logits / self.soft_cap) * self.soft_cap if self.soft_cap else logits

    def gradient_of(self, parameter: Tensor) -> Tensor:
        """Returns the buffer to accumulate into: `.grad` if `in_place`, else new zeros."""
        if not self.in_place:
            return torch.zeros_like(parameter)
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        return parameter.grad


class HeadLosses(nn.Module):
    """`Head.losses` as a module: ZeRO-3 gathers the weight, which belongs to another, for the passes of a module."""

    def __init__(self, head: Head):
        super().__init__()
        self.head = head

    def forward(self, hidden: Tensor, *, loss: Callable[..., Tensor], per_token: Sequence[Tensor]) -> Tensor:
        return self.head.losses(loss, hidden, *per_token)


class _Losses(torch.autograd.Function):
    """`Head.losses`, with a backward pass that makes no gradient of the weight for each chunk."""

    @staticmethod
    def forward(ctx: Any, head: Head, loss: Any, hidden: Tensor, *tensors: Any) -> Tensor:  # type: ignore[override]
        _, _, *per_token = tensors  # weight and bias are read later, when ZeRO-3 has gathered them
        ctx.head = head
        ctx.loss = loss
        ctx.save_for_backward(hidden, *per_token)
        losses = []
        for part in _chunks(hidden, head):
            losses.append(loss(head.adjust(head.project(hidden[part])), *(of[part] for of in per_token)))
        return torch.cat(losses)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        head = ctx.head
        (hidden, *per_token) = ctx.saved_tensors
        weight = head.linear.weight
        bias = head.linear.bias
        to_hidden = torch.empty_like(hidden) if ctx.needs_input_grad[2] else None
        to_weight = head.gradient_of(weight) if ctx.needs_input_grad[3] else None
        to_bias = head.gradient_of(bias) if ctx.needs_input_grad[4] else None
        with torch.autocast(hidden.device.type, enabled=False):
            for part in _chunks(hidden, head):
                states = hidden[part]
                outputs = head.project(states).requires_grad_()
                with torch.enable_grad():
                    losses = ctx.loss(head.adjust(outputs), *(of[part] for of in per_token))
                (to_outputs,) = torch.autograd.grad(losses, outputs, gradient[part])
                if to_hidden is not None:
                    to_hidden[part] = sum(to_outputs[:, rows] @ of for rows, of in _slices(weight))
                if to_weight is not None:
                    for rows, _ in _slices(weight):
                        product = to_outputs[:, rows].T, states.to(to_outputs.dtype)
                        if to_weight.dtype == to_outputs.dtype:
                            to_weight[rows].addmm_(*product)  # without another tensor of that size
                        else:
                            to_weight[rows] += torch.mm(*product)
                if to_bias is not None:
                    to_bias += to_outputs.sum(0)
        returned = (None, None) if head.in_place else (to_weight, to_bias)
        return None, None, to_hidden, *returned, *[None] * len(per_token)


def _chunks(hidden: Tensor, head: Head) -> Iterator[slice]:
    """Returns the chunks of tokens whose logits are held at once."""
    size = max(1, _numbers_at_once(hidden) // head.linear.out_features)
    for start in range(0, len(hidden), size):
        yield slice(start, start + size)


def _slices(weight: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Returns the weight `[V, D]` in float32: unchanged, or converted from 16 bits by slices of its rows."""
    precise = torch.promote_types(weight.dtype, torch.float32)
    if precise == weight.dtype:
        yield slice(None), weight
        return
    size = max(1, _numbers_at_once(weight) // weight.shape[1])
    for start in range(0, len(weight), size):
        yield slice(start, start + size), weight[start : start + size].to(precise)


def _numbers_at_once(tensor: Tensor) -> int:
    return NUMBERS_AT_ONCE * (ON_A_GPU if _is_on_gpu(tensor) else 1)


def _is_on_gpu(tensor: Tensor) -> bool:
    return tensor.is_cuda


def add_gradients_in_place(model: PreTrainedModel, head: Head) -> None:
    """Accumulates head and embedding gradients straight into `.grad`, which saves a weight-sized buffer per
    micro-batch. Not for weights that are in pieces."""
    head.in_place = True
    embedding = model.get_input_embeddings()
    if isinstance(embedding, nn.Embedding) and embedding.weight.requires_grad:
        embedding.sparse = True  # the added gradient, not the existing one


@torch.no_grad()
def require_plain_head(model: PreTrainedModel, batch: Batch) -> None:
    """Raises `PosgapError` if a model computes its logits by more than `Head` knows."""
    columns = batch.columns[: int(batch.lengths[0])]
    ids = batch.input_ids[:1, : columns[-1] + 1]
    wanted = model(input_ids=ids, use_cache=False, logits_to_keep=len(columns)).logits[0]
    hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0, -len(columns) :]
    head = Head.from_model(model)
    logits = head.adjust(head.linear(hidden))  # rounded as the model's own are
    if not torch.allclose(logits.float(), wanted.float(), atol=1e-3, rtol=1e-2):
        raise BadModel(
            f"{type(model).__name__}: its logits are not its output head applied to the last hidden state, up "
            "to a known factor and soft cap, as distillation assumes; this architecture is not supported"
        )
