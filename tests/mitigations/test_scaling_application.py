"""RoPE factors on transformers models: what they compute, and what they leave alone."""

import copy
from types import SimpleNamespace

import pytest
import torch
from scaled_llama import CLOSE, FACTORS, logits, tiny
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

import posgap
from posgap.foundation.errors import BadModel
from posgap.foundation.files import read_json, write_json
from posgap.mitigations.in_force import load_model, scale_model
from posgap.models import CONFIG_KEY, MITIGATIONS_KEY
from posgap.models.closing import is_closed, read_config
from posgap.models.factors import is_altered
from posgap.models.layer_scaling import layer_scaling
from posgap.models.loading import load_tokenizer, save_model
from posgap.scaling import vllm_plugin

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi", "phi3")
ROPE_SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "llama3": {
        **{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        "original_max_position_embeddings": 16,
    },
}


@torch.no_grad()
def by_hand(model, ids, factors):
    """A Llama's logits with each layer called by hand on tables for positions divided by its factor."""
    decoder, n = model.model, ids.shape[1]
    hidden, positions = decoder.embed_tokens(ids), torch.arange(n)[None]
    mask = torch.full((n, n), float("-inf"), dtype=hidden.dtype).triu(1)[None, None]
    for layer, factor in zip(decoder.layers, factors):
        tables = decoder.rotary_emb(hidden, positions / factor)
        hidden = layer(hidden, attention_mask=mask, position_embeddings=tables)
    return model.lm_head(decoder.norm(hidden))


def test_each_layer_sees_positions_divided_by_its_factor(ids):
    model = tiny()
    expected = by_hand(model, ids, FACTORS)
    torch.testing.assert_close(logits(scale_model(model, FACTORS), ids), expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_ones_change_no_bit_and_other_factors_do(family, ids):
    model = tiny(family).float()
    before = logits(model, ids)
    assert torch.equal(logits(scale_model(model, [1.0] * 3), ids), before)
    assert not torch.allclose(logits(scale_model(model, FACTORS), ids), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_equal_factor_everywhere_is_position_interpolation(family, ids):
    """Every rotary embedding turns slower by the factor: Gemma 3 has one for local layers and one for global ones."""
    kinds = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 8}
    model, interpolated = (tiny(family, **(kinds if family == "gemma3_text" else {})) for _ in range(2))
    for name, buffer in interpolated.named_buffers():
        if name.endswith("inv_freq"):
            buffer.div_(1.5)
    assert not torch.allclose(logits(model, ids), logits(interpolated, ids), **CLOSE)
    torch.testing.assert_close(logits(scale_model(model, [1.5] * 3), ids), logits(interpolated, ids), **CLOSE)


@pytest.mark.parametrize("kind", ROPE_SCALINGS)
def test_factors_scale_on_top_of_the_model_s_own_rope_scaling(kind, ids):
    """Its frequencies and its attention scaling stay those of the unscaled length."""
    parameters = {"rope_theta": 10000.0, **ROPE_SCALINGS[kind]}
    model = tiny(rope_parameters=parameters, max_position_embeddings=16)
    logits(model, ids)  # 24 tokens: dynamic RoPE grows beyond 16
    twin, own = tiny(max_position_embeddings=16), model.model.rotary_emb
    assert not torch.equal(own.inv_freq, twin.model.rotary_emb.inv_freq)
    twin.model.rotary_emb.inv_freq.copy_(own.inv_freq)
    twin.model.rotary_emb.attention_scaling = own.attention_scaling
    torch.testing.assert_close(logits(scale_model(model, FACTORS), ids), by_hand(twin, ids, FACTORS))


def test_local_and_global_layers_take_their_own_tables(ids):
    model = tiny("gemma3_text", layer_types=["sliding_attention", "full_attention", "sliding_attention"])
    before, rotary = logits(model, ids), copy.deepcopy(model.model.rotary_emb)
    scale_model(model, (1.0, 2.0, 1.0))
    seen = []
    for layer in model.model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(kwargs["position_embeddings"][0]), with_kwargs=True
        )
    scaled = logits(model, ids)
    positions = torch.arange(24)[None]
    for cos, factor, kind in zip(seen, (1.0, 2.0, 1.0), model.config.layer_types):
        torch.testing.assert_close(cos, rotary(cos, positions / factor, kind)[0])
    assert not torch.allclose(scaled, before)


