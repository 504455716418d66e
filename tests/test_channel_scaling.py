"""Scaling of a positional channel: what it changes and what not, in every way that families make queries and keys."""

import sys

import pytest
import torch
from conftest import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import families

from posgap.foundation.errors import PosgapError
from posgap.mitigations.channel_scaling import CHANNEL_SCALING, middle_layers, positional_channels
from posgap.mitigations.in_force import apply, remove
from posgap.mitigations.mitigation import TriedOn
from posgap.models.layout import during_forward

IDS = torch.tensor([[5, 9, 2, 7, 7, 3, 11, 4, 8, 6, 1, 12]])
FLIPPED = {"channel": 3, "factor": -1.0, "layers": [1, 2]}


@torch.inference_mode()
def logits(model, ids=IDS, **more) -> torch.Tensor:
    return model(input_ids=ids, use_cache=False, **more).logits


@torch.inference_mode()
def decoded(model, prompt: int) -> torch.Tensor:
    out = model(input_ids=IDS[:, :prompt], use_cache=True)
    rows = [out.logits]
    for at in range(prompt, IDS.shape[1]):
        out = model(input_ids=IDS[:, at : at + 1], past_key_values=out.past_key_values, use_cache=True)
        rows.append(out.logits)
    return torch.cat(rows, dim=1)


@pytest.mark.parametrize("family", ["qwen3", "falcon", "falcon, ALiBi", "bloom", "mpt", "gpt_neox"])
def test_only_the_attention_of_what_is_answered_changes(family):
    name, settings = families.ROWS[family]
    model = families.build(name, **settings)
    before, alone = logits(model), logits(model, IDS[:, :1])
    apply(model, "channel-scaling", FLIPPED)
    after = logits(model)
    assert torch.equal(after[:, :-1], before[:, :-1])
    assert (after[:, -1] - before[:, -1]).abs().max() > 0.01
    # Of one token all attention falls on itself, so that queries and keys do not matter: values are as they were.
    torch.testing.assert_close(logits(model, IDS[:, :1]), alone, rtol=1e-5, atol=1e-5)
    with during_forward(model, length=7):
        torch.testing.assert_close(decoded(model, 7), logits(model), rtol=1e-4, atol=1e-4)
        assert torch.equal(logits(model)[:, :6], before[:, :6])
    remove(model, "channel-scaling")
    assert torch.equal(logits(model), before)


def test_rows_of_a_padded_batch_are_as_alone():
    model = families.build("llama")
    apply(model, "channel-scaling", FLIPPED)
    ids = torch.cat([IDS, torch.cat([torch.zeros(1, 5, dtype=torch.long), IDS[:, 3:10]], dim=1)])
    mask = (torch.arange(12) >= torch.tensor([[0], [5]])).long()
    positions = (mask.cumsum(1) - 1).clamp_min(0)
    both = logits(model, ids, attention_mask=mask, position_ids=positions)[:, -1]
    torch.testing.assert_close(both[:1], logits(model)[:, -1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(both[1:], logits(model, IDS[:, 3:10])[:, -1], rtol=1e-4, atol=1e-4)


def test_the_last_token_attends_as_the_paper_writes_it():
    """Section 3.3: scaled query and keys, values as they are, of the states that the attention reads."""
    model = families.build("llama", num_key_value_heads=2)
    apply(model, "channel-scaling", {**FLIPPED, "layers": [2]})
    attention = model.model.layers[2].self_attn
    states = torch.randn(1, 6, model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    cos, sin = model.model.rotary_emb(states, torch.arange(6)[None])
    scaled = states.clone()
    scaled[..., 3] *= -1.0

    def heads(projected: torch.Tensor) -> torch.Tensor:
        return projected.view(6, -1, attention.head_dim).transpose(0, 1)

    def turned(x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return x * cos[0] + torch.cat([-x[..., half:], x[..., :half]], -1) * sin[0]

    with torch.inference_mode():
        out, _ = attention(states, position_embeddings=(cos, sin))
        query, key = turned(heads(attention.q_proj(scaled))), turned(heads(attention.k_proj(scaled)))
        value = heads(states @ attention.v_proj.weight.T)
        weights = (query[:, -1:] @ key.repeat_interleave(2, 0).transpose(1, 2) * attention.scaling).softmax(-1)
        wanted = attention.o_proj((weights @ value.repeat_interleave(2, 0)).transpose(0, 1).flatten())
    torch.testing.assert_close(out[0, -1], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({**FLIPPED, "channel": 32}, "hidden states have 32 channels, none is 32"),
        ({**FLIPPED, "layers": [1, 4]}, "there are 4 layers, counted from 0, none 4"),
    ],
)
def test_what_the_model_has_not_is_refused(settings, reason):
    with pytest.raises(PosgapError, match=reason):
        apply(families.build("llama"), "channel-scaling", settings)


def test_a_family_whose_projections_are_not_known_is_refused():
    with pytest.raises(PosgapError, match="Phi3DecoderLayer has no attention that makes queries, keys and values"):
        apply(families.build("phi3"), "channel-scaling", FLIPPED)


def test_a_prompt_in_pieces_is_refused():
    model = families.build("llama")
    apply(model, "channel-scaling", FLIPPED)
    with torch.inference_mode(), during_forward(model, length=8):
        cached = model(input_ids=IDS[:, :4], use_cache=True).past_key_values
        with pytest.raises(PosgapError, match="read in pieces"):
            model(input_ids=IDS[:, 4:8], past_key_values=cached)


def test_positional_channels_are_the_monotone_ones_the_smoothest_first():
    place, draw = torch.linspace(0, 1, 400), torch.Generator().manual_seed(0)
    states = torch.sin(9 * place)[:, None] + 0.1 * torch.randn(8, 400, 6, generator=draw)  # rises and falls
    states[..., 1] = 5 * place + 0.2 * torch.randn(8, 400, generator=draw)
    states[..., 4] = -3 * place.sqrt()
    states[3:5, :, 2] = place  # in a quarter of the layers, which is not enough
    assert positional_channels(states, 2) == [4, 1]
    assert positional_channels(states, 3) == [4, 1, 2]


def test_the_middle_layers_are_those_of_the_paper():
    assert middle_layers(32) == tuple(range(10, 26)) and middle_layers(28) == tuple(range(9, 23))
    assert middle_layers(1) == (0,)


def test_candidates_are_measured_on_the_model():
    model = families.build("llama")
    tried = CHANNEL_SCALING.tried(TriedOn(model, [list(range(3, 43)), list(range(43, 3, -1))]))
    assert len({each.channel for each in tried}) == 3 and {each.factor for each in tried} == {0.5, 0.0, -0.5, -1.0}
    assert len(tried) == 12 and {each.layers for each in tried} == {middle_layers(4)}
