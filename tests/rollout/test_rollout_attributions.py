"""Value norms, against vectors written out one by one, and the rollout by gradients, against autograd's."""

import re
import sys

import numpy as np
import pytest
import torch
from places import ROOT

from posgap.models.loading import eager_attention
from posgap.rollout import attributions, decoders
from posgap.rollout.attention import last_row
from posgap.rollout.measurement import INFLUENCES, measure_influence

sys.path.append(str(ROOT / "benchmarks"))
import families

N, TEXTS = 13, 2


def built(name, **settings):
    """A family's model with random biases, which are zero at first."""
    model = families.build_family(name, **settings)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.5)
    return model


def ids():
    return torch.randint(3, 60, (TEXTS, N), generator=torch.Generator().manual_seed(1))


def qwen2(layer):
    """Grouped heads; values with a bias."""
    return layer.input_layernorm, layer.self_attn.v_proj, layer.self_attn.o_proj.weight.T


def gpt2(layer):
    """Layer norms; one map for queries, keys and values; a bias of the output projection, which is no token's."""
    attn = layer.attn
    return layer.ln_1, lambda x: attn.c_attn(x)[..., 2 * x.shape[-1] :], attn.c_proj.weight


def gemma2(layer):
    """What attention makes is normalised before it is added; windows."""
    return layer.input_layernorm, layer.self_attn.v_proj, layer.self_attn.o_proj.weight.T


FAMILIES = {
    "qwen2": (qwen2, {"num_key_value_heads": 2}),
    "gpt2": (gpt2, {}),
    "gemma2": (gemma2, {"num_key_value_heads": 2}),
}


@pytest.fixture(params=FAMILIES)
def family(request):
    parts, settings = FAMILIES[request.param]
    return built(request.param, **settings), parts


def twin(model, parts, text):
    """Value norms [L, N, N], not normalised, of one text [1, N]: every vector that a head of a layer moves from token j
    to token i is written out."""
    base = model.base_model
    with eager_attention(model):
        output = model(input_ids=text, output_attentions=True, output_hidden_states=True)
    norms = []
    for layer, x, a in zip(base.h if hasattr(base, "h") else base.layers, output.hidden_states, output.attentions):
        before, to_values, projection = parts(layer)
        heads = a.shape[1]
        values = to_values(before(x))[0].reshape(N, -1, projection.shape[0] // heads)
        values = values.repeat_interleave(heads // values.shape[1], dim=1)  # [N, H, d]
        vectors = torch.zeros(N, N, projection.shape[1])
        for h, rows in enumerate(projection.chunk(heads)):
            vectors += a[0, h, :, :, None] * (values[:, h] @ rows)
        norms.append(vectors.norm(dim=-1).double().numpy())
    return np.array(norms)


def test_every_vector_written_out(family, monkeypatch):
    """In blocks of a few queries and of a few tokens' vectors."""
    model, parts = family
    monkeypatch.setattr(decoders, "WEIGHTS_AT_ONCE", TEXTS * 4 * N * 5)
    monkeypatch.setattr(attributions, "AT_ONCE", TEXTS * 4 * 32 * 3)
    measured = measure_influence(model, [ids()], N, np.zeros(4), 0.2)
    strengths = families.twin(model, "gemma2" if parts is gemma2 else "", ids())[1]
    with torch.no_grad():
        for text in range(TEXTS):
            norms = twin(model, parts, ids()[text : text + 1])
            layers = [families.MatrixAttention(each / each.sum(1, keepdims=True)) for each in norms]
            expected = last_row(N, layers, strengths[:, text].mean(-1))
            np.testing.assert_allclose(measured.influence["value_norm"][text], expected, rtol=2e-3)
    assert not np.allclose(measured.influence["value_norm"], measured.influence["rollout"], rtol=0.05)


def test_gradients_of_every_attention_weight(family, monkeypatch):
    """The product of the matrices I + mean_h max(0, G a) with gradients by autograd, in blocks of a few queries."""
    model, _ = family
    monkeypatch.setattr(decoders, "WEIGHTS_AT_ONCE", TEXTS * 4 * N * 5)
    measured = measure_influence(model, [ids()], N, np.zeros(4), 0.2)
    model.requires_grad_()
    for text in range(TEXTS):
        with eager_attention(model):
            output = model(input_ids=ids()[text : text + 1], output_attentions=True)
        most_probable = output.logits[0, -1].log_softmax(-1).max()
        gradients = torch.autograd.grad(most_probable, output.attentions)
        product = torch.eye(N, dtype=torch.float64)
        for a, gradient in zip(output.attentions, gradients):
            product = (torch.eye(N) + (a * gradient)[0].clamp(min=0).mean(dim=0)).double() @ product
        expected = product[-1].detach().numpy() - np.eye(N)[-1]
        np.testing.assert_allclose(
            measured.influence["gradient_rollout"][text], expected / expected.sum(), rtol=2e-3, atol=1e-7
        )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bloom", "BloomForCausalLM: its attention cannot be replaced, so its values cannot be read"),
        (
            "afmoe",
            "AfmoeForCausalLM, layer 4: its attention's output is not its weights times its values .*it has a gate",
        ),
    ],
)
def test_where_value_norms_would_be_another_model_s_they_are_left_out(name, said):
    family, settings = families.MEASURED[name]
    model = families.build_family(family, **settings)
    measured = measure_influence(model, [ids()], N, np.zeros(4), 0.2)
    assert re.match(said, measured.no_value_norm) and set(measured.influence) == set(INFLUENCES)
    assert measured.statistics["lambdas"].max() < 1  # the try beforehand is not counted