def test_a_copy_of_a_scaled_model_has_factors_of_its_own(ids):
    model = scale_model(tiny(), FACTORS)
    copied = copy.deepcopy(model)
    torch.testing.assert_close(logits(copied, ids), logits(model, ids))
    scale_model(model, [1.0] * len(FACTORS))
    torch.testing.assert_close(logits(copied, ids), logits(scale_model(tiny(), FACTORS), ids))


def test_cache_and_left_padding_change_nothing(ids):
    model = scale_model(tiny(), FACTORS)
    whole = logits(model, ids)
    with torch.no_grad():
        first = model(input_ids=ids[:, :20], use_cache=True)
        steps, cache = [first.logits], first.past_key_values
        for t in range(20, 24):
            step = model(input_ids=ids[:, t : t + 1], past_key_values=cache, use_cache=True)
            steps.append(step.logits)
            cache = step.past_key_values
    torch.testing.assert_close(torch.cat(steps, 1), whole)
    padded = torch.cat([torch.zeros(2, 5, dtype=ids.dtype), ids], 1)
    mask = (torch.arange(29) >= 5).long().expand(2, -1)
    answers = [
        model.generate(input_ids=i, attention_mask=m, max_new_tokens=6, do_sample=False)[:, -6:]
        for i, m in ((ids, torch.ones_like(ids)), (padded, mask))
    ]
    assert torch.equal(*answers)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_implementations_agree(attention, ids):
    model = tiny()
    model.set_attn_implementation(attention)
    torch.testing.assert_close(logits(scale_model(model, FACTORS), ids), by_hand(tiny(), ids, FACTORS), **CLOSE)


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing_gives_the_same_gradients(reentrant, ids):
    def gradients(model):
        # Two forward passes before the backward one: what a layer saw must not be the latest.
        loss = model(input_ids=ids, use_cache=False).logits.square().mean()
        loss = loss + model(input_ids=ids[:, :7], use_cache=False).logits.square().mean()
        loss.backward()
        return [p.grad for p in model.parameters()]

    plain = scale_model(tiny(), FACTORS).train()
    checkpointed = scale_model(tiny(), FACTORS).train()
    checkpointed.gradient_checkpointing_enable({"use_reentrant": reentrant})  # as transformers 5.19 calls it too
    torch.testing.assert_close(gradients(checkpointed), gradients(plain))


def test_rows_of_a_batch_may_have_factors_of_their_own(ids):
    model, candidates = tiny(), [FACTORS, (1.5, 1.0, 1.1)]
    alone = torch.cat([logits(scale_model(model, f), ids[i : i + 1]) for i, f in enumerate(candidates)])
    with layer_scaling(model).factors_by_row(torch.tensor(candidates).T):
        torch.testing.assert_close(logits(model, ids), alone)
    torch.testing.assert_close(logits(model, ids)[1:], alone[1:])


def test_a_copy_has_factors_of_its_own(ids):
    model = scale_model(tiny(), FACTORS)
    twin = copy.deepcopy(model)
    scale_model(model, [1.0] * 3)
    torch.testing.assert_close(logits(twin, ids), by_hand(tiny(), ids, FACTORS))
    torch.testing.assert_close(logits(model, ids), logits(tiny(), ids))


