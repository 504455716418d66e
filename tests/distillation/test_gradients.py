"""The gradient of a step: what is accumulated, multiplied and applied, against the same sums taken by hand."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from posgap.distillation import gradients
from posgap.distillation.gradients import Gradient

Part = Tensor | float  # of a step: a loss's gradient, or a factor for what is there
STEPS = {
    "plain": [[3.0, 4.0]],
    "summed": [[3.0, 4.0], [-1.0, 0.5], [2.0, 0.0]],
    "scaled": [[3.0, 4.0], 0.5, [-1.0, 0.5], 3.0, [2.0, 0.0]],
    "doubled": [[3.0, 4.0], 2.0, [-1.0, 0.5]],
    "scaled at the end": [[3.0, 4.0], [1.0, 1.0], 0.25],
    "scaled far": [[3.0, 4.0], 1e-7, [-1.0, 0.5], 1e-7, [2.0, 1.0], 1e-7, [0.5, 0.5], 1e5],
    "empty": [],
}


def by_hand(step: list[Part]) -> Tensor:
    total = torch.zeros(2, dtype=torch.float64)
    for part in step:
        total = total * part if isinstance(part, float) else total + torch.tensor(part, dtype=torch.float64)
    return total


class Launch:
    """What stands for Accelerate: of one process, or, with a `zero` optimizer of the model, for DeepSpeed with two.

    DeepSpeed multiplies a loss by the loss scale, means gradients over processes, and when they are to be synchronised
    divides by the loss scale and updates; it does not tell the norm.
    """

    def __init__(self, model: torch.nn.Module, is_deepspeed: bool):
        self.state = SimpleNamespace(deepspeed_plugin=SimpleNamespace() if is_deepspeed else None)
        self.model, self.is_deepspeed = model, is_deepspeed
        self.sync_gradients, self.unsynchronised = True, []

    def backward(self, loss: Tensor) -> None:
        if not self.is_deepspeed:
            loss.backward()
            return
        scale = getattr(self.model.optimizer, "loss_scale", 1.0)
        (loss * scale / 2).backward()
        if self.sync_gradients:
            with torch.no_grad():
                self.model.weight -= self.model.weight.grad / scale
            self.model.weight.grad = None

    def clip_grad_norm_(self, parameters: Iterator[Tensor], max_norm: float) -> Tensor | None:
        return None if self.is_deepspeed else torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    @contextmanager
    def no_sync(self, model: torch.nn.Module) -> Iterator[None]:
        self.unsynchronised.append(model)
        yield


@pytest.fixture
def processes(monkeypatch):
    """How many there are; another one has the same gradient."""
    processes = SimpleNamespace(world=1)
    monkeypatch.setattr(gradients, "rank_and_world", lambda: (0, processes.world))
    monkeypatch.setattr(gradients.dist, "all_reduce", lambda tensor: tensor.mul_(2))
    return processes


def gradient_of(is_deepspeed: bool = False, max_norm: float = 1e9) -> Gradient:
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    model.frozen = torch.nn.Parameter(torch.zeros(2), requires_grad=False)
    optimizer = torch.optim.SGD([model.weight], lr=1.0)
    if is_deepspeed:
        model.optimizer = SimpleNamespace(loss_scale=1.0)
        optimizer = SimpleNamespace(step=lambda: None, zero_grad=lambda: None)
    return Gradient(Launch(model, is_deepspeed), model, optimizer, max_norm)


def taken(gradient: Gradient, step: list[Part]) -> float:
    """The norm of a step's gradient, with which the parameters were updated."""
    last = max((i for i, part in enumerate(step) if not isinstance(part, float)), default=-1)
    for i, part in enumerate(step):
        if isinstance(part, float):
            gradient.scale(part)
        else:
            loss = (torch.tensor(part, dtype=torch.float64) * gradient.model.weight).sum()
            gradient.accumulate(loss, last=i == last)
    return gradient.update()


@pytest.mark.parametrize("name", STEPS)
def test_factors_multiply_what_was_there_before_them(processes, name):
    gradient, expected = gradient_of(), by_hand(STEPS[name])
    for again in (1, 2):  # of a step nothing is left to the next
        assert taken(gradient, STEPS[name]) == pytest.approx(float(expected.norm()))
        assert gradient.factor == 1 and gradient.can_be_scaled
        torch.testing.assert_close(gradient.model.weight.data, -again * expected)


@pytest.mark.parametrize("name", ["plain", "summed", "scaled", "doubled", "scaled far"])
def test_under_deepspeed_the_sum_over_processes_is_as_much(processes, name):
    """Though it has the mean of two processes, and updates in the last pass, before which all factors are known."""
    processes.world = 2
    step = STEPS[name][:-1] if isinstance(STEPS[name][-1], float) else STEPS[name]
    gradient, expected = gradient_of(is_deepspeed=True), by_hand(step)
    for again in (1, 2):
        assert taken(gradient, step) == 0  # as nobody tells
        assert gradient.factor == gradient.model.optimizer.loss_scale == 1
        torch.testing.assert_close(gradient.model.weight.data, -again * expected)


