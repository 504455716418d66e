"""The temperature of an unsure teacher, in closed form."""

import math

import pytest
import torch
from torch import nn

from posgap.distillation.head import Head
from posgap.distillation.temperature import SURE, TEMPERATURES, choose_temperature, log_probabilities


def of_two(margin: float) -> torch.Tensor:
    """The log-probability at each temperature of the first of two tokens whose logits differ by `margin`."""
    return torch.tensor([-math.log1p(math.exp(-margin / each)) for each in TEMPERATURES])


def test_log_probabilities_by_hand():
    logits = torch.tensor([[1.5, 0.0], [0.0, 0.25]])
    found = log_probabilities(logits, torch.tensor([0, 1]))
    torch.testing.assert_close(found, torch.stack([of_two(1.5), of_two(0.25)]))


def test_log_probabilities_through_a_head_in_chunks(monkeypatch):
    monkeypatch.setattr("posgap.distillation.head.NUMBERS_AT_ONCE", 14)
    head, states = Head(nn.Linear(3, 7)), torch.randn(5, 3)
    targets = torch.tensor([0, 6, 2, 2, 1])
    with torch.no_grad():
        found = head.losses(log_probabilities, states, targets)
        torch.testing.assert_close(found, log_probabilities(head(states), targets))
    assert found.shape == (5, len(TEMPERATURES))


def margin(temperature: float, probability: float = SURE) -> float:
    """The difference of two logits at which a temperature makes the first as probable as that."""
    return temperature * math.log(probability / (1 - probability))


@pytest.mark.parametrize("wanted", TEMPERATURES)
def test_the_highest_temperature_at_which_the_teacher_is_sure(wanted):
    least = of_two(margin(wanted + 0.01))[None]
    assert choose_temperature(least)[0] == wanted


def test_a_sure_teacher_is_left_as_it_is_and_a_hopeless_one_gets_the_lowest():
    assert choose_temperature(of_two(20.0)[None])[0] == 1
    assert choose_temperature(of_two(0.01)[None])[0] == TEMPERATURES[-1]


def test_confidence_is_the_mean_over_answers():
    """Of probabilities, not of their logarithms: one doubtful answer among ten does not decide."""
    least = torch.stack([of_two(20.0)] * 9 + [of_two(-3.0)])
    chosen, before, after = choose_temperature(least)
    assert before == pytest.approx((9 + math.exp(of_two(-3.0)[0])) / 10, abs=1e-6)
    assert chosen == 1 and after == before
