"""Native factors: what is in memory, saved, written into config.json, and loaded by plain transformers is the same."""

import json
import sys

import pytest
import torch
from places import ROOT
from transformers import AutoModelForCausalLM

sys.path.append(str(ROOT / "benchmarks"))
import families

from posgap.demo import tiny_model
from posgap.foundation.errors import PosgapError
from posgap.mitigations.applied import copy_with_mitigation
from posgap.mitigations.in_force import apply_mitigation, load_model, model_mitigation, remove_mitigation
from posgap.mitigations.rope_parameters import Factor
from posgap.mitigations.rope_scaling import NTK, YARN, YarnSettings
from posgap.models import NTK_KEY
from posgap.models.loading import context_length, load_config, load_tokenizer, save_model

NATIVE = ["linear", "ntk", "yarn"]
IDS = torch.tensor([[5, 9, 2, 7, 7, 3, 11, 4, 8, 6, 1, 12]])


def logits(model) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=IDS, use_cache=False).logits


def plain(folder) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt_neox"])
def test_plain_transformers_loads_what_is_in_memory(name, family, tmp_path):
    model = families.build_family(family, num_attention_heads=1, num_key_value_heads=1)
    before = logits(model)
    model.save_pretrained(tmp_path / "base")
    apply_mitigation(model, name, {"factor": 2.0})
    changed = logits(model)
    model.save_pretrained(tmp_path / "saved")
    file = tmp_path / "base" / "config.json"
    assert not torch.allclose(changed, before, atol=1e-3)
    assert torch.equal(logits(plain(tmp_path / "saved")), changed)
    mitigation = model_mitigation(name)
    settings = {"factor": 2.0} if name != "yarn" else {"factor": 2.0, "original_max_position_embeddings": 128}
    file.write_text(json.dumps(mitigation.write_config(json.loads(file.read_text()), mitigation.settings(**settings))))
    assert torch.equal(logits(plain(tmp_path / "base")), changed)
    for text in (file.read_text(), (tmp_path / "saved" / "config.json").read_text()):
        assert "posgap" not in text.replace(NTK_KEY, "")  # a note, which nothing needs that serves the model
    remove_mitigation(model, name)
    assert torch.equal(logits(model), before)


def test_linear_is_positions_divided():
    model = families.build_family("llama")
    apply_mitigation(model, "linear", {"factor": 1.5})
    linear = logits(model)
    remove_mitigation(model, "linear")
    apply_mitigation(model, "lpes", {"factors": [1.5] * model.config.num_hidden_layers})
    torch.testing.assert_close(logits(model), linear)


def test_ntk_divides_the_slowest_frequency_and_leaves_the_fastest():
    model = families.build_family("llama")
    own = model.model.rotary_emb.inv_freq.clone()
    apply_mitigation(model, "ntk", {"factor": 3.0})
    ratio = own / model.model.rotary_emb.inv_freq
    assert ratio[0] == 1 and ratio[-1] == pytest.approx(3.0, rel=1e-5) and all(ratio.diff() > 0)


def test_ntk_is_not_put_on_top_of_itself(tokenizer, tmp_path):
    """A larger base is marked beside it, in memory and on disk; other factors still take the place of the first."""
    model = families.build_family("llama")
    plain = model.config.to_dict()
    twice = NTK.write_config(plain, Factor(factor=2.0))
    with pytest.raises(PosgapError, match=r"config.json: ntk: .* 2;"):
        NTK.write_config(twice, Factor(factor=2.0))
    for factor in (4.0, 2.0):
        apply_mitigation(model, "ntk", {"factor": factor})
    save_model(model, tokenizer, tmp_path / "model")
    loaded = load_model(str(tmp_path / "model"), "float32")
    before = logits(loaded)
    assert torch.equal(before, logits(model))
    with pytest.raises(PosgapError, match=": ntk: .* 2;"):
        apply_mitigation(loaded, "ntk", {"factor": 2.0})
    apply_mitigation(loaded, "ntk", {"factor": 1.0})
    assert torch.equal(logits(loaded), before)
    remove_mitigation(model, "ntk")
    assert model.config.rope_parameters == plain["rope_parameters"] and not hasattr(model.config, NTK_KEY)


def test_yarn_is_what_its_paper_says():
    """Equations 10 to 13 and the temperature of equation 15, written out; alpha 1 and beta 32 turns."""
    model = families.build_family("llama", head_dim=64, max_position_embeddings=4096)
    own = model.model.rotary_emb.inv_freq.double()
    apply_mitigation(model, "yarn", {"factor": 4.0})
    rotary = model.model.rotary_emb
    turns = 4096 * own / (2 * torch.pi)
    fast, slow = turns > 40, turns < 0.8
    assert fast.any() and slow.any() and not (fast | slow).all()
    torch.testing.assert_close(rotary.inv_freq[fast].double(), own[fast])
    torch.testing.assert_close(rotary.inv_freq[slow].double(), own[slow] / 4)
    assert rotary.attention_scaling == pytest.approx(0.1 * torch.log(torch.tensor(4.0)).item() + 1)


