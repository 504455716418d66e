"""The losses as mathematics."""

import copy
import math

import pytest
import torch
from by_definition import alpha_by_definition
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from posgap.distillation import head as head_module
from posgap.distillation.head import Head
from posgap.distillation.losses import alignment_weights, per_row, token_cross_entropy, token_kl


def logits(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_kl_of_a_distribution_with_itself_is_zero():
    p = logits(12, 7)
    assert token_kl(p, p).abs().max() < 1e-6
    assert token_kl(p, p + 5.0).abs().max() < 1e-6  # a shift of all logits is no difference


def test_kl_by_hand():
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.5, 0.25])
    expected = 0.5 * math.log(2) + 0.25 * math.log(0.5)
    assert token_kl(p.log()[None], q.log()[None]).item() == pytest.approx(expected, rel=1e-6)


def test_kl_and_its_gradient_are_those_of_torch():
    p, q = logits(6, 50), logits(6, 50, seed=1)
    twins = q.clone().requires_grad_(), q.clone().requires_grad_()
    ours = token_kl(p, twins[0])
    theirs = nn.functional.kl_div(twins[1].log_softmax(-1), p.log_softmax(-1), reduction="none", log_target=True)
    torch.testing.assert_close(ours.double(), theirs.sum(-1), rtol=1e-5, atol=1e-6)
    ours.sum().backward()
    theirs.sum().backward()
    torch.testing.assert_close(twins[0].grad, twins[1].grad, rtol=1e-5, atol=1e-6)


def test_in_bfloat16_the_loss_of_the_same_numbers_is_computed_in_float32():
    p, q, targets = logits(6, 50).bfloat16(), logits(6, 50, seed=1).bfloat16(), torch.arange(6)
    for halves, whole in [
        (token_kl(p, q), token_kl(p.float(), q.float())),
        (token_kl(p, q.float()), token_kl(p.float(), q.float())),
        (token_kl(p.float(), q), token_kl(p.float(), q.float())),
        (token_cross_entropy(q, targets), token_cross_entropy(q.float(), targets)),
    ]:
        assert halves.dtype == torch.float32
        assert torch.equal(halves, whole)


def test_cross_entropy_is_minus_the_log_of_the_target_s_probability():
    q, targets = logits(6, 50), torch.tensor([0, 49, 7, 7, 1, 30])
    expected = [-math.log(float(row.softmax(0)[target])) for row, target in zip(q, targets)]
    assert token_cross_entropy(q, targets).tolist() == pytest.approx(expected, rel=1e-5)


def test_on_a_gpu_logits_of_sixteen_bits_are_float32(monkeypatch):
    """By a product that only a GPU has; a tensor without numbers has its checks."""
    monkeypatch.setattr(head_module, "_is_on_gpu", lambda tensor: True)
    states = torch.empty(3, 4, dtype=torch.bfloat16, device="meta")
    for bias in (False, True):
        logits = Head(nn.Linear(4, 50, bias, dtype=torch.bfloat16, device="meta")).project(states)
        assert logits.shape == (3, 50) and logits.dtype == torch.float32


DTYPES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.02}


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("at_once", "soft_cap", "bias"), [(1, None, True), (50, 3.0, False), (101, None, False), (10_000, 3.0, True)]
)
def test_of_a_head_it_is_the_same_loss_with_the_same_gradients(at_once, soft_cap, bias, dtype, in_place, monkeypatch):
    monkeypatch.setattr(head_module, "NUMBERS_AT_ONCE", at_once)
    torch.manual_seed(0)
    linear, twin = nn.Linear(4, 50, bias, dtype=dtype), nn.Linear(4, 50, bias).double()
    twin.load_state_dict(linear.state_dict())
    head = Head(linear, 0.7, soft_cap)
    head.in_place = in_place
    hidden, teacher, weights = torch.randn(7, 4).to(dtype), torch.randn(7, 50).double(), torch.rand(7).double()
    inputs = hidden.clone().requires_grad_(), hidden.double().requires_grad_()
    chunked = head.losses(lambda logits, t: double_kl(t, logits), inputs[0], teacher)
    logits = twin(inputs[1]) * 0.7
    plain = double_kl(teacher, torch.tanh(logits / soft_cap) * soft_cap if soft_cap else logits)
    # Logits of 16-bit weights are as exact as the weights.
    torch.testing.assert_close(chunked.double(), plain, rtol=0, atol=min(DTYPES[dtype], 1e-5))
    for _ in range(2):  # the second time there is a gradient already
        (weights * head.losses(lambda logits, t: double_kl(t, logits), inputs[0], teacher)).sum().backward()
    (2 * weights * plain).sum().backward()
    tolerance = {"rtol": DTYPES[dtype], "atol": DTYPES[dtype]}
    torch.testing.assert_close(inputs[0].grad.double(), inputs[1].grad, **tolerance)
    for own, wanted in zip(linear.parameters(), twin.parameters()):
        torch.testing.assert_close(own.grad.double(), wanted.grad, **tolerance)


