"""The R1 losses as mathematics."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from posgap.distillation.losses import alignment_weights, response_kl


def logits(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_kl_of_a_distribution_with_itself_is_zero():
    p = logits(3, 4, 7)
    mask = torch.ones(3, 4, dtype=torch.bool)
    assert response_kl(p, p, mask).abs().max() < 1e-7
    assert response_kl(p, p + 5.0, mask).abs().max() < 1e-6  # a shift of all logits is no difference


def test_kl_by_hand():
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.5, 0.25])
    expected = 0.5 * math.log(2) + 0.25 * math.log(0.5)
    found = response_kl(p.log()[None, None], q.log()[None, None], torch.ones(1, 1, dtype=torch.bool))
    assert found.item() == pytest.approx(expected, rel=1e-6)


def test_the_mean_is_over_response_tokens_alone():
    p, q = logits(2, 3, 5), logits(2, 3, 5, seed=1)
    mask = torch.tensor([[False, True, True], [True, True, True]])
    per_token = torch.nn.functional.kl_div(q.log_softmax(-1), p.log_softmax(-1), reduction="none", log_target=True).sum(
        -1
    )
    expected = torch.stack([per_token[0, 1:].mean(), per_token[1].mean()])
    torch.testing.assert_close(response_kl(p, q, mask).double(), expected, rtol=1e-5, atol=1e-6)


def alpha_by_definition(losses, positions):
    """alpha_ij = softmax_i(mean_j L_ij) * L_ij / max_k L_ik, in plain Python."""
    bins = {}
    for loss, position in zip(losses, positions):
        bins.setdefault(position, []).append(loss)
    total = sum(math.exp(sum(b) / len(b)) for b in bins.values())
    return [
        math.exp(sum(bins[p]) / len(bins[p])) / total * (loss / max(bins[p]) if max(bins[p]) else 0)
        for loss, p in zip(losses, positions)
    ]


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 20, width=32), st.integers(2, 6)), min_size=1, max_size=30))
def test_alpha_is_its_definition(pairs):
    losses, positions = zip(*pairs)
    found = alignment_weights(torch.tensor(losses, dtype=torch.float64), torch.tensor(positions))
    assert found.tolist() == pytest.approx(alpha_by_definition(losses, positions), rel=1e-9, abs=1e-12)


def test_alpha_is_a_constant_to_the_gradient():
    losses = torch.tensor([1.0, 2.0, 3.0, 0.5], requires_grad=True)
    alpha = alignment_weights(losses, torch.tensor([2, 2, 3, 4]))
    assert not alpha.requires_grad
    (alpha * losses).sum().backward()
    torch.testing.assert_close(losses.grad, alpha)


def test_alpha_does_not_depend_on_the_order_of_pairs():
    losses, positions = torch.tensor([1.0, 2.0, 3.0, 0.5]), torch.tensor([2, 2, 3, 4])
    order = torch.tensor([3, 1, 0, 2])
    torch.testing.assert_close(
        alignment_weights(losses[order], positions[order]), alignment_weights(losses, positions)[order]
    )
