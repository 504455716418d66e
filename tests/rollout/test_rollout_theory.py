"""Predicted rollouts against known answers, matrices, and the theorems of Wu et al. (ICML 2025)."""

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import public_file
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from posgap.foundation.errors import BadOption
from posgap.foundation.files import read_json
from posgap.rollout.architecture import Architecture
from posgap.rollout.attention import Mask, last_row
from posgap.rollout.encodings import alibi_slopes, require_lambdas, rope_angles, rotation_scores


def masks(n: int, kind: str, size: int) -> tuple[Mask, np.ndarray]:
    """The mask, and as a matrix which token i may see which token j."""
    i, j = np.indices((n, n))
    return {
        "causal": (Mask.causal(n), j <= i),
        "full": (Mask.full(n), j >= 0),
        "window": (Mask(size), (j <= i) & (i - j < size)),
        "prefix": (Mask.with_prefix(n, size), (j <= i) | (j < size)),
    }[kind]


def rope(theta: float, head_size: int, strength: float = 1.0) -> Callable:
    return partial(rotation_scores, angles=rope_angles(theta, head_size), strength=strength)


def matrices(architecture: Architecture, allowed: np.ndarray) -> list[np.ndarray]:
    """The head-averaged attention of every layer by the textbook's softmax."""
    n, n_layers = architecture.n, len(architecture.lambdas)
    heads = max(np.shape(architecture.slopes)[1], np.shape(architecture.diagonal)[1])
    slopes = np.broadcast_to(architecture.slopes, (n_layers, heads))
    diagonal = np.broadcast_to(architecture.diagonal, (n_layers, heads))
    distance = np.subtract.outer(np.arange(n), np.arange(n))
    out = []
    for layer in range(n_layers):
        mean = np.zeros((n, n))
        for head in range(heads):
            by_slope = -slopes[layer, head] * abs(distance)
            scores = architecture.scores(distance) if architecture.scores else by_slope
            scores = scores + diagonal[layer, head] * np.eye(n)
            e = np.where(allowed, np.exp(scores - scores.max()), 0.0)
            mean += e / e.sum(axis=1, keepdims=True) / heads
        out.append(mean)
    return out


def product(attentions: list[np.ndarray], lambdas) -> np.ndarray:
    """The whole rollout, last layer leftmost."""
    n = len(attentions[0])
    rollout = np.eye(n)
    for attention, strength in zip(attentions, lambdas):
        rollout = ((1 - strength) * np.eye(n) + strength * attention) @ rollout
    return rollout


@pytest.mark.parametrize("case", range(9))
def test_known_answers(case):
    case = read_json(public_file("../theory/known_answers.json"))["cases"][case]
    n = case["sequence_length"]
    mask, _ = masks(n, case["mask"], case["window"] or case["prefix"] or n)
    row = Architecture(
        n, mask, case["lambdas"], np.array(case["alibi_slopes"]), diagonal=np.array(case["diagonal_scores"])
    ).rollout()
    np.testing.assert_allclose(row, case["last_row"], rtol=1e-8, atol=0)


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 24),
    kind=st.sampled_from(["causal", "full", "window", "prefix"]),
    size=st.integers(1, 26),
    encoding=st.sampled_from(["none", "decay", "alibi", "rope"]),
    heads=st.integers(1, 5),
    per_layer=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_scans_give_what_products_of_matrices_give(n, kind, size, encoding, heads, per_layer, seed):
    rng = np.random.default_rng(seed)
    n_layers = int(rng.integers(1, 5))
    mask, allowed = masks(n, kind, size)
    slopes = {"decay": np.full((1, 1), 0.7), "alibi": alibi_slopes(heads)[None]}.get(encoding, np.zeros((1, heads)))
    architecture = Architecture(
        n,
        mask,
        rng.random(n_layers),
        slopes,
        scores=rope(100.0, 8, strength=3.0) if encoding == "rope" else None,
        diagonal=rng.normal(scale=8, size=(n_layers if per_layer else 1, heads)),
    )
    expected = product(matrices(architecture, allowed), architecture.lambdas)[-1]
    # Only RoPE's convolutions may cancel.
    tolerance = {"rtol": 1e-9, "atol": 1e-13 if encoding == "rope" else 0}
    np.testing.assert_allclose(architecture.rollout(), expected, **tolerance)
    assert architecture.rollout().sum() == pytest.approx(1)


def test_any_matrices_by_vector_products():
    rng = np.random.default_rng(0)
    attentions = [rng.dirichlet(np.ones(6), size=6) for _ in range(3)]
    layers = [SimpleNamespace(carry=a.__rmatmul__) for a in attentions]
    carried = last_row(6, layers, [0.9, 0.5, 0.1])
    np.testing.assert_allclose(carried, product(attentions, [0.9, 0.5, 0.1])[-1])


