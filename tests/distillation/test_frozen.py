"""What stands beneath adapters: exactly the base in half of the memory."""

import copy

import pytest
import torch
from by_definition import SHAPE
from transformers import LlamaForCausalLM

from posgap.distillation.footprint import MicroBatchShape, activation_bytes, size_of
from posgap.distillation.frozen import beneath_adapters, keep_in_bfloat16
from posgap.distillation.lora import add_adapters
from posgap.distillation.planning import Way, standing

LAYERS = 7 * SHAPE.num_hidden_layers


@pytest.fixture
def adapted():
    """A model of bfloat16's numbers, in float32, whose adapters add something."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(SHAPE).to(torch.bfloat16).float().eval()
    add_adapters(model, 4)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def read(model, mixed) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits, and the gradient of the adapters."""
    ids = torch.arange(24).view(2, 12)
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        logits = model(input_ids=ids).logits.float()
        logits.logsumexp(-1).sum().backward()
    return logits.detach(), torch.cat([each.grad.flatten() for each in model.parameters() if each.requires_grad])


@pytest.mark.parametrize("mixed", [True, False])
def test_in_bfloat16_the_base_computes_bit_for_bit_what_it_did(mixed, adapted):
    kept = copy.deepcopy(adapted)
    keep_in_bfloat16(kept)
    assert {layer.weight.dtype for module in kept.modules() if (layer := getattr(module, "base_layer", None))} == {
        torch.bfloat16
    }
    for expected, found in zip(read(adapted, mixed), read(kept, mixed)):
        assert torch.equal(expected, found) and found.norm() > 1


def test_weights_that_bfloat16_does_not_hold_stay_as_they_are(adapted):
    (_, first), *_ = beneath_adapters(adapted)
    first.weight.data[0, 0] = 1 + 2**-12
    keep_in_bfloat16(adapted)
    assert [layer for _, layer in beneath_adapters(adapted)] == [first] and first.weight.dtype == torch.float32


# The plan


def test_the_plan_counts_the_base_as_it_is_kept():
    """In bfloat16 nothing is kept that autocast has rounded: two bytes of each weight less while a prompt is read."""
    stored, shape = copy.deepcopy(SHAPE), MicroBatchShape(1, 64, 8, "bfloat16", False, 4)
    stored.dtype = torch.bfloat16
    exact, size = size_of(SHAPE, 4), size_of(stored, 4)
    beneath = SHAPE.num_hidden_layers * (64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 128)
    assert (size.beneath, size.bytes_beneath, exact.bytes_beneath) == (beneath, 2, 4)
    way = Way("alone", False, 4)
    assert standing(way, exact, 1) - standing(way, size, 1) == 2 * beneath
    # Of the first layer's query, key and value no gradient goes on, and so nothing is kept for it.
    assert activation_bytes(SHAPE, shape) - activation_bytes(stored, shape) == 2 * (beneath - 64 * 64 - 2 * 64 * 32)
