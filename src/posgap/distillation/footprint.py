"""Finds the memory and operations that one micro-batch of training takes, without allocating memory and without a GPU.

The model is made of fake tensors, which have shapes but no numbers. One micro-batch is read forwards and backwards with
them, and every storage is counted from its birth to its end. So the figures come from the code that trains, for any
architecture, and not from a formula.
"""

import copy
import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    AutoModelForCausalLM,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.masking_utils import flash_attention_mask

from posgap.distillation.frozen import beneath_adapters, keep_in_bfloat16
from posgap.distillation.head import Head, add_gradients_in_place
from posgap.distillation.lora import add_adapters
from posgap.distillation.losses import token_kl
from posgap.models.checkpointing import checkpoint_activations

_UNMASKED = "posgap-unmasked"
# Bytes of each trained parameter, and of AdamW's two means of it, that are copied to be written beside training; one of
# these kinds is there twice more while it is written, which was seen.
CHECKPOINT = (3 + 2) * 4
# Operations that torch's counter does not know: a product that is added in place, and a CPU's attention, by the shapes
# of query, key and value.
OPERATIONS: dict[Any, Any] = {
    torch.ops.aten.addmm_: lambda total, a, b, *_, **__: 2 * a[0] * a[1] * b[1],
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: (
        lambda query, key, value, *_, **__: sdpa_flop_count(query, key, value)
    ),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda grad, query, key, value, *_, **__: sdpa_backward_flop_count(grad, query, key, value)
    ),
}


@dataclass(frozen=True)
class MicroBatchShape:
    """A micro-batch: `rows` prompts of `width` tokens; the last `predicted` of these precede response tokens.

    `arithmetic` is float32, bfloat16 (of float32 parameters, by autocast), or bfloat16 parameters, as DeepSpeed has
    them. `lora_rank` 0 trains all parameters.
    """

    rows: int
    width: int
    predicted: int
    arithmetic: str = "bfloat16"
    checkpointing: bool = False
    lora_rank: int = 0


@dataclass(frozen=True)
class Size:
    """Numbers of parameters: all, trained, in the output head, and frozen beneath adapters. A frozen one takes
    `bytes_beneath` if training computes in bfloat16 by autocast."""

    parameters: int
    trained: int
    head: int
    beneath: int = 0
    bytes_beneath: int = 4


class Storages(TorchDispatchMode):
    """The bytes of all live storages that operations have made, and their peak.

    Fake tensors that checkpointing has released stay in reference cycles until the garbage collector runs, while real
    ones are freed at once. With `collect` the collector runs before a new maximum is accepted, and again while it finds
    any.
    """

    def __init__(self, collect: bool) -> None:
        super().__init__()
        self.collect = collect
        self.now = self.most = 0
        self.known: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def add(self, tensor: Tensor) -> None:
        if tensor.is_sparse:
            self.add(tensor._indices())
            self.add(tensor._values())
            return
        storage = tensor.untyped_storage()
        if storage not in self.known:
            size = storage.nbytes()
            self.known[storage] = size
            self.now += size
            weakref.finalize(storage, self._remove, size)

    def _remove(self, size: int) -> None:
        self.now -= size

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = operation(*args, **(kwargs or {}))
        for tensor in tree_iter(out):
            if isinstance(tensor, Tensor):
                self.add(tensor)
        while self.collect and self.now > self.most and gc.collect():
            pass
        self.most = max(self.most, self.now)
        return out


def size_of(config: PretrainedConfig, lora_rank: int) -> Size:
    """The size of a model with this config; with a `lora_rank` its adapters alone are trained."""
    model = _on_no_device(config, torch.float32, lora_rank)
    return Size(
        sum(parameter.numel() for parameter in model.parameters()),
        sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        Head.from_model(model).linear.weight.numel(),
        sum(layer.weight.numel() for _, layer in beneath_adapters(model)),
        2 if is_stored_in_bfloat16(config) else 4,
    )


def is_stored_in_bfloat16(config: PretrainedConfig) -> bool:
    """Whether a model with this config is, as far as it says."""
    return config.dtype == torch.bfloat16