def double_kl(teacher, logits):
    p, q = teacher.double().log_softmax(-1), logits.double().log_softmax(-1)
    return (p.exp() * (p - q)).sum(-1)


def test_of_a_head_a_gradient_in_place_is_in_the_tensor_that_was_there():
    head, hidden = Head(nn.Linear(4, 50)), torch.randn(7, 4)
    head.in_place = True
    there = head.linear.weight.grad = torch.ones(50, 4)
    head.losses(lambda logits: logits.sum(-1), hidden).sum().backward()
    assert head.linear.weight.grad is there
    torch.testing.assert_close(there, 1 + hidden.sum(0).expand(50, 4))


def test_of_a_head_logits_are_float32_where_all_else_is_rounded():
    """Under autocast, of parameters in either precision."""
    torch.manual_seed(0)
    hidden = 10 * torch.randn(7, 64).bfloat16()
    linear = nn.Linear(64, 50, dtype=torch.bfloat16)
    exact = hidden.double() @ linear.weight.double().T + linear.bias.double()
    for layer in (linear, copy.deepcopy(linear).float()):
        with torch.autocast("cpu", torch.bfloat16):
            logits = Head(layer)(hidden)
            losses = Head(layer).losses(lambda logits: logits[:, 0], hidden)
        assert logits.dtype == torch.float32
        torch.testing.assert_close(logits.double(), exact, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(losses, logits[:, 0])
    assert (layer.bfloat16()(hidden).double() - exact).abs().max() > 1e-3


def test_of_a_head_it_learns_even_where_nothing_before_it_does():
    head = Head(nn.Linear(4, 50))
    head.losses(token_cross_entropy, torch.ones(3, 4), torch.zeros(3).long()).sum().backward()
    assert head.linear.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("allowed", "tokens"), [(150, 3), (149, 2), (1, 1)])
def test_of_a_head_no_more_logits_exist_at_once_than_allowed(allowed, tokens, monkeypatch):
    monkeypatch.setattr(head_module, "NUMBERS_AT_ONCE", allowed)
    seen = []

    def loss(logits, targets):
        seen.append(logits.numel() // 50)
        return token_cross_entropy(logits, targets)

    hidden = torch.randn(8, 2, requires_grad=True)
    Head(nn.Linear(2, 50)).losses(loss, hidden, torch.zeros(8, dtype=torch.long)).sum().backward()
    assert max(seen) == tokens  # one at least
    assert sum(seen) == 2 * 8  # every token's once forward, once backward


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_rows_are_summed_each_over_its_own_tokens(lengths):
    values = torch.arange(sum(lengths), dtype=torch.float64)
    expected = [part.sum().item() for part in values.split(lengths)]
    assert per_row(values, torch.tensor(lengths)).tolist() == expected


POSITIONED = st.lists(st.tuples(st.floats(0, 20, width=32), st.integers(2, 6)), min_size=1, max_size=30)


@settings(deadline=None)
@given(POSITIONED)
def test_alpha_is_its_definition(pairs):
    losses, positions = zip(*pairs)
    weights = alignment_weights(torch.tensor(losses, dtype=torch.float64), positions, "paper")
    assert weights.tolist() == pytest.approx(alpha_by_definition(losses, positions), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("losses", [[1.0, 2.0, 6.0], [4.0, 0.0], [7.0]])
def test_without_alignment_it_is_the_mean(losses):
    losses = torch.tensor(losses)
    weights = alignment_weights(losses, range(len(losses)), "none")
    assert (weights * losses).sum() == pytest.approx(float(losses.mean()))


@pytest.mark.parametrize("alignment", ["none", "paper"])
def test_alpha_is_a_constant_to_the_gradient(alignment):
    losses = torch.tensor([1.0, 2.0, 3.0, 0.5], requires_grad=True)
    alpha = alignment_weights(losses, [2, 2, 3, 4], alignment)
    assert not alpha.requires_grad
    (alpha * losses).sum().backward()
    torch.testing.assert_close(losses.grad, alpha)


def test_alpha_does_not_depend_on_the_order_of_pairs():
    losses, positions, order = torch.tensor([1.0, 2.0, 3.0, 0.5]), [2, 2, 3, 4], [3, 1, 0, 2]
    torch.testing.assert_close(
        alignment_weights(losses[order], [positions[index] for index in order], "paper"),
        alignment_weights(losses, positions, "paper")[order],
    )