@pytest.mark.parametrize("loader", [AutoModelForCausalLM, AutoConfig, LlamaForCausalLM])
def test_a_saved_model_loads_scaled_and_by_no_other_loader(tmp_path, ids, tokenizer, loader):
    """transformers alone would load it unscaled, without a word."""
    model = scale_model(tiny().float(), FACTORS)
    save_model(model, tokenizer, tmp_path)
    with pytest.raises(Exception, match=r"pip_install_posgap_then_posgap\.load_model"):
        loader.from_pretrained(tmp_path)
    for loaded in (posgap.load_model(str(tmp_path)), load_model(str(tmp_path))):
        assert torch.equal(logits(loaded, ids), logits(model, ids))
        assert getattr(loaded.config, CONFIG_KEY) == list(FACTORS)
    assert load_tokenizer(str(tmp_path))("a b")["input_ids"] == tokenizer("a b")["input_ids"]
    # Saved again it is closed again; and a folder that an older posgap wrote loads as it did.
    save_model(loaded, tokenizer, tmp_path / "again")
    assert is_closed(read_json(tmp_path / "again" / "config.json"))
    write_json(tmp_path / "again" / "config.json", read_config(tmp_path))
    old = AutoModelForCausalLM.from_pretrained(tmp_path / "again").eval()
    assert torch.equal(logits(old, ids), logits(tiny().float(), ids))
    for loaded in (posgap.load_model(str(tmp_path / "again")), posgap.scale_model(old)):
        assert torch.equal(logits(loaded, ids), logits(model, ids))


@pytest.mark.parametrize(
    ("factors", "complaint"),
    [
        ([1.0], "1 RoPE factors .* 3 layers"),
        ([1.0, 0.0, 1.0], "layer 1 .* 0.0;"),
        ([1.0, 1.0, float("nan")], "layer 2 .* nan;"),
        ([1.0, "2", 1.0], "layer 1 .* '2';"),
    ],
)
def test_factors_that_do_not_fit_are_refused(factors, complaint):
    with pytest.raises(BadModel, match=complaint):
        scale_model(tiny(), factors)


def test_dynamic_rope_takes_no_factor_below_one():
    model = tiny(rope_parameters={"rope_theta": 10000.0, **ROPE_SCALINGS["dynamic"]})
    with pytest.raises(BadModel, match=" 0.5 .* 1, "):
        scale_model(model, [1.0, 0.5, 1.0])


def test_a_model_without_rope_is_refused():
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIG_MAPPING["gpt2"](n_layer=2, n_head=2, n_embd=16, vocab_size=60))
    with pytest.raises(BadModel, match="no rotary position embedding"):
        scale_model(model, [1.0, 1.0])


@pytest.mark.parametrize(
    ("named", "altered"),
    [({}, False), ({CONFIG_KEY: [1.5]}, True), ({MITIGATIONS_KEY: [{"name": "ms-poe", "settings": {}}]}, True)],
)
def test_a_config_says_that_without_posgap_the_model_is_another(named, altered):
    assert is_altered(SimpleNamespace(**named)) is altered


def test_vllm_serves_no_model_whose_mitigations_it_cannot_do():
    loaded: list[str] = []
    load = vllm_plugin._wrap_loader(lambda self, vllm_config, model_config: loaded.append("loaded"))
    config = SimpleNamespace(posgap_mitigations=[{"name": "ms-poe", "settings": {}}])
    with pytest.raises(ValueError, match="posgap_mitigations .* ms-poe, "):
        load(None, None, SimpleNamespace(hf_config=config))
    assert not loaded
    load(None, None, SimpleNamespace(hf_config=SimpleNamespace()))
    assert loaded == ["loaded"]


class ByTransformers(torch.nn.Module):
    """What vLLM runs where it has no model of its own for a family: transformers', without its head."""

    def __init__(self, model):
        super().__init__()
        self.model = model.get_decoder()


@pytest.mark.parametrize(
    ("family", "rope"),
    [
        ("gpt_neox", None),
        ("olmo2", None),
        ("llama", {"rope_type": "linear", "factor": 3.0, "rope_theta": 10000.0}),
        ("gemma3_text", None),  # a base for each type of layers
    ],
)
def test_a_model_of_transformers_within_vllm_is_scaled_as_in_transformers(ids, family, rope):
    more = {"rope_parameters": rope} if rope else {}
    expected = scale_model(tiny(family, **more), FACTORS)
    served = ByTransformers(tiny(family, **more))
    assert vllm_plugin.read_factors(served) == [1.0, 1.0, 1.0]
    assert vllm_plugin.scale_served_model(served, FACTORS) == vllm_plugin.read_factors(served) == list(FACTORS)
    with torch.inference_mode():
        ours = served.model(input_ids=ids, use_cache=False).last_hidden_state
        assert torch.equal(ours, expected.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state)


