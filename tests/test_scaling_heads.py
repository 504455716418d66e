"""Ms-PoE: per-head factors do what layer-wise ones do where heads agree, and heads rank by sensitivity."""

import pytest
import torch
from test_scaling_application import CLOSE, FACTORS, ids, logits, tiny  # noqa: F401  a fixture among them

from posgap.errors import PosgapError
from posgap.models.head_scaling import ms_poe_factors, scale_heads, sensitivity
from posgap.models.in_force import scale_model


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi"])
def test_heads_that_agree_are_a_scaled_layer(family, ids):  # noqa: F811
    per_head = scale_heads(tiny(family), [[factor] * 4 for factor in FACTORS])
    torch.testing.assert_close(logits(per_head, ids), logits(scale_model(tiny(family), FACTORS), ids), **CLOSE)


def test_each_head_has_its_own_factor(ids):  # noqa: F811
    """The output of one layer's attention, head by head, is that of a layer scaled for that head."""
    rows = [[1.0, 1.2, 1.5, 1.8], [1.0] * 4, [1.0] * 4]

    def heads(model):
        seen = []
        attention = model.model.layers[0].self_attn
        attention.o_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0].unflatten(-1, (4, 8))))
        logits(model, ids)
        return seen[0]

    mixed = heads(scale_heads(tiny(), rows))
    for head, factor in enumerate(rows[0]):
        alone = heads(scale_model(tiny(), (factor, 1.0, 1.0)))
        torch.testing.assert_close(mixed[:, :, head], alone[:, :, head], **CLOSE)


def test_cache_and_left_padding_change_nothing(ids):  # noqa: F811
    model = scale_heads(tiny(), [[1.2, 1.8, 1.4, 1.6]] * 3)
    padded = torch.cat([torch.zeros(2, 5, dtype=ids.dtype), ids], 1)
    mask = (torch.arange(29) >= 5).long().expand(2, -1)
    greedy = {"max_new_tokens": 6, "do_sample": False}
    alone = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **greedy)[:, 24:]
    assert torch.equal(model.generate(input_ids=padded, attention_mask=mask, **greedy)[:, 29:], alone)
    again = ids
    for _ in range(6):
        again = torch.cat([again, logits(model, again)[:, -1:].argmax(-1)], 1)
    assert torch.equal(again[:, 24:], alone)


def test_sensitivity_is_the_share_of_tokens_above_three_times_the_mean():
    flat, peaked = torch.full((8,), 1 / 8), torch.tensor([0.51, 0.07, 0.07, 0.07, 0.07, 0.07, 0.07, 0.07])
    assert sensitivity(torch.stack([flat, peaked])).tolist() == [0.0, 0.125]


def test_sensitive_heads_are_scaled_least_and_the_first_layers_not_at_all(ids):  # noqa: F811
    model = tiny()
    factors = ms_poe_factors(model, ids.tolist())
    assert factors[:2] == [[1.0] * 4] * 2
    assert sorted(factors[2]) == pytest.approx([1.2, 1.4, 1.6, 1.8])
    twin = tiny()
    twin.set_attn_implementation("eager")
    with torch.no_grad():
        attention = torch.stack([twin(input_ids=i[None], output_attentions=True).attentions[2][0, :, -1] for i in ids])
    ranked = sensitivity(attention).mean(0)
    by_factor = ranked[torch.tensor(factors[2]).argsort()]
    assert (by_factor.diff() <= 0).all() and by_factor[0] > by_factor[-1]


def test_what_cannot_be_scaled_by_heads_is_refused():
    with pytest.raises(PosgapError, match="must be 3 rows of 4"):
        scale_heads(tiny(), [[1.0] * 4])
    with pytest.raises(PosgapError, match="needs a model with the rotary embedding of Llama"):
        scale_heads(tiny("gemma3_text"), [[1.0] * 4] * 3)
