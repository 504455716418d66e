"""Holds the state from which training resumes: each trained parameter and its optimizer state, by name, regardless of
which process holds which piece.

Names and shapes are the model's on a single process, even if DeepSpeed keeps flat partitions and a process sees only
some rows. So any number of processes, with or without ZeRO, can read a checkpoint from any other setup.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from posgap.distillation.optimizers import initial_state
from posgap.foundation.errors import PosgapError

PARAMETERS = "parameters"
MEANS = ("exp_avg", "exp_avg_sq")
KINDS = (PARAMETERS, *MEANS, "step")  # as the first part of a name
State = dict[str, Tensor]
# The names of the flat partitions in ZeRO's stages and in its optimizer for bfloat16.
_FLAT = ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition")


def copy_state(
    accelerator: Accelerator, model: Any, optimizer: torch.optim.Optimizer, mesh: DeviceMesh | None
) -> State:
    """Copies the state into main memory: all of it, or under ZeRO this process's rows.

    `mesh` is of all processes' main memories, `None` for a single one. Every process calls this.
    """
    student = accelerator.unwrap_model(model)
    if zero := _zero_optimizer(accelerator, model):
        return dict(_of_zero(student, zero, mesh))
    return {name: tensor.to("cpu", copy=True).contiguous() for name, tensor in _live(student, optimizer).items()}


def restore_state(
    accelerator: Accelerator,
    model: Any,
    optimizer: torch.optim.Optimizer,
    mesh: DeviceMesh | None,
    read: Callable[[State], None],
) -> None:
    """Puts a state into model and optimizer. `read` fills the tensors of the state that it is given, in place."""
    student = accelerator.unwrap_model(model)
    zero = _zero_optimizer(accelerator, model)
    if zero is None:
        read(_live(student, optimizer))
        return
    _begin(zero)
    state = dict(_of_zero(student, zero, mesh))
    read(state)
    _into_zero(student, zero, state)


def _trained_parameters(student: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    return ((name, parameter) for name, parameter in student.named_parameters() if parameter.requires_grad)


def _live(student: torch.nn.Module, optimizer: torch.optim.Optimizer) -> State:
    """The numbers that the model and torch's AdamW work with themselves."""
    state: State = {}
    for name, parameter in _trained_parameters(student):
        if not optimizer.state[parameter]:
            optimizer.state[parameter] = initial_state(parameter)
        of_parameter = optimizer.state[parameter] | {PARAMETERS: parameter.detach()}
        state |= {f"{kind}.{name}": torch.atleast_1d(of_parameter[kind]) for kind in KINDS}
    return state


# DeepSpeed's ZeRO


def _zero_optimizer(accelerator: Accelerator, model: Any) -> Any:
    """Returns DeepSpeed's optimizer, if it has partitions; `None` if torch's own is at work."""
    if accelerator.state.deepspeed_plugin is None or not hasattr(model.optimizer, "optimizer"):
        return None
    if not any(hasattr(model.optimizer, name) for name in _FLAT):
        raise PosgapError(
            "deepspeed: this file trains without ZeRO, so posgap could not keep checkpoints; write stage 1, 2 or 3"
        )
    return model.optimizer


def _of_zero(student: torch.nn.Module, zero: Any, mesh: DeviceMesh | None) -> Iterator[tuple[str, Tensor]]:
    """This process's rows of each tensor, which is gathered for that."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    step = next(float(kept["step"]) for kept in zero.optimizer.state.values() if "step" in kept)
    for name, parameter in _trained_parameters(student):
        yield f"{PARAMETERS}.{name}", _own_rows(safe_get_full_fp32_param(parameter), mesh)
        for kind in MEANS:
            yield f"{kind}.{name}", _own_rows(safe_get_full_optimizer_state(parameter, kind), mesh)
        yield f"step.{name}", torch.tensor([step])


def _own_rows(whole: Tensor, mesh: DeviceMesh | None) -> Tensor:
    whole = whole.cpu()
    if mesh is None:
        return whole
    placement = Shard(0) if whole.dim() else Replicate()
    return distribute_tensor(whole, mesh, [placement], src_data_rank=None)


def _begin(zero: Any) -> None:
    """Gives ZeRO the state that its first step would."""
    base = zero.optimizer
    for flat in _flat(zero):
        if not base.state[flat]:  # torch counts in a tensor, DeepSpeed's Adam in an integer
            base.state[flat] = initial_state(flat.detach()) | ({} if type(base) is torch.optim.AdamW else {"step": 0})
    if hasattr(zero, "_lazy_init_hp_params_optimizer_state"):
        zero._lazy_init_hp_params_optimizer_state()


def _flat(zero: Any) -> list[Tensor]:
    """The flat partitions that this process's optimizer works with."""
    return next(getattr(zero, name) for name in _FLAT if hasattr(zero, name))


def _into_zero(student: torch.nn.Module, zero: Any, state: State) -> None:
    from deepspeed.utils import (
        safe_set_full_fp32_param,
        safe_set_full_optimizer_state,
        safe_set_local_fp32_param,
        safe_set_local_optimizer_state,
    )

    for name, parameter in _trained_parameters(student):
        values = {kind: _full_tensor(state[f"{kind}.{name}"]).to(parameter.device) for kind in (PARAMETERS, *MEANS)}
        if hasattr(parameter, "ds_id"):  # ZeRO-3
            values = {kind: _partition(value, parameter) for kind, value in values.items()}
            safe_set_local_fp32_param(parameter, values[PARAMETERS])
            for kind in MEANS:
                safe_set_local_optimizer_state(parameter, values[kind], kind)
            parameter.ds_tensor.data.copy_(values[PARAMETERS])
        else:
            safe_set_full_fp32_param(parameter, values[PARAMETERS])
            for kind in MEANS:
                safe_set_full_optimizer_state(parameter, values[kind], kind)
            parameter.data.copy_(values[PARAMETERS])
    step = next(float(tensor) for name, tensor in state.items() if name.startswith("step."))
    for kept in zero.optimizer.state.values():
        kept["step"] = torch.full_like(kept["step"], step) if isinstance(kept["step"], Tensor) else int(step)


def _full_tensor(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _partition(whole: Tensor, parameter: Any) -> Tensor:
    """This process's part of a parameter as ZeRO-3 parts it: in order, equally long, the last one filled up."""
    size = parameter.ds_tensor.numel()
    rank = torch.distributed.get_rank()
    part = torch.zeros(size, dtype=whole.dtype, device=whole.device)
    own = whole.flatten()[rank * size : (rank + 1) * size]
    part[: len(own)] = own
    return part
