"""Self-Extend, against attention computed pair by pair from the distance that each pair is seen at."""

import sys

import pytest
import torch
from conftest import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import families

from posgap.foundation.errors import PosgapError
from posgap.mitigations.in_force import apply

IDS = torch.randint(3, 60, (2, 23), generator=torch.Generator().manual_seed(0))


def pairwise(attention, inv_freq, group: int, window: int):
    """A forward for Llama's attention: the score of query i and key j is that of unrotated vectors, the query turned
    by the distance of the pair, with the positions of Jin et al.'s figure 3."""

    def forward(hidden_states, **_):
        heads = (*hidden_states.shape[:2], -1, attention.head_dim)
        q, k, v = (
            p(hidden_states).view(heads).transpose(1, 2) for p in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        i, j = torch.arange(q.shape[2])[:, None], torch.arange(q.shape[2])
        distance = torch.where(i - j < window, i - j, i // group - j // group + window - window // group)
        angle = distance[..., None] * inv_freq
        a, b = q[:, :, :, None].chunk(2, -1)
        turned = torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)
        scores = (turned * k[:, :, None]).sum(-1) * attention.scaling
        weights = scores.masked_fill(j > i, -torch.inf).softmax(-1)
        out = (weights @ v).transpose(1, 2).flatten(2)
        return attention.o_proj(out), weights

    return forward


@pytest.mark.parametrize("group, window", [(2, 4), (3, 7), (4, 1), (8, 16)])
@torch.inference_mode()
def test_pairs_are_seen_at_grouped_distances_beyond_the_window(group, window):
    model, twin = (families.build("llama", num_key_value_heads=2) for _ in range(2))
    before = model(input_ids=IDS, use_cache=False).logits
    apply(model, "self-extend", {"group": group, "window": window})
    for layer in twin.model.layers:
        layer.self_attn.forward = pairwise(layer.self_attn, twin.model.rotary_emb.inv_freq, group, window)
    grouped = model(input_ids=IDS, use_cache=False).logits
    torch.testing.assert_close(grouped, twin(input_ids=IDS, use_cache=False).logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(grouped[:, :window], before[:, :window], rtol=1e-4, atol=1e-4)
    assert (grouped - before)[:, window + 1 :].abs().max() > 0.1


@torch.inference_mode()
def test_many_tokens_are_read_in_parts_as_at_once(monkeypatch):
    from posgap.mitigations import self_extend

    model = families.build("llama")
    apply(model, "self-extend", {"group": 2, "window": 4})
    at_once = model(input_ids=IDS, use_cache=False).logits
    monkeypatch.setattr(self_extend, "_QUERIES", 5)
    torch.testing.assert_close(model(input_ids=IDS, use_cache=False).logits, at_once)


def test_a_window_as_long_as_the_prompt_changes_nothing_to_the_bit():
    model = families.build("llama")
    with torch.inference_mode():
        before = model(input_ids=IDS, use_cache=False).logits
        apply(model, "self-extend", {"group": 4, "window": 23})
        assert torch.equal(model(input_ids=IDS, use_cache=False).logits, before)


def test_padding_is_refused():
    model = families.build("llama")
    apply(model, "self-extend", {"group": 4, "window": 8})
    mask = torch.ones_like(IDS)
    mask[1, :2] = 0
    with pytest.raises(PosgapError, match="without padding"):
        model(input_ids=IDS, attention_mask=mask)


@pytest.mark.parametrize(
    "family, why",
    [("gemma2", "caps its scores"), ("mistral", "window"), ("bloom", "no separate function"), ("smollm3", "layer 3")],
)
def test_other_attention_is_refused_truly(family, why):
    with pytest.raises(PosgapError, match=why):
        apply(families.build(family), "self-extend", {"group": 2, "window": 4})
