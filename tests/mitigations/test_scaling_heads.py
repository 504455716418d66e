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
from posgap.foundation.errors import BadModel, PosgapError
from posgap.mitigations.in_force import apply_mitigation, load_model, remove_mitigation, scale_model
from posgap.mitigations.state import in_force
from posgap.models import CONFIG_KEY
from posgap.models.head_scaling import ms_poe_factors, scale_heads, sensitivity
from posgap.models.loading import save_model
from posgap.scaling.serve_check import serve_check


def with_scaled_heads(model, factors):
    scale_heads(model, factors)
    return model


def of_own_keys(**more):
    """A model in which each query head has a key of its own."""
    return tiny(num_key_value_heads=4, **more)


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi"])
def test_heads_that_agree_are_a_scaled_layer(family, ids):
    per_head = with_scaled_heads(tiny(family), [[factor] * 4 for factor in FACTORS])
    torch.testing.assert_close(logits(per_head, ids), logits(scale_model(tiny(family), FACTORS), ids), **CLOSE)


def test_each_head_has_its_own_factor(ids):
    """The output of one layer's attention, head by head, is that of a layer scaled for that head."""
    rows = [[1.0, 1.2, 1.5, 1.8], [1.0] * 4, [1.0] * 4]

    def heads(model):
        seen = []
        attention = model.model.layers[0].self_attn
        attention.o_proj.register_forward_pre_hook(lambda module, args: seen.append(args[0].unflatten(-1, (4, 8))))
        logits(model, ids)
        return seen[0]

    mixed = heads(with_scaled_heads(of_own_keys(), rows))
    for head, factor in enumerate(rows[0]):
        alone = heads(scale_model(of_own_keys(), (factor, 1.0, 1.0)))
        torch.testing.assert_close(mixed[:, :, head], alone[:, :, head], **CLOSE)


def test_cache_and_left_padding_change_nothing(ids):
    model = with_scaled_heads(of_own_keys(), [[1.2, 1.8, 1.4, 1.6]] * 3)
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


def test_sensitive_heads_are_scaled_least_and_the_first_layers_not_at_all(ids):
    """Ranked by the mean sensitivity, without positions; from `low` to `high`, both included."""
    model, before = of_own_keys(), of_own_keys()
    factors = ms_poe_factors(model, ids.tolist())
    assert torch.equal(logits(model, ids), logits(before, ids))
    assert factors[:2] == [[1.0] * 4] * 2
    assert sorted(factors[2]) == pytest.approx([1.2, 1.4, 1.6, 1.8])
    by_factor = unturned(before, ids, 2).mean(0)[torch.tensor(factors[2]).argsort()]
    assert (by_factor.diff() <= 0).all() and by_factor[0] > by_factor[-1]
    shared = ms_poe_factors(tiny(), ids.tolist())[2]
    assert shared[::2] == shared[1::2] and sorted(shared[::2]) == [1.2, 1.8]


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
    """As if each row's factors, by its own sensitivities, had been given."""
    model, plain = of_own_keys(), of_own_keys()
    # Of layers that are not ranked, nothing changes, so that the last layer's inputs are the plain model's.
    apply_mitigation(model, "ms-poe", {})
    rows = []
    for row, of_heads in zip(ids, unturned(plain, ids, 2)):
        factors = [0.0] * 4
        for head, factor in zip(of_heads.argsort(descending=True, stable=True).tolist(), (1.2, 1.4, 1.6, 1.8)):
            factors[head] = factor
        alone = scale_model(of_own_keys(), [[1.0] * 4] * 2 + [factors])
        rows.append(logits(alone, row[None]))
    torch.testing.assert_close(logits(model, ids), torch.cat(rows), **CLOSE)
    assert not torch.allclose(logits(model, ids), logits(plain, ids))


def test_heads_that_share_a_key_are_ranked_together_where_keys_are(ids):
    """Two key heads have the least and the highest factor, and their cache stays as small as it was."""
    model = tiny()
    apply_mitigation(model, "ms-poe", {})
    row = ids[:1]
    first, second = unturned(tiny(), row, 2)[0].unflatten(-1, (2, 2)).mean(-1)
    factors = [1.2, 1.2, 1.8, 1.8] if first >= second else [1.8, 1.8, 1.2, 1.2]
    alone = scale_model(tiny(), [[1.0] * 4] * 2 + [factors])
    torch.testing.assert_close(logits(model, row), logits(alone, row), **CLOSE)
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
    ("family", "keys", "alike"),
    [
        (family, 4, 1)
        for family in ["gemma2", "gpt_oss", "deepseek_v3", "smollm3", "gpt_neox", "qwen3", "granite", "cohere2", "phi"]
    ]
    + [("llama", 2, 2), ("qwen3", 2, 2)],
)
def test_a_family_with_factors_of_heads_computes_what_brute_force_does(family, keys, alike):
    """Soft-caps, sinks, windows, norms, partly rotated keys and layers without positions stay the family's own."""
    away, without = head_factors.apart(family, keys, alike)
    assert away < 1e-4 and without > 0.3


