"""The losses as mathematics."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from posgap.distillation import losses as losses_module
from posgap.distillation.losses import alignment_weights, in_chunks, per_row, token_cross_entropy, token_kl


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
        (token_cross_entropy(targets, q), token_cross_entropy(targets, q.float())),
    ]:
        assert halves.dtype == torch.float32
        assert torch.equal(halves, whole)


def test_cross_entropy_is_minus_the_log_of_the_target_s_probability():
    q, targets = logits(6, 50), torch.tensor([0, 49, 7, 7, 1, 30])
    expected = [-math.log(float(row.softmax(0)[target])) for row, target in zip(q, targets)]
    assert token_cross_entropy(targets, q).tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("at_once", [1, 50, 101, 10_000])
def test_in_chunks_it_is_the_same_loss_with_the_same_gradients(at_once, monkeypatch):
    monkeypatch.setattr(losses_module, "LOGITS_AT_ONCE", at_once)
    torch.manual_seed(0)
    head, twin = nn.Linear(4, 50), nn.Linear(4, 50)
    twin.load_state_dict(head.state_dict())
    hidden, teacher, weights = torch.randn(7, 4), torch.randn(7, 50), torch.rand(7)
    inputs = hidden.clone().requires_grad_(), hidden.clone().requires_grad_()
    chunked = in_chunks(lambda t, h: token_kl(t, head(h)), 50, teacher, inputs[0])
    plain = token_kl(teacher, twin(inputs[1]))
    torch.testing.assert_close(chunked, plain)
    (weights * chunked).sum().backward()
    (weights * plain).sum().backward()
    torch.testing.assert_close(inputs[0].grad, inputs[1].grad)
    torch.testing.assert_close(head.weight.grad, twin.weight.grad)


def test_in_chunks_the_head_learns_even_where_nothing_before_it_does():
    head = nn.Linear(4, 50)
    in_chunks(
        lambda t, h: token_cross_entropy(t, head(h)), 50, torch.zeros(3).long(), torch.ones(3, 4)
    ).sum().backward()
    assert head.weight.grad.abs().sum() > 0


@pytest.mark.parametrize(("allowed", "tokens"), [(150, 3), (149, 2), (1, 1)])
def test_in_chunks_no_more_logits_exist_at_once_than_allowed(allowed, tokens, monkeypatch):
    monkeypatch.setattr(losses_module, "LOGITS_AT_ONCE", allowed)
    seen = []

    def loss(targets, hidden):
        seen.append(len(hidden))
        return token_cross_entropy(targets, hidden.repeat(1, 25))

    hidden = torch.randn(8, 2, requires_grad=True)
    in_chunks(loss, 50, torch.zeros(8, dtype=torch.long), hidden).sum().backward()
    assert max(seen) == tokens  # one at least
    assert sum(seen) == 2 * 8  # every token's once forward, once backward


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_rows_are_summed_each_over_its_own_tokens(lengths):
    values = torch.arange(sum(lengths), dtype=torch.float64)
    expected = [part.sum().item() for part in values.split(lengths)]
    assert per_row(values, torch.tensor(lengths)).tolist() == expected


def alpha_by_definition(losses, positions, within):
    """softmax_i(mean_j L_ij) * L_ij / within_k(L_ik), in plain Python."""
    bins = {}
    for loss, position in zip(losses, positions):
        bins.setdefault(position, []).append(loss)
    total = sum(math.exp(sum(b) / len(b)) for b in bins.values())
    return [
        math.exp(sum(bins[p]) / len(bins[p])) / total * (loss / within(bins[p]) if max(bins[p]) else 0)
        for loss, p in zip(losses, positions)
    ]


POSITIONED = st.lists(st.tuples(st.floats(0, 20, width=32), st.integers(2, 6)), min_size=1, max_size=30)


@settings(deadline=None)
@given(POSITIONED, st.sampled_from([("paper", max), ("balanced", sum)]))
def test_alpha_is_its_definition(pairs, kind):
    losses, positions = zip(*pairs)
    alignment, within = kind
    weights = alignment_weights(torch.tensor(losses, dtype=torch.float64), torch.tensor(positions), alignment)
    assert weights.tolist() == pytest.approx(alpha_by_definition(losses, positions, within), rel=1e-9, abs=1e-12)


@given(POSITIONED)
def test_balanced_weights_sum_to_one_and_do_not_see_the_batch_size(pairs):
    losses, positions = torch.tensor([p[0] + 0.1 for p in pairs]).double(), torch.tensor([p[1] for p in pairs])
    alpha = alignment_weights(losses, positions, "balanced")
    assert alpha.sum().item() == pytest.approx(1)
    twice = alignment_weights(losses.repeat(2), positions.repeat(2), "balanced")
    assert (twice * losses.repeat(2)).sum().item() == pytest.approx((alpha * losses).sum().item())


@pytest.mark.parametrize("losses", [[1.0, 2.0, 6.0], [4.0, 0.0], [7.0]])
def test_without_alignment_it_is_the_mean(losses):
    losses = torch.tensor(losses)
    weights = alignment_weights(losses, torch.arange(len(losses)) // 2, "none")
    assert (weights * losses).sum() == pytest.approx(float(losses.mean()))


@pytest.mark.parametrize("alignment", ["none", "paper", "balanced"])
def test_alpha_is_a_constant_to_the_gradient(alignment):
    losses = torch.tensor([1.0, 2.0, 3.0, 0.5], requires_grad=True)
    alpha = alignment_weights(losses, torch.tensor([2, 2, 3, 4]), alignment)
    assert not alpha.requires_grad
    (alpha * losses).sum().backward()
    torch.testing.assert_close(losses.grad, alpha)


def test_alpha_does_not_depend_on_the_order_of_pairs():
    losses, positions = torch.tensor([1.0, 2.0, 3.0, 0.5]), torch.tensor([2, 2, 3, 4])
    order = torch.tensor([3, 1, 0, 2])
    torch.testing.assert_close(
        alignment_weights(losses[order], positions[order], "paper"),
        alignment_weights(losses, positions, "paper")[order],
    )