def test_content_counts_for_every_head_and_a_constant_for_none():
    """Faults of public code: content on head 0 alone, or added to a whole row, which softmax ignores."""
    n, slopes = 9, alibi_slopes(4)[None]
    plain = Architecture(n, Mask.causal(n), [0.5, 0.5], slopes).rollout()
    one_for_all = Architecture(n, Mask.causal(n), [0.5, 0.5], slopes, diagonal=np.array([[2.0]])).rollout()
    spelled = Architecture(n, Mask.causal(n), [0.5, 0.5], slopes, diagonal=np.full((2, 4), 2.0)).rollout()
    first_only = Architecture(n, Mask.causal(n), [0.5, 0.5], slopes, diagonal=np.array([[2.0, 0, 0, 0]])).rollout()
    np.testing.assert_allclose(one_for_all, spelled)
    assert one_for_all[-1] > first_only[-1] > plain[-1]


def test_a_great_diagonal_score_is_the_identity_without_overflow():
    with np.errstate(over="raise", invalid="raise"):
        row = Architecture(8, Mask.causal(8), [1.0] * 3, diagonal=np.array([[5000.0]])).rollout()
        far = Architecture(8, Mask.causal(8), [1.0] * 3, diagonal=np.array([[-5000.0]])).rollout()
    np.testing.assert_allclose(row, np.eye(8)[-1])
    assert far[:5].sum() == pytest.approx(1)  # three steps that all go back, from the eighth token


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 25, 32, 112])
def test_alibi_slopes_are_those_of_transformers(heads):
    import torch

    bias = build_alibi_tensor(torch.ones(1, 2), heads, torch.float64)[:, 0, 1]
    np.testing.assert_allclose(alibi_slopes(heads), bias.numpy(), rtol=1e-6)


def test_bad_schedules_are_named():
    with pytest.raises(BadOption, match=r" 1\.2 of layer 2: .*\[0, 1\]"):
        require_lambdas([0.1, 1.2])


# The theorems. `t` counts as in the paper: P^(t) = A^(t) ... A^(0) has t + 1 factors.


def bare(n: int, t: int, mask: Mask | None = None, **how) -> np.ndarray:
    """The last row of P^(t): attention alone, no residuals."""
    return Architecture(n, mask or Mask.causal(n), np.ones(t + 1), **how).rollout()


def test_theorem_4_1_causal_attention_collapses_onto_the_first_token_at_its_rate():
    n, epsilon = 12, 1 / 12 - 1e-9  # the least weight is that of the last row, 1 / N
    rows = np.array([bare(n, t) for t in range(200)])
    assert rows[-1][0] == pytest.approx(1) and np.all(np.diff(rows[:, 0]) > -1e-15)
    j, t = np.arange(1, n), np.arange(200)[:, None]
    assert np.all(rows[:, 1:] <= (1 - epsilon) * (1 - j * epsilon) ** t)
    # The matrix is triangular with 1 / i on its diagonal: the second eigenvalue, 1/2, is the exact rate.
    others = rows[:, 1:].sum(axis=1)
    assert others[60] / others[59] == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("width", [2, 3, 6])
def test_theorem_4_2_a_window_only_delays_the_collapse(width):
    n, hops = 11, math.ceil(10 / (width - 1))
    epsilon = (1 - 1e-9) / max(width, n ** (1 / hops))  # below the least weight 1 / w, and N eps^hops < 1
    rows = np.array([bare(n, t, Mask(width)) for t in range(200)])
    assert rows[-1][0] == pytest.approx(1, abs=1e-3)
    j, t = np.arange(1, n), np.arange(200)[:, None]
    bound = (1 - j * epsilon**hops) ** (t / (2 * hops))
    assert np.all(rows[hops:, 1:] <= bound[hops:])
    if width > 2:
        narrower = bare(n, 30, Mask(width - 1))
        assert narrower[0] < rows[30][0] < bare(n, 30)[0]


@pytest.mark.parametrize("prefix", [1, 3])
def test_theorem_4_3_a_prefix_draws_everything_and_each_of_its_tokens_a_share(prefix):
    n, epsilon = 10, 1 / 10 - 1e-9
    rows = np.array([bare(n, t, Mask.with_prefix(n, prefix)) for t in range(150)])
    assert rows[-1][:prefix].sum() == pytest.approx(1)
    assert np.all(rows[:, :prefix] >= 1 / n)
    j, t = np.arange(prefix, n), np.arange(150)[:, None]
    assert np.all(rows[:, prefix:] <= (1 - (j - prefix + 1) * epsilon) ** t)


def test_lemma_4_4_each_attention_map_decays_exponentially():
    n, m, content = 15, 0.4, 0.9
    architecture = Architecture(n, Mask.causal(n), [1.0], np.array([[m]]), diagonal=np.array([[content]]))
    (a,) = matrices(architecture, masks(n, "causal", 0)[1])
    i, j = np.tril_indices(n)
    ratio = (a[i, j] / np.exp(-(i - j) * m))[1:]  # row 1 sees itself alone, which the paper's C_max leaves out
    assert np.all(ratio <= math.exp(content) / (1 + math.exp(-m)))
    assert np.all(ratio >= (1 - math.exp(-m)) * math.exp(-content))


