"""Trained weights in 16 bits: what rounding leaves of small updates."""

import pytest
import torch

from posgap.distillation.rounding import Kept, stochastic

BF16, FP16 = torch.bfloat16, torch.float16


@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize("value", [0.016, 1.0, -3.3, 1e-6, -2e-8, 300.4, 0.0])
def test_a_value_is_its_own_expectation(dtype, value):
    below_and_above = stochastic(torch.full((40_000,), value), dtype, 0).float()
    numbers = below_and_above.unique()
    assert len(numbers) == (1 if value in (0.0, 1.0) else 2) and numbers.min() <= value <= numbers.max()
    # Neighbours: nothing of this precision lies between them.
    if len(numbers) == 2:
        assert numbers.mean().to(dtype).float() in numbers
    error = abs(below_and_above.double().mean() - torch.tensor(value).double())
    assert error <= 4 * float(numbers.max() - numbers.min()) / 2 / 40_000**0.5


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_numbers_that_the_precision_has_stay_and_what_is_beyond_it_is_infinite(dtype):
    # All of them, but for NaN.
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(dtype)
    every = every[~every.isnan()].float()
    assert torch.equal(stochastic(every, dtype, 0).float(), every)
    assert stochastic(torch.tensor([3e38 if dtype == BF16 else 7e4]), dtype, 0).isfinite().item() == (dtype == BF16)


def test_draws_are_by_seed_and_name():
    values = torch.rand(1000)
    first = stochastic(values, BF16, 0, "a")
    assert torch.equal(first, stochastic(values, BF16, 0, "a"))
    assert not torch.equal(first, stochastic(values, BF16, 1, "a"))
    assert not torch.equal(first, stochastic(values, BF16, 0, "b"))
    assert torch.equal(stochastic(values, torch.float32, 0), values)


def test_small_steps_are_lost_to_the_nearest_number_and_kept_at_random():
    """The paper's: twenty steps of at most 3e-6, to and fro, on weights of 0.02."""
    draw = torch.Generator().manual_seed(0)
    base = (0.02 * torch.randn(500, 400, generator=draw)).to(BF16)
    trained = base.float() + 1e-5 * torch.randn(base.shape, generator=draw)
    nearest, at_random, whole = Kept(), Kept(), Kept()
    nearest.add(base, trained, trained.to(BF16))
    at_random.add(base, trained, stochastic(trained, BF16, 0))
    whole.add(base, trained, trained)
    assert nearest.update < 0.3 and nearest.numbers < 0.2
    assert at_random.update == pytest.approx(1, abs=0.02) and at_random.numbers > nearest.numbers
    assert whole.update == whole.numbers == 1


def test_what_is_kept_is_counted_over_all_tensors():
    kept = Kept()
    assert kept.update == kept.numbers == 1  # of nothing
    kept.add(torch.zeros(3), torch.tensor([3.0, 0.0, 1.0]), torch.tensor([3.0, 5.0, 0.0]))
    kept.add(torch.zeros(2), torch.tensor([0.0, 2.0]), torch.tensor([0.0, 1.0]))
    assert kept.update == pytest.approx((9 + 0 + 2) / (9 + 1 + 4))
    assert kept.numbers == pytest.approx(2 / 3)