def activation_bytes(config: PretrainedConfig, shape: MicroBatchShape) -> int:
    """The bytes that a micro-batch takes of a model with this config, beside parameters, gradients and optimizer; a
    loss of R1, against a teacher's states."""
    # No operations are counted meanwhile: torch's counter keeps tensors alive.
    model = _model_of_shape(config, shape)
    with FakeTensorMode():
        _materialize(model)
        parameters = list(model.parameters())
        gradients = []
        for parameter in parameters:
            if parameter.requires_grad:
                parameter.grad = torch.empty_like(parameter)
                gradients.append(parameter.grad)
        storages = Storages(shape.checkpointing)
        for tensor in (*parameters, *model.buffers(), *gradients):
            storages.add(tensor)
        before = storages.now
        with _quick_collections(), storages:
            run_micro_batch(model, shape)
        return storages.most - before


def flops(config: PretrainedConfig, shape: MicroBatchShape) -> int:
    """The operations of a micro-batch, forwards and backwards: multiplications and additions, each counted, and
    attention as if it were not causal."""
    model = _model_of_shape(config, shape)
    with FakeTensorMode(), FlopCounterMode(display=False, custom_mapping=OPERATIONS) as counter:
        _materialize(model)
        run_micro_batch(model, shape)
    return counter.get_total_flops()


def _model_of_shape(config: PretrainedConfig, shape: MicroBatchShape) -> PreTrainedModel:
    """The model as a micro-batch is read by it, on no device."""
    in_bfloat16 = shape.arithmetic == "bfloat16 parameters"
    model = _on_no_device(config, torch.bfloat16 if in_bfloat16 else torch.float32, shape.lora_rank)
    if shape.arithmetic == "bfloat16" and is_stored_in_bfloat16(config):
        keep_in_bfloat16(model)
    if shape.checkpointing:
        checkpoint_activations(model)
    return model.train()


def run_micro_batch(model: PreTrainedModel, shape: MicroBatchShape) -> None:
    """Reads a micro-batch forwards and backwards."""
    head = Head.from_model(model)
    if shape.arithmetic != "bfloat16 parameters":  # which are in pieces
        add_gradients_in_place(model, head)
        # The number of unpadded tokens, which have gradients, is unknown for fake ones.
        setattr(model.get_input_embeddings(), "padding_idx", None)  # noqa: B010

    def loss(logits: Tensor, teacher: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = head(teacher)
        return token_kl(wanted, logits)

    with torch.autocast("cpu", torch.bfloat16, enabled=shape.arithmetic == "bfloat16"):
        ids = torch.zeros(shape.rows, shape.width, dtype=torch.long)
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state[:, -shape.predicted :]
        student = hidden.flatten(0, 1)
        teacher = torch.empty_like(student, requires_grad=False)
        head.losses(loss, student, teacher).mean().backward()


@contextmanager
def _quick_collections() -> Iterator[None]:
    """Within the block the garbage collector looks at nothing that was there before."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _on_no_device(config: PretrainedConfig, dtype: torch.dtype, lora_rank: int) -> PreTrainedModel:
    with torch.device("meta"):
        # transformers changes the precision in the config that it gets.
        own = copy.deepcopy(config)
        model = AutoModelForCausalLM.from_config(own, dtype=dtype, attn_implementation=_attend_unmasked())
        if lora_rank:
            add_adapters(model, lora_rank)
    return model


def _materialize(model: torch.nn.Module) -> None:
    """Puts tensors of this machine in place of the model's, which are on no device; shared ones stay shared."""
    made: dict[int, Tensor] = {}

    def on_cpu(tensor: Tensor) -> Tensor:
        if id(tensor) not in made:
            empty = torch.empty(tensor.shape, dtype=tensor.dtype)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            made[id(tensor)] = torch.nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
        return made[id(tensor)]

    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            tensors |= {name: on_cpu(tensor) for name, tensor in tensors.items() if tensor is not None}


def _attend_unmasked() -> str:
    """The name of sdpa for prompts without padding in front: with fake tensors transformers would make a mask, which
    with real ones it leaves to the kernel."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    AttentionInterface.register(_UNMASKED, sdpa_attention_forward)
    AttentionMaskInterface.register(_UNMASKED, flash_attention_mask)
    return _UNMASKED
