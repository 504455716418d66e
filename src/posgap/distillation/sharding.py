"""Training with parameters, gradients and the optimizer's numbers in pieces on several processes, by torch's FSDP2."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel


class Sharded(Accelerator):
    """Accelerate, with a model and an optimizer of which each process has a piece (`torch.distributed.fsdp`).

    Accelerate 1.15 has a plugin for that, which does not serve here: on CPUs it leaves processes with plain data
    parallelism, without a word; it does not find the layers of a language model that lies in another module; and it
    sums gradients in bfloat16 where arithmetic is.
    """

    root: Any = None  # the outermost module that is in pieces

    def __init__(self, offload: bool = False, **options: Any):
        """With `offload` the pieces stay in main memory, and are updated there."""
        self.offload = offload
        super().__init__(**options)

    @property
    def distributed_type(self) -> DistributedType:
        """FSDP, also on CPUs, where Accelerate knows only several processes."""
        return DistributedType.FSDP

    def prepare(self, student: Any, optimizer: torch.optim.Optimizer) -> Any:  # type: ignore[override]
        """Puts both into pieces, in place; gradients of later backward passes are summed over processes at once.

        Each layer of the language model `student.model` is gathered when it computes, and what is outside of them, such
        as embedding and head, for the whole pass.
        """
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        names = {parameter: name for name, parameter in student.named_parameters()}
        trained = [names[parameter] for parameter in parameters]
        mixed = self.mixed_precision == "bf16"
        policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if mixed else MixedPrecisionPolicy()
        where = CPUOffloadPolicy(pin_memory=torch.cuda.is_available()) if self.offload else OffloadPolicy()
        for module in [*layers_of(student.model), student]:
            fully_shard(module, mp_policy=policy, offload_policy=where)
            # Processes have shares of one loss, so their gradients are summed; gloo knows no product with a factor.
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)
            # Of parameters that a process did not need, as of experts, the others may have a gradient.
            module.set_reduce_scatter_unused_params(True)
        pieces = dict(student.named_parameters())
        rest = iter(trained)
        for group in optimizer.param_groups:
            group["params"] = [pieces[next(rest)] for _ in group["params"]]
        self.root = student
        return student, optimizer

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: int = 2) -> Tensor:
        """The norm of the whole gradient, which is clipped where that is more than `max_norm`."""
        norm = nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm


@contextmanager
def callable_by_itself(accelerator: Accelerator) -> Iterator[None]:
    """Within the block the language model in a prepared student can be called, by all processes, without the student,
    which otherwise gathers what is outside of the layers."""
    root = accelerator.root if isinstance(accelerator, Sharded) else None
    if isinstance(root, FSDPModule):
        root.unshard()
    yield
    if isinstance(root, FSDPModule):
        root.reshard()


def layers_of(model: PreTrainedModel) -> list[Any]:
    """The layers of a language model: its first list of modules that has the length that its config gives."""
    n = model.config.get_text_config().num_hidden_layers
    lists = (module for module in model.modules() if isinstance(module, nn.ModuleList))
    return list(next((layers for layers in lists if len(layers) == n), []))
