"""Ms-PoE: each head turns its queries and keys by its own factor, once, and heads rank by sensitivity."""

import sys

import pytest
import torch
from places import ROOT
from scaled_llama import CLOSE, FACTORS, logits, tiny

sys.path.append(str(ROOT / "benchmarks"))
import families
import head_factors

import posgap.mitigations.in_force
from posgap.foundation.errors import BadModel
from posgap.mitigations.in_force import apply_mitigation, load_model, remove_mitigation, scale_model
from posgap.mitigations.state import in_force
from posgap.models.head_scaling import sensitivity
from posgap.models.loading import save_model
from posgap.scaling.serve_check import serve_check


def of_own_keys(**more):
    """A model in which each query head has a key of its own."""
    return tiny(num_key_value_heads=4, **more)


def test_left_padding_changes_nothing(ids):
    model = of_own_keys()
    apply_mitigation(model, "ms-poe", {"first_layer": 0})
    padded = torch.cat([torch.zeros(2, 5, dtype=ids.dtype), ids], 1)
    mask = (torch.arange(29) >= 5).long().expand(2, -1)
    greedy = {"max_new_tokens": 6, "do_sample": False}
    alone = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), **greedy)[:, 24:]
    assert torch.equal(model.generate(input_ids=padded, attention_mask=mask, **greedy)[:, 29:], alone)


def test_sensitivity_is_the_share_of_tokens_above_three_times_the_mean():
    flat, peaked = torch.full((8,), 1 / 8), torch.tensor([0.51, 0.07, 0.07, 0.07, 0.07, 0.07, 0.07, 0.07])
    assert sensitivity(torch.stack([flat, peaked])).tolist() == [0.0, 0.125]


def unturned(model, ids, layer):
    """The sensitivities `[B, H]` of a layer's heads by queries and keys without positions, computed by hand."""
    seen, attention = [], model.model.layers[layer].self_attn
    hook = attention.register_forward_pre_hook(lambda _, args, kw: seen.append(kw["hidden_states"]), with_kwargs=True)
    logits(model, ids)
    hook.remove()
    queries, keys = (
        part(seen[0]).unflatten(-1, (-1, 8)).transpose(1, 2) for part in (attention.q_proj, attention.k_proj)
    )
    keys = keys.repeat_interleave(queries.shape[1] // keys.shape[1], 1)
    weights = (queries[:, :, -1:] @ keys.transpose(2, 3) / 8**0.5)[:, :, 0].softmax(-1)
    return (weights > 3 * weights.mean(-1, keepdim=True)).double().mean(-1)


def test_each_prompt_ranks_the_heads_anew(ids):
    """By its own sensitivities, and as if it were asked alone."""
    model, plain = of_own_keys(), of_own_keys()
    # Of layers that are not ranked, nothing changes, so that the last layer's inputs are the plain model's.
    apply_mitigation(model, "ms-poe", {})
    rows = []
    for row, of_heads in zip(ids, unturned(plain, ids, 2)):
        rows.append(logits(model, row[None]))
        factors = dict(zip(of_heads.argsort(descending=True, stable=True).tolist(), (1.2, 1.4, 1.6, 1.8)))
        wanted = [[1.0] * 4] * 2 + [[factors[head] for head in range(4)]]
        assert head_factors.factors_of(model, 1.2, 1.8) == [pytest.approx(layer) for layer in wanted]
    torch.testing.assert_close(logits(model, ids), torch.cat(rows), **CLOSE)
    assert not torch.allclose(logits(model, ids), logits(plain, ids))


def test_heads_that_share_a_key_are_ranked_together_where_keys_are(ids):
    """Two key heads have the least and the highest factor, and their cache stays as small as it was."""
    model = tiny()
    apply_mitigation(model, "ms-poe", {})
    row = ids[:1]
    first, second = unturned(tiny(), row, 2)[0].unflatten(-1, (2, 2)).mean(-1)
    factors = [1.2, 1.2, 1.8, 1.8] if first >= second else [1.8, 1.8, 1.2, 1.2]
    logits(model, row)
    assert head_factors.factors_of(model, 1.2, 1.8) == [[1.0] * 4] * 2 + [factors]
    with torch.no_grad():
        cache = model(input_ids=row, use_cache=True).past_key_values
    assert [cache.layers[layer].keys.shape[1] for layer in range(3)] == [2, 2, 2]


def test_one_key_for_all_heads_leaves_nothing_to_rank(ids):
    model, plain = tiny(num_key_value_heads=1), logits(tiny(num_key_value_heads=1), ids)
    with pytest.raises(BadModel, match=": ms-poe: .* take linear"):
        apply_mitigation(model, "ms-poe", {})
    assert torch.equal(logits(model, ids), plain)
    apply_mitigation(model, "ms-poe", {"low": 1, "high": 1})
    assert torch.equal(logits(model, ids), plain)
    remove_mitigation(model, "ms-poe")
    assert torch.equal(logits(model, ids), plain)


@pytest.mark.parametrize(
    ("family", "keys"),
    [
        (family, 4)
        for family in ["gemma2", "gpt_oss", "deepseek_v3", "smollm3", "gpt_neox", "qwen3", "granite", "cohere2", "phi"]
    ]
    + [("llama", 2), ("qwen3", 2)],
)
def test_a_family_with_factors_of_heads_computes_what_brute_force_does(family, keys):
    """Soft-caps, sinks, windows, norms, partly rotated keys and layers without positions stay the family's own."""
    away, without = head_factors.apart(family, keys)
    assert away < 1e-4 and without > 0.3


def test_what_else_a_config_lists_is_applied_beside_its_factors(ids, tokenizer, tmp_path):
    model = scale_model(tiny(), FACTORS)
    apply_mitigation(model, "ms-poe", {"first_layer": 0})
    wanted = logits(model, ids)
    save_model(model, tokenizer, tmp_path / "model")
    loaded = load_model(str(tmp_path / "model"), "stored")
    torch.testing.assert_close(logits(loaded, ids), wanted, **CLOSE)
    assert list(in_force(loaded)) == ["lpes", "ms-poe"]


def test_rotary_tables_that_heads_have_in_common_are_refused(ids):
    model = families.build_family("deepseek_v2")
    with pytest.raises(BadModel, match=" complex numbers") as refused:
        apply_mitigation(model, "ms-poe", {})
    assert "\n" not in str(refused.value)
    scale_model(model, [1.5] * 4)  # nothing is left of it


@pytest.mark.parametrize("family", ["falcon", "deepseek_v2"])
def test_what_a_model_applies_is_read_off_its_tables(family, tokenizer, tmp_path, capsys, monkeypatch):
    save_model(scale_model(families.build_family(family), [1.5] * 4), tokenizer, tmp_path / "model")
    serve_check(tmp_path / "model", "transformers")
    assert "layer   3  config 1.5000  applied 1.5000" in capsys.readouterr().out
    monkeypatch.setattr(posgap.mitigations.in_force, "apply_configured", lambda model: model)
    with pytest.raises(BadModel, match=f"^{tmp_path / 'model'}: transformers "):
        serve_check(tmp_path / "model", "transformers")
