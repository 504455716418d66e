"""Tokens a second, and the share of a card's rate, that `distill` says."""

import pytest
import torch

from posgap.distillation.speed import Speed


def test_the_share_is_that_of_the_model_s_operations():
    speed = Speed(trained=10**9, frozen=0, steps=[(1000, 9.0), (1000, 9.0), (3000, 0.1), (3000, 0.1)])
    assert speed.tokens_per_second() == pytest.approx(30_000)  # the first two steps do not count
    assert speed.share_of_peak("NVIDIA H100 80GB HBM3") == pytest.approx(6 * 1e9 * 30_000 / 989e12)
    assert speed.share_of_peak("NVIDIA H100 PCIe") == pytest.approx(6 * 1e9 * 30_000 / 756e12)
    speed.processes = 4
    assert speed.share_of_peak("NVIDIA A100-SXM4-80GB") == pytest.approx(6 * 1e9 * 30_000 / 4 / 312e12)


def test_an_unknown_card_and_float32_get_tokens_alone():
    speed = Speed(10**9, 0, steps=[(3000, 0.1)])
    assert speed.describe("NVIDIA H100 80GB HBM3", "bfloat16 parameters").endswith(
        "30,000 tokens/s, 18 % of the rate of NVIDIA H100 80GB HBM3 (MFU)"
    )
    assert speed.describe("NVIDIA H100 80GB HBM3", "float32") == "30,000 tokens/s"
    assert (
        speed.describe("Somebody's card", "bfloat16 parameters") == speed.describe("", "float32") == "30,000 tokens/s"
    )


def test_frozen_weights_count_for_less():
    model = torch.nn.Sequential(torch.nn.Linear(10, 10, bias=False), torch.nn.Linear(10, 3, bias=False))
    model[0].requires_grad_(False)
    counted = Speed.for_model(model, 2)
    assert (counted.trained, counted.frozen, counted.processes) == (30, 100, 2)