def test_layers_with_a_window_keep_their_positions():
    model = families.build_family("gemma3_text", layer_types=["sliding_attention", "full_attention"] * 2)
    apply_mitigation(model, "linear", {"factor": 2.0})
    assert model.config.rope_parameters["sliding_attention"]["rope_type"] == "default"
    assert model.config.rope_parameters["full_attention"]["factor"] == 2.0


@pytest.mark.parametrize("old", [{"rope_theta": 5000.0}, {"rope_theta": 5000.0, "rope_scaling": None}])
def test_an_older_config_keeps_its_names(old):
    config = {
        key: value for key, value in families.build_family("llama").config.to_dict().items() if key != "rope_parameters"
    }
    changed = YARN.write_config(config | old, YarnSettings(factor=2.0))
    assert changed["rope_theta"] == 5000.0 and "rope_parameters" not in changed
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 128}
    assert changed["rope_scaling"] == yarn


@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("own", [128, int(1e30), 64])
def test_a_stretched_model_reads_so_much_more(own, family, name, tmp_path):
    """In memory, in the folder and by its tokenizer, unless that one was kept shorter than the model."""
    model, tokenizer = families.build_family(family), tiny_model.tokenizer()
    assert model.config.max_position_embeddings == 128
    tokenizer.model_max_length = own
    save_model(model, tokenizer, tmp_path / "base")
    chosen = model_mitigation(name).settings(factor=1.5)
    copy_with_mitigation(tmp_path / "base", model_mitigation(name), chosen, (), tmp_path / "stretched")
    config, reads = load_config(str(tmp_path / "stretched")), load_tokenizer(str(tmp_path / "stretched"))
    assert config.max_position_embeddings == 192 and reads.model_max_length == {128: 192}.get(own, own)
    assert context_length(config, reads) == min(192, reads.model_max_length)
    apply_mitigation(model, name, {"factor": 1.5})
    assert model.config.max_position_embeddings == 192 and model.config.rope_parameters == config.rope_parameters
    remove_mitigation(model, name)
    assert model.config.max_position_embeddings == 128
    apply_mitigation(model, name, {"factor": 1.0})
    assert model.config.max_position_embeddings == 128


def test_a_length_that_a_rope_is_made_of_stays():
    """Dynamic NTK changes its frequencies beyond `max_position_embeddings`."""
    parameters = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
    model = families.build_family("llama", rope_parameters=parameters)
    apply_mitigation(model, "ntk", {"factor": 2.0})
    assert model.config.max_position_embeddings == 128 and model.config.rope_parameters["rope_theta"] > 20_000


def test_yarn_reads_as_much_as_its_original_length_says():
    model = families.build_family("llama")
    apply_mitigation(model, "yarn", {"factor": 4.0, "original_max_position_embeddings": 48})
    assert model.config.max_position_embeddings == 192
    apply_mitigation(model, "yarn", {"factor": 2.0, "original_max_position_embeddings": 48})
    assert model.config.max_position_embeddings == 128


@pytest.mark.parametrize("family", ["gpt2", "bloom", "falcon, ALiBi", "mamba"])
@pytest.mark.parametrize("name", NATIVE)
def test_models_without_rotary_positions_are_refused(name, family):
    made, settings = families.ROWS[family]
    model = families.build_family(made, **settings)
    before, kept = logits(model), model.config.to_dict()
    with pytest.raises(PosgapError, match=f"{name}: .* rotary "):
        apply_mitigation(model, name, {"factor": 2.0})
    assert torch.equal(logits(model), before) and model.config.to_dict() == kept


def test_a_scaled_rope_is_not_scaled_again_but_its_base_can_be():
    model = families.build_family("llama", rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0})
    before = logits(model)
    for name in ("linear", "yarn"):
        with pytest.raises(PosgapError, match=rf"{name}: .*\(linear\)"):
            apply_mitigation(model, name, {"factor": 2.0})
        assert torch.equal(logits(model), before)
    own = model.model.rotary_emb.inv_freq.clone()
    apply_mitigation(model, "ntk", {"factor": 2.0})
    assert model.model.rotary_emb.inv_freq[0] == own[0] and own[-1] / model.model.rotary_emb.inv_freq[
        -1
    ] == pytest.approx(2.0, rel=1e-5)