class Rotary(torch.nn.Module):
    """vLLM's rotary embedding, as far as it is scaled."""

    def __init__(self):
        super().__init__()
        self.cos_sin_cache = self._compute_cos_sin_cache().to(torch.bfloat16)

    def _compute_inv_freq(self, base):
        return base ** -(torch.arange(0, 8, 2) / 8)

    def _compute_cos_sin_cache(self):
        angles = torch.arange(32.0)[:, None] * self._compute_inv_freq(10000.0)
        return torch.cat((angles.cos(), angles.sin()), dim=-1)


def served_by_vllm() -> torch.nn.Module:
    """A model of three layers that share one rotary embedding, as vLLM makes it."""
    shared, served = Rotary(), torch.nn.Module()
    served.layers = torch.nn.ModuleList(torch.nn.Module() for _ in FACTORS)
    for layer in served.layers:
        layer.rotary_emb = shared
    return served


def tables(served) -> list[torch.Tensor]:
    return [layer.rotary_emb.cos_sin_cache for layer in served.layers]


def test_a_search_writes_new_factors_into_the_tables_that_vllm_reads():
    """Compiled code and CUDA graphs go on reading where tables were when they were made."""
    served, setter = served_by_vllm(), vllm_plugin.FactorSetter()
    setter.get_model = lambda: served
    load = vllm_plugin._wrap_loader(lambda self, vllm_config, model_config: served)
    told = {"posgap_own_tables": True}
    load(None, None, SimpleNamespace(hf_config=SimpleNamespace(**told), hf_text_config=tiny().config))
    places = [table.data_ptr() for table in tables(served)]
    assert len(set(places)) == 3
    for factors in (FACTORS, (1.0, 2.0, 1.0), (1.0, 1.0, 1.0)):
        setter.set_factors(factors)
        expected = served_by_vllm()
        vllm_plugin.scale_served_model(expected, factors)
        assert all(map(torch.equal, tables(served), tables(expected)))
        assert [table.data_ptr() for table in tables(served)] == places
    assert len({table.data_ptr() for table in tables(expected)}) == 1


def test_a_search_sets_factors_of_a_model_of_transformers_within_vllm(ids):
    served, setter = ByTransformers(tiny("olmo2")), vllm_plugin.FactorSetter()
    setter.get_model = lambda: served
    vllm_plugin.scale_served_model(served, [1.0] * 3, own_tables=True)
    place = served.model.posgap_scaling.factors.data_ptr()
    setter.set_factors(FACTORS)
    assert vllm_plugin.read_factors(served) == list(FACTORS)
    assert served.model.posgap_scaling.factors.data_ptr() == place


def test_factors_of_heads_as_0_1_gave_them_are_refused():
    for scale in (scale_model, lambda model, rows: vllm_plugin.scale_served_model(ByTransformers(model), rows)):
        with pytest.raises(BadModel, match="; apply ms-poe to the original model"):
            scale(tiny(), [[1.0, 1.0, 1.2, 1.2]] * 3)


@pytest.mark.parametrize(
    ("family", "more", "factors", "reason"),
    [
        ("olmo2", {}, FACTORS[:2], " 2 factors, .* 3 layers"),
        ("gpt2", {}, FACTORS, "no rotary position embedding"),
        ("codegen", {"rotary_dim": 4}, FACTORS, "own tables"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}},
            FACTORS,
            " batch",
        ),
    ],
)
def test_a_model_of_transformers_that_vllm_cannot_scale_is_not_served(family, more, factors, reason):
    with pytest.raises(ValueError, match=f"posgap: .*{reason}") as refused:
        vllm_plugin.scale_served_model(ByTransformers(tiny(family, **more)), factors)
    assert "\n" not in str(refused.value)