def test_the_gradient_is_clipped_after_scaling_and_its_norm_is_from_before(processes):
    gradient = gradient_of(max_norm=1.0)
    assert taken(gradient, [[3.0, 4.0], 2.0]) == pytest.approx(10)
    torch.testing.assert_close(
        gradient.model.weight.data, torch.tensor([-0.6, -0.8], dtype=torch.float64), atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("number", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_changes_nothing_and_is_forgotten(processes, number):
    gradient = gradient_of()
    assert not math.isfinite(taken(gradient, [[number, 1.0], 0.5]))
    assert gradient.model.weight.tolist() == [0, 0] and gradient.factor == 1
    assert taken(gradient, [[3.0, 4.0]]) == pytest.approx(5)


@pytest.mark.parametrize("times", [1, 2])
def test_processes_gradients_are_added_up_once(processes, times):
    processes.world = times
    gradient = gradient_of()
    gradient.model.unread = torch.nn.Parameter(torch.zeros(1))
    gradient.optimizer.add_param_group({"params": [gradient.model.unread]})
    gradient.optimizer.zero_grad = lambda: None  # so that what was accumulated can be looked at
    assert taken(gradient, [[3.0, 4.0], 0.5]) == pytest.approx(2.5 * times)
    assert (gradient.model.unread.grad is not None) == (times == 2) and gradient.model.frozen.grad is None
    if times == 2:  # what this process has not read another may have
        assert gradient.model.unread.grad.tolist() == [0]


def test_processes_accumulate_by_themselves_which_deepspeed_does_anyway(processes):
    plain, by_deepspeed = gradient_of(), gradient_of(is_deepspeed=True)
    for gradient, unsynchronised in ((plain, [plain.model]), (by_deepspeed, [])):
        with gradient.of_this_process():
            assert gradient.accelerator.unsynchronised == unsynchronised


def test_a_tiny_factor_is_applied_at_once_before_the_next_loss_overflows(processes):
    gradient = gradient_of()
    for factor, left in ((1e-12, 1e-12), (0.5, 1.0)):
        gradient.accumulate((torch.ones(2, dtype=torch.float64) * gradient.model.weight).sum(), last=False)
        gradient.scale(factor)
        assert gradient.factor == left
    # The first loss was multiplied by both, the second, divided by the first factor, by the whole of them too.
    torch.testing.assert_close(
        gradient.model.weight.grad, torch.full((2,), 0.5, dtype=torch.float64) + 0.5e-12, rtol=1e-9, atol=0
    )
    by_deepspeed = gradient_of(is_deepspeed=True)
    by_deepspeed.scale(1e-15)
    assert by_deepspeed.factor == 1e-15  # its gradient cannot be multiplied before the last pass


@pytest.mark.parametrize(
    ("factors", "gives_up"), [([1e-4, 1e-4, 1e8], True), ([1e-3, 1e-2], False), ([1e-6], False), ([], False)]
)
def test_only_small_factors_end_scaling_and_only_once(processes, factors, gives_up):
    """The least product of a step's factors so far counts, of any step."""
    gradient = gradient_of()
    assert gradient.can_be_scaled and not gradient.disable_scaling_if_underflowed()
    for factor in factors:
        gradient.scale(factor)
    gradient.clear()
    gradient.scale(0.5)
    assert gradient.disable_scaling_if_underflowed() is gives_up and gradient.can_be_scaled is not gives_up
    assert not gradient.disable_scaling_if_underflowed()


class NoZero:
    """An optimizer of DeepSpeed's that has no loss scale, and can be given none."""

    __slots__ = ()


def test_under_deepspeed_an_optimizer_without_a_loss_scale_cannot_be_scaled_but_used(processes):
    processes.world = 2
    gradient = gradient_of(is_deepspeed=True)
    assert gradient.can_be_scaled
    gradient.model.optimizer = NoZero()
    assert not gradient.can_be_scaled
    taken(gradient, STEPS["summed"])
    torch.testing.assert_close(gradient.model.weight.data, -by_hand(STEPS["summed"]))


def test_the_least_factor_is_never_a_tensor_of_the_host_beside_one_of_the_gpu(processes):
    """Which a GPU refuses: where one group of a step has no factor yet, and the next has one."""
    gradient = gradient_of()
    gradient.scale(1.0)
    assert gradient.least_factor == 1.0 and not isinstance(gradient.least_factor, Tensor)
    gradient.scale(torch.tensor(0.5))
    gradient.clear()
    gradient.scale(1.0)
    assert float(gradient.least_factor) == 0.5
