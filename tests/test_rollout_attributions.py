"""Value norms and the direct attribution of the answer's logit, against vectors written out one by one."""

import sys

import numpy as np
import pytest
import torch
from conftest import ROOT

from posgap.foundation.errors import PosgapError
from posgap.models.loading import eager_attention
from posgap.rollout import attributions, decoders
from posgap.rollout.attention import MatrixAttention, last_row
from posgap.rollout.documents import Asked
from posgap.rollout.measurement import measure

sys.path.append(str(ROOT / "benchmarks"))
import rollout_families

N, TEXTS = 13, 2


def built(name, **settings):
    """A family's model with random biases, which are zero at first."""
    model = rollout_families.build(name, **settings)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, mean=0.5, std=0.5)
    return model


def ids():
    return torch.randint(3, 60, (TEXTS, N), generator=torch.Generator().manual_seed(1))


def qwen2(layer):
    """Grouped heads; values with a bias."""
    return layer.input_layernorm, layer.self_attn.v_proj, layer.self_attn.o_proj.weight.T, None


def gpt2(layer):
    """Layer norms; one map for queries, keys and values; a bias of the output projection, which is no token's."""
    attn = layer.attn
    return layer.ln_1, lambda x: attn.c_attn(x)[..., 2 * x.shape[-1] :], attn.c_proj.weight, None


def gemma2(layer):
    """What attention makes is normalised before it is added, by gains that begin at one; windows."""
    after = layer.post_attention_layernorm
    return layer.input_layernorm, layer.self_attn.v_proj, layer.self_attn.o_proj.weight.T, 1 + after.weight


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
    """Value norms [L, N, N], not normalised, and each token's part in the answer's logit [L, N], of one text [1, N]:
    every vector that a head of a layer moves from token j to token i is written out."""
    base, seen = model.base_model, {}
    norm = base.ln_f if hasattr(base, "ln_f") else base.norm
    handle = norm.register_forward_pre_hook(lambda module, args: seen.update(last=args[0][0, -1]))
    with eager_attention(model):
        output = model(input_ids=text, output_attentions=True, output_hidden_states=True)
        states = base(input_ids=text)[0][0, -1]
    handle.remove()
    logits = model.get_output_embeddings()(states)
    head = model.get_output_embeddings().weight
    answer = head[logits.argmax()] - head.mean(0)
    if isinstance(norm, torch.nn.LayerNorm):
        straight = norm.weight * answer / seen["last"].var(unbiased=False).sqrt()
        straight = straight - straight.mean()
    else:
        straight = (1 + norm.weight if "Gemma" in type(norm).__name__ else norm.weight) * answer
        straight = straight / seen["last"].square().mean().sqrt()
    norms, given = [], []
    for layer, x, a in zip(base.h if hasattr(base, "h") else base.layers, output.hidden_states, output.attentions):
        before, to_values, projection, gains = parts(layer)
        heads = a.shape[1]
        values = to_values(before(x))[0].reshape(N, -1, projection.shape[0] // heads)
        values = values.repeat_interleave(heads // values.shape[1], dim=1)  # [N, H, d]
        vectors = torch.zeros(N, N, projection.shape[1])
        for h, rows in enumerate(projection.chunk(heads)):
            vectors += a[0, h, :, :, None] * (values[:, h] @ rows)
        norms.append(vectors.norm(dim=-1).double().numpy())
        along = straight
        if gains is not None:
            along = gains * straight / vectors[-1].sum(0).square().mean().sqrt()
        given.append((vectors[-1] @ along).double().numpy())
    return np.array(norms), np.array(given), float(logits.max() - logits.mean())


def test_every_vector_written_out(family, monkeypatch):
    """In blocks of a few queries and of a few tokens' vectors."""
    model, parts = family
    monkeypatch.setattr(decoders, "WEIGHTS_AT_ONCE", TEXTS * 4 * N * 5)
    monkeypatch.setattr(attributions, "AT_ONCE", TEXTS * 4 * 32 * 3)
    spans = ((0, 4), (4, N))
    asked = [Asked(str(text), 1, spans, False) for text in range(TEXTS)]
    measured = measure(model, [ids()], N, np.zeros(4), 0.2, asked, attributions=True)
    strengths = rollout_families.twin(model, "gemma2" if parts is gemma2 else "", ids())[1]
    with torch.no_grad():
        for text in range(TEXTS):
            norms, given, answer = twin(model, parts, ids()[text : text + 1])
            layers = [MatrixAttention(each / each.sum(1, keepdims=True)) for each in norms]
            expected = last_row(N, layers, strengths[:, text].mean(-1))
            np.testing.assert_allclose(measured.influence["value_norm"][text], expected, rtol=2e-3)
            whole = np.abs(given.sum(0))
            np.testing.assert_allclose(measured.influence["logit"][text], whole / whole.sum(), rtol=2e-3, atol=1e-5)
            greatest = np.abs(given).max()
            np.testing.assert_allclose(measured.logit[text], given.sum(1), rtol=2e-3, atol=1e-4 * greatest)
            by_document = np.stack([given[:, first:after].sum(1) for first, after in spans], axis=1)
            np.testing.assert_allclose(measured.documents_logit[text], by_document, rtol=2e-3, atol=1e-4 * greatest)
            assert measured.answer_logit[text] == pytest.approx(answer, rel=1e-3)
    assert not np.allclose(measured.influence["value_norm"], measured.influence["rollout"], rtol=0.05)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bloom", "BloomForCausalLM: its attention cannot be replaced, so that its values cannot be read"),
        ("afmoe", "AfmoeForCausalLM, layer 4: its attention writes something else .*has a gate.*leave out `attrib"),
        ("doge, stream scaled", "DogeForCausalLM, layer 4: what its attention writes does not reach the last states"),
        ("openai-gpt", "its logits are not an output embedding of normalised states"),
    ],
)
def test_where_attributions_would_be_another_model_s_they_are_refused(name, said):
    family, settings = rollout_families.TABLE[name]
    model = rollout_families.build(family, **settings)
    if family == "doge":  # with all else as it is, only the stream that the attention is added to
        torch.nn.init.uniform_(model.model.layers[3].input_residual, 0.2, 2.0)
    with pytest.raises(PosgapError, match=said):
        measure(model, [ids()], N, np.zeros(4), 0.2, attributions=True)
