"""What is done where a machine has FlashAttention-2, by a stand-in: the package itself was never run."""

import pytest
import torch
from flash_attention import stand_in

from posgap.demo import tiny_model
from posgap.models import loading
from posgap.models.loading import load_as_trained, save_model, without_flash_attention


@pytest.fixture
def machine(monkeypatch):
    """One with a GPU and the package, as far as loading asks."""
    monkeypatch.setattr(loading.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(loading, "is_flash_attn_2_available", lambda: True)
    stand_in(monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("model")
    save_model(tiny_model.untrained(0), tiny_model.tokenizer(), made)
    return str(made)


def test_it_is_used_in_16_bits_alone_and_computes_what_sdpa_does(folder, machine, monkeypatch):
    assert load_as_trained(folder, "float32").config._attn_implementation == "sdpa"
    flash = load_as_trained(folder, "bfloat16")
    assert flash.config._attn_implementation == "flash_attention_2"
    monkeypatch.setattr(loading, "is_flash_attn_2_available", lambda: False)
    sdpa = load_as_trained(folder, "bfloat16")
    assert sdpa.config._attn_implementation == "sdpa"
    tokens, mask = torch.randint(3, 40, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[1, :4] = 0  # a shorter prompt, padded in front: its own tokens are found in the batch
    with torch.no_grad():
        there, here = (model(tokens, attention_mask=mask).logits[mask.bool()] for model in (flash, sdpa))
        assert torch.allclose(there, here, atol=0.02) and there.abs().max() > 0.1
        without_flash_attention(flash)
        assert flash.config._attn_implementation == "sdpa"
        assert torch.equal(flash(tokens, attention_mask=mask).logits[mask.bool()], here)


def test_a_model_with_alibi_s_biases_goes_without(folder, machine, tmp_path):
    """Falcon's would refuse them."""
    from transformers import FalconConfig, FalconForCausalLM

    shape = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    for alibi in (True, False):
        model = FalconForCausalLM(FalconConfig(**shape, alibi=alibi))
        save_model(model, tiny_model.tokenizer(), tmp_path / str(alibi))
        loaded = load_as_trained(str(tmp_path / str(alibi)), "bfloat16").config._attn_implementation
        assert (loaded == "flash_attention_2") is not alibi
