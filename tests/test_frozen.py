"""What stands beneath adapters: exactly the base in half of the memory, or the base in 4 bits."""

import copy
import re
import sys

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file
from test_distill import config, weights  # noqa: F401  # a fixture
from test_planning import SHAPE
from transformers import LlamaForCausalLM

from posgap.distillation import processes
from posgap.distillation.config import DistillConfig
from posgap.distillation.footprint import MicroBatchShape, activation_bytes, size_of
from posgap.distillation.frozen import NF4_BYTES, beneath_adapters, is_in_nf4, keep_in_bfloat16, keep_in_nf4
from posgap.distillation.lora import add_adapters, merged, without_adapters
from posgap.distillation.planning import Way, standing
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_json, read_jsonl
from posgap.mitigations.in_force import load_model
from posgap.stages.distill import distill

LAYERS = 7 * SHAPE.num_hidden_layers


@pytest.fixture
def adapted():
    """A model of bfloat16's numbers, in float32, whose adapters add something."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(SHAPE).to(torch.bfloat16).float().eval()
    add_adapters(model, 4, 8)
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
    rest = list(beneath_adapters(adapted))
    assert [layer for _, layer in rest] == [first] and first.weight.dtype == torch.float32


@pytest.mark.parametrize("mixed", [True, False])
def test_in_4_bits_the_base_computes_with_the_matrices_that_these_stand_for(mixed, adapted):
    in_4_bits, plain = copy.deepcopy(adapted), copy.deepcopy(adapted)
    keep_in_nf4(in_4_bits, torch.device("cpu"))
    packed = [module.base_layer for module in in_4_bits.modules() if hasattr(module, "base_layer")]
    assert len(packed) == LAYERS and is_in_nf4(in_4_bits) and not is_in_nf4(plain)
    for (_, layer), nf4 in zip(list(beneath_adapters(plain)), packed):
        layer.weight.data = nf4.matrix(torch.float32)
        assert nf4.packed.nbytes == layer.weight.numel() / 2
    for expected, found in zip(read(plain, mixed), read(in_4_bits, mixed)):
        assert torch.equal(expected, found)
    exact = read(adapted, mixed)[0]
    assert 0.01 < (exact - found_logits(in_4_bits)).norm() / exact.norm() < 0.3


@torch.no_grad()
def found_logits(model):
    return model(input_ids=torch.arange(24).view(2, 12)).logits


def test_a_base_in_4_bits_is_trained_on_and_its_adapters_merged_into_the_base_itself(config, model_folder, tmp_path):  # noqa: F811
    """By `distill`: the losses fall, and what is written is the base's own weights with what the adapters add."""
    update = {"lora_rank": 4, "learning_rate": 1e-2, "epochs": 4, "lora_base": "nf4", "method": "seqkd"}
    out = distill(config.model_copy(update=update))
    losses = [row["loss"] for _, row in read_jsonl(out / "history.jsonl")]
    assert losses[-1] < losses[0]
    alone = distill(config.model_copy(update=update | {"lora_export": "adapter", "out": tmp_path / "adapter"}))
    base = load_model(str(model_folder), "float32")
    adapters = {
        re.sub(r"(lora_[AB])\.", r"\1.default.", name.removeprefix("base_model.model.")): tensor
        for name, tensor in load_file(alone / "adapter_model.safetensors").items()
    }
    expected = merged(base, adapters, 4, 16).state_dict()
    for name, tensor in weights(out).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-6, atol=1e-7)
    assert read_json(out / "export.json")["kept_update"] == pytest.approx(1)


def test_the_teacher_of_a_base_in_4_bits_is_another(config, tmp_path):  # noqa: F811
    """So its states are not taken from a run with the whole base, though both share a folder."""
    update = {"lora_rank": 4, "epochs": 1, "work": tmp_path / "work"}
    for number, name in enumerate(("auto", "nf4")):
        distill(config.model_copy(update=update | {"lora_base": name, "out": tmp_path / name}))
        assert len(list((tmp_path / "work").glob("teacher-*"))) == number + 1


def test_without_adapters_the_base_is_left(adapted):
    before = found_logits(adapted)
    with without_adapters(adapted):
        alone = found_logits(adapted)
    assert torch.equal(found_logits(adapted), before) and not torch.allclose(alone, before)


@pytest.mark.parametrize(
    ("update", "line"),
    [
        ({"lora_rank": 0}, "all parameters are trained; give a `lora_rank`"),
        ({"deepspeed": "zero2"}, "was tried with whole, eager layers; leave out `deepspeed`, `fsdp` and `compile`"),
        ({"fsdp": True}, "was tried with whole, eager layers"),
        ({"compile": True}, "was tried with whole, eager layers"),
    ],
)
def test_where_4_bits_are_refused(update, line):
    paths = {"examples": "e", "responses": "r", "model": "m", "out": "o"}
    with pytest.raises(ValidationError, match=line):
        DistillConfig(**paths, **{"lora_rank": 4, "lora_base": "nf4"} | update)


@pytest.mark.parametrize("update", [{"lora_rank": 4, "lora_base": "nf4"}, {"optimizer": "adamw8bit"}])
def test_without_bitsandbytes_or_with_a_launcher_of_pieces_a_line_says_so_before_training(update, config, monkeypatch):  # noqa: F811
    monkeypatch.setattr("posgap.stages.distill.load_model", None)
    with monkeypatch.context() as within:
        within.setattr(processes, "in_pieces", lambda accelerator: True)
        with pytest.raises(PosgapError, match="FSDP or DeepSpeed, where lora_base is auto and optimizer adamw"):
            distill(config.model_copy(update=update))
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(PosgapError, match=r"pip install 'posgap.quantized.'"):
        distill(config.model_copy(update=update))


# The plan


def test_the_plan_counts_the_base_as_it_is_kept():
    """In bfloat16 nothing is kept that autocast has rounded: two bytes of each weight less while a prompt is read."""
    stored, shape = copy.deepcopy(SHAPE), MicroBatchShape(1, 64, 8, "bfloat16", False, 4)
    stored.dtype = torch.bfloat16
    exact, size = size_of(SHAPE, 4), size_of(stored, 4)
    beneath = SHAPE.num_hidden_layers * (64 * 64 * 2 + 2 * 64 * 32 + 3 * 64 * 128)
    assert (size.beneath, size.bytes_beneath, exact.bytes_beneath) == (beneath, 2, 4)
    way, in_4_bits = Way("alone", False, 4), Way("alone", False, 4, nf4=True)
    assert standing(way, exact, 1) - standing(way, size, 1) == 2 * beneath
    assert standing(way, exact, 1) - standing(in_4_bits, exact, 1) == pytest.approx(
        (4 - NF4_BYTES) * beneath - 2 * exact.layer
    )
    assert in_4_bits.options() == ["--lora-rank 4", "--lora-base nf4"]
    # Of the first layer's query, key and value no gradient goes on, and so nothing is kept for it.
    assert activation_bytes(SHAPE, shape) - activation_bytes(stored, shape) == 2 * (beneath - 64 * 64 - 2 * 64 * 32)