@pytest.mark.parametrize(("m", "t"), [(0.3, 4), (0.5, 9), (1.0, 12)])
def test_theorem_4_5_binomial_times_exponential_with_its_peak(m, t):
    n = 160
    row, r = bare(n, t, slopes=np.array([[m]])), math.exp(-m)
    x = np.arange(100)  # distances that end far from the first token, where every softmax sums to 1 / (1 - r)
    theta = np.array([math.comb(t + d, d) for d in x]) * r**x
    np.testing.assert_allclose(row[::-1][:100], theta * (1 - r) ** (t + 1), rtol=1e-6)
    everywhere = np.array([math.comb(t + d, d) * r**d for d in range(n)])
    ratio = row[::-1] / everywhere
    assert ratio.min() >= (1 - r) ** (t + 1) * (1 - 1e-12) and ratio.max() <= 1
    assert int(np.argmax(row[::-1][:100])) == math.floor(t / math.expm1(m))


def one_plane(t: int, angle: float, strength: float = 1.0) -> dict:
    """RoPE on heads of size 2, as in section 4.3: one plane, which turns by `angle` a token."""
    return {"scores": partial(rotation_scores, angles=[angle], strength=strength)}


def test_lemma_4_6_rope_decays_like_a_gaussian_while_angles_stay_below_pi():
    n, angle, strength = 30, 0.1, 2.0
    row = bare(n, 0, **one_plane(0, angle, strength))[::-1]
    exponent = np.log(row / row[0]) / (np.arange(n) * angle).clip(1e-9) ** 2
    assert np.all(exponent[1:] >= -strength / 2 - 1e-12)  # cos x >= 1 - x^2 / 2
    assert np.all(exponent[1:] <= -strength * 2 / math.pi**2 + 1e-12)  # cos x <= 1 - 2 x^2 / pi^2 up to pi


@pytest.mark.parametrize("t", [1, 3, 8])
def test_theorem_4_7_binomial_times_gaussian(t):
    n, angle, strength = 60, 0.05, 2.0
    row, x = bare(n, t, **one_plane(t, angle, strength))[::-1], np.arange(n)
    (a,) = matrices(
        Architecture(n, Mask.causal(n), [1.0], **one_plane(0, angle, strength)),
        masks(n, "causal", 0)[1],
    )
    # The greatest and least of A_ij over Gaussian are the lemma's constants; t + 1 steps of total length x
    # have squares that sum to between x^2 / (t + 1) and x^2.
    i, j = np.tril_indices(n)
    squared, paths = ((i - j) * angle) ** 2, np.array([math.comb(t + d, d) for d in x])
    least = (a[i, j] / np.exp(-strength / 2 * squared)).min()
    greatest = (a[i, j] / np.exp(-strength * 2 / math.pi**2 * squared)).max()
    squared = (x * angle) ** 2
    assert np.all(row >= least ** (t + 1) * paths * np.exp(-strength / 2 * squared) * (1 - 1e-9))
    assert np.all(row <= greatest ** (t + 1) * paths * np.exp(-strength * 2 / math.pi**2 * squared / (t + 1)))


def test_theorem_4_7_the_peak_moves_back_with_depth_and_near_with_the_angle():
    def peak(t, angle):
        return int(np.argmax(bare(240, t, **one_plane(t, angle, 20.0))[::-1]))

    by_depth, by_angle = [peak(t, 0.012) for t in (0, 4, 8, 12)], [peak(8, a) for a in (0.011, 0.012, 0.013)]
    assert by_depth == sorted(set(by_depth)) and by_depth[0] == 0
    assert by_angle == sorted(set(by_angle), reverse=True)


@pytest.mark.parametrize("encoding", [{}, {"slopes": alibi_slopes(8)[None]}])
def test_residuals_make_a_u_at_finite_depth_and_attention_alone_does_not(encoding):
    n, n_layers = 64, 12
    with_residuals = Architecture(n, Mask.causal(n), [0.2] * n_layers, **encoding).rollout()
    without = Architecture(n, Mask.causal(n), [1.0] * n_layers, **encoding).rollout()
    middle = with_residuals[n // 4 : -n // 4]
    assert with_residuals[0] > 2 * middle.mean() and with_residuals[-1] > 2 * middle.mean()
    assert int(np.argmin(with_residuals)) in range(4, n - 1)
    assert without[-1] < without[0] / 100 and without[-1] == without.min()


def test_rope_scores_are_those_of_rotated_vectors():
    d, theta = 8, 50.0
    q = np.tile([1.0, 0.0], d // 2) / math.sqrt(d // 2)
    base = theta ** (-np.arange(0, d, 2) / d)

    def rotated(v, position):
        z = (v[0::2] + 1j * v[1::2]) * np.exp(1j * position * base)
        return np.stack([z.real, z.imag], axis=1).ravel()

    for i, j in [(5, 2), (2, 5), (40, 0)]:
        assert rotation_scores(i - j, rope_angles(theta, d)) == pytest.approx(rotated(q, i) @ rotated(q, j))
