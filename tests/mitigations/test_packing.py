"""Packed weights: the same products, and never those of a weight that is no longer the layer's."""

import copy

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from posgap.mitigations.in_force import apply_mitigation, remove_mitigation
from posgap.mitigations.mitigation import ModelMitigation
from posgap.mitigations.registry import MITIGATIONS
from posgap.models import packing
from posgap.models.packing import pack_weights

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch is built without oneDNN")
IDS = torch.arange(1, 41).reshape(4, 10)


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setattr(packing, "MIN_WEIGHTS", 1)
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaForCausalLM(LlamaConfig(vocab_size=50, attention_bias=True, **shape)).eval()


def packed_layers(model) -> list[torch.nn.Module]:
    return [module for module in model.modules() if "forward" in vars(module)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_logits_are_those_of_the_plain_model(model, dtype):
    plain = model.to(dtype)
    ours = copy.deepcopy(plain)
    pack_weights(ours)
    products = dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    assert len(packed_layers(ours)) == (2 * 7 + 1 if products else 0)
    bound = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 0.02, "atol": 0.005}
    torch.testing.assert_close(ours(IDS).logits, plain(IDS).logits, **bound)


def test_nothing_is_packed_for_products_that_the_processor_lacks(model, monkeypatch):
    """oneDNN raises where it cannot multiply in bfloat16."""
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    bfloat16 = copy.deepcopy(model).bfloat16()
    pack_weights(model)
    pack_weights(bfloat16)
    assert packed_layers(model) and not packed_layers(bfloat16)


def test_the_products_are_computed_from_the_packed_weights(model, monkeypatch):
    """Else the tests beside this one would pass with nothing packed."""
    layer = model.lm_head
    pack_weights(model)
    layer.forward.packed = torch.ops.mkldnn._reorder_linear_weight(torch.zeros_like(layer.weight))
    with torch.no_grad():
        assert not model(IDS).logits.any()
    assert model(IDS).logits.all()


def test_every_mitigation_of_a_model_is_put_into_one_whose_weights_are_packed(monkeypatch):
    """`mitigate` packs weights first. Packed products differ by rounding from those that gradients go through, and a
    check to the bit that asked once this way and once that way refused a mitigation on every real model."""
    monkeypatch.setattr(packing, "MIN_WEIGHTS", 1)
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(hidden_size=256, num_hidden_layers=2, num_attention_heads=4)).eval()
    pack_weights(model)
    # As if products of packed weights rounded otherwise on every processor.
    model.lm_head.forward.packed = torch.ops.mkldnn._reorder_linear_weight(1.001 * model.lm_head.weight.detach())
    few = torch.arange(3)[None]
    with torch.no_grad():
        packed = model(few).logits
    assert not packed.equal(model(few).logits)
    for mitigation in MITIGATIONS:
        if isinstance(mitigation, ModelMitigation) and (neutral := mitigation.neutral_settings(model.config)):
            apply_mitigation(model, mitigation.name, neutral)
            remove_mitigation(model, mitigation.name)


def test_a_changed_weight_is_never_multiplied_as_it_was(model):
    pack_weights(model)
    with torch.no_grad():
        before = model(IDS).logits
        model.lm_head.weight.mul_(2)
        torch.testing.assert_close(model(IDS).logits, 2 * before)
        model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))
        assert not model(IDS).logits.any()


def test_gradients_are_those_of_the_plain_model(model):
    ours = copy.deepcopy(model)
    pack_weights(ours)
    for each in (model, ours):
        each(IDS).logits.square().mean().backward()
    for (name, one), other in zip(model.named_parameters(), ours.parameters()):
        assert torch.equal(one.grad, other.grad), name


def test_what_is_saved_is_the_plain_model(model, tmp_path):
    pack_weights(model)
    model.save_pretrained(tmp_path)
    again = LlamaForCausalLM.from_pretrained(tmp_path)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))


def test_copies_take_no_memory_that_is_not_there(model, monkeypatch):
    size = sum(module.weight.nbytes for module in model.modules() if type(module) is torch.nn.Linear)
    monkeypatch.setattr(packing, "available_bytes", lambda: size / packing.SHARE - 1)
    pack_weights(model)
    assert not packed_layers(model)
    monkeypatch.setattr(packing, "available_bytes", lambda: size / packing.SHARE)
    pack_weights(model)
    assert packed_layers(model)


def test_other_kinds_of_layers_are_left_alone(model):
    class Low(torch.nn.Linear):
        pass

    model.lm_head = Low(64, 50, bias=False)
    model.model.layers[0].mlp.down_proj.half()
    wrapped = model.model.layers[1].mlp.down_proj
    wrapped.forward = before = wrapped.forward
    with torch.inference_mode():  # such a weight does not count its changes
        model.model.layers[1].mlp.up_proj.weight = torch.nn.Parameter(torch.zeros(96, 64), requires_grad=False)
    pack_weights(model)
    assert len(packed_layers(model)) == 12 and wrapped.forward is before