def test_keys_are_turned_once_and_shared_as_they_were(ids):
    model = tiny()
    scale_model(model, [[1.2, 1.2, 1.8, 1.8], [1.0, 1.0, 1.0, 1.0], [1.5, 1.5, 1.3, 1.3]])
    with torch.no_grad():
        cache = model(input_ids=ids, use_cache=True).past_key_values
        kept = [cache.layers[layer].keys for layer in range(3)]
        assert [keys.shape[1] for keys in kept] == [2, 2, 2]
        before = [keys.clone() for keys in kept]
        model(input_ids=ids[:, :1], past_key_values=cache)
    for layer in range(3):
        assert torch.equal(cache.layers[layer].keys[:, :, :-1], before[layer])
    remove_mitigation(model, "ms-poe-static")
    assert torch.equal(logits(model, ids), logits(tiny(), ids))


def test_a_key_that_all_query_heads_share_stays_one_where_their_factors_are_alike(ids):
    model = families.build_family("falcon")
    scale_heads(model, [[1.0] * 4, [1.5] * 4, [1.2, 1.3, 1.4, 1.5], [1.0] * 4])
    with torch.no_grad():
        cache = model(input_ids=ids, use_cache=True).past_key_values
    assert [cache.layers[layer].keys.shape[1] for layer in range(4)] == [1, 1, 4, 1]


def test_heads_replace_layers_and_layers_replace_heads(ids, tokenizer, tmp_path):
    rows, plain = [[1.2, 1.2, 1.4, 1.4]] * 3, logits(tiny(), ids)
    heads, layers = logits(scale_model(tiny(), rows), ids), logits(scale_model(tiny(), FACTORS), ids)
    model = tiny()
    for factors, wanted in ((rows, heads), (FACTORS, layers), ([1.0] * 3, plain)):
        scale_model(model, factors)
        assert torch.equal(logits(model, ids), wanted) and getattr(model.config, CONFIG_KEY) == list(factors)
    scale_model(model, rows)
    save_model(model, tokenizer, tmp_path / "model")
    loaded = load_model(str(tmp_path / "model"), "stored")
    torch.testing.assert_close(logits(loaded, ids), heads, **CLOSE)
    assert list(in_force(loaded)) == ["ms-poe-static"]
    with pytest.raises(PosgapError, match=r": lpes: .*\(ms-poe-static\)"):
        apply_mitigation(model, "lpes", {"factors": list(FACTORS)})
    assert torch.equal(logits(model, ids), heads)


def test_what_else_a_config_lists_is_applied_beside_its_factors(ids, tokenizer, tmp_path):
    model = scale_model(tiny(), FACTORS)
    apply_mitigation(model, "ms-poe", {"first_layer": 0})
    wanted = logits(model, ids)
    save_model(model, tokenizer, tmp_path / "model")
    loaded = load_model(str(tmp_path / "model"), "stored")
    torch.testing.assert_close(logits(loaded, ids), wanted, **CLOSE)
    assert list(in_force(loaded)) == ["lpes", "ms-poe"]


def test_what_cannot_be_scaled_by_heads_is_refused(ids):
    model = tiny()
    with pytest.raises(BadModel, match=" 3 rows of 4"):
        scale_heads(model, [[1.0] * 4])
    with pytest.raises(BadModel, match=" share a key "):
        scale_heads(model, [[1.0] * 4, [1.0] * 4, [1.2, 1.3, 1.4, 1.5]])
    with pytest.raises(PosgapError, match=" each head, "):
        scale_model(model, [[1.0] * 4, 1.0, 1.0])
    assert torch.equal(logits(model, ids), logits(tiny(), ids))
    complex_tables = families.build_family("deepseek_v2")
    with pytest.raises(BadModel, match=" complex numbers") as refused:
        scale_heads(complex_tables, [[1.0] * 4] * 4)
    assert "\n" not in str(refused.value)
    scale_model(complex_tables, [1.5] * 4)  # nothing is left of it


@pytest.mark.parametrize(
    ("family", "factors"),
    [("llama", [[1.2, 1.8, 1.4, 1.6]] * 4), ("falcon", [1.5] * 4), ("deepseek_v2", [1.5] * 4)],
)
def test_what_a_model_applies_is_read_off_its_tables(family, factors, tokenizer, tmp_path, capsys, monkeypatch):
    save_model(scale_model(families.build_family(family), factors), tokenizer, tmp_path / "model")
    serve_check(tmp_path / "model", "transformers")
    applied = " ".join(f"{factor:.4f}" for factor in factors[3]) if family == "llama" else "1.5000"
    assert f"layer   3  config {applied}  applied {applied}" in capsys.readouterr().out
    monkeypatch.setattr(posgap.mitigations.in_force, "apply_configured", lambda model: model)
    with pytest.raises(BadModel, match=f"^{tmp_path / 'model'}: transformers "):
        serve_check(tmp_path / "model", "transformers")
