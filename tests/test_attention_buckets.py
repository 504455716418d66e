"""Attention Buckets: copies with several bases, against the model run with each base alone."""

import sys

import pytest
import torch
from conftest import ROOT
from transformers import GenerationConfig

sys.path.append(str(ROOT / "benchmarks"))
import families

from posgap.foundation.errors import PosgapError
from posgap.mitigations.attention_buckets import NAME
from posgap.mitigations.in_force import apply, remove
from posgap.mitigations.state import in_force

IDS = torch.tensor([[5, 9, 2, 7, 7, 3, 11, 4, 8, 6, 1, 12], [3, 3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7]])
BASES = [100.0, 1000.0, 10_000.0]


@torch.inference_mode()
def alone(base: float, **more) -> torch.Tensor:
    model = families.build("llama", rope_parameters={"rope_type": "default", "rope_theta": base})
    return model(use_cache=False, **more).logits


def sure(by_base: list[torch.Tensor]) -> torch.Tensor:
    """The authors' rule: softmax over bases of the highest logit, by which logits are averaged."""
    weights = torch.stack([each.max(-1).values for each in by_base]).softmax(0)
    return sum(weight[..., None] * each for weight, each in zip(weights, by_base))


def test_logits_are_those_of_each_base_averaged_by_how_sure_it_is():
    model = families.build("llama")
    apply(model, "attention-buckets", {"bases": BASES})
    mask = torch.ones_like(IDS)
    mask[1, :4] = 0  # padding on the left, with the positions that generation gives
    given = {"input_ids": IDS, "attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp_min(0)}
    with torch.inference_mode():
        mixed = model(use_cache=False, **given).logits
    expected = sure([alone(base, **given) for base in BASES])
    torch.testing.assert_close(mixed[mask.bool()], expected[mask.bool()], rtol=1e-4, atol=1e-4)
    assert (expected - alone(BASES[-1], **given)).abs().max() > 0.1


def test_factors_of_layers_work_within_each_base_in_either_order():
    factors = {"factors": [1.0, 1.5, 2.0, 3.0]}
    given, made = {"input_ids": IDS, "use_cache": False}, []
    for order in (("lpes", "attention-buckets"), ("attention-buckets", "lpes")):
        model = families.build("llama")
        for name in order:
            apply(model, name, factors if name == "lpes" else {"bases": BASES})
        with torch.inference_mode():
            made.append(model(**given).logits)
    by_base = []
    for base in BASES:
        model = families.build("llama", rope_parameters={"rope_type": "default", "rope_theta": base})
        apply(model, "lpes", factors)
        with torch.inference_mode():
            by_base.append(model(**given).logits)
    for each in made:
        torch.testing.assert_close(each, sure(by_base), rtol=1e-4, atol=1e-4)


def test_generation_writes_what_one_pass_says():
    model = families.build("llama")
    model.generation_config = GenerationConfig(pad_token_id=0)
    apply(model, "attention-buckets", {"bases": BASES})
    written = model.generate(input_ids=IDS, attention_mask=torch.ones_like(IDS), max_new_tokens=6, do_sample=False)
    with torch.inference_mode():
        said = model(input_ids=written, use_cache=False).logits.argmax(-1)
    assert torch.equal(written[:, 12:], said[:, 11:-1])


def test_it_is_no_model_to_train():
    model = families.build("llama")
    apply(model, "attention-buckets", {"bases": BASES})
    with pytest.raises(PosgapError, match="no loss"):
        model(input_ids=IDS, labels=IDS)
    remove(model, "attention-buckets")
    assert model(input_ids=IDS, labels=IDS).loss > 0


@pytest.mark.parametrize("other", [("pine", {}), ("self-extend", {"group": 2, "window": 4})])
def test_it_and_what_computes_attention_refuse_one_another_when_applied(other):
    model = families.build("llama")
    buckets = (NAME, {"bases": BASES})
    for (first, settings), second in ((buckets, other), (other, buckets)):
        apply(model, first, settings)
        with pytest.raises(PosgapError, match="remove that first"):
            apply(model, *second)
        assert list(in_force(model)) == [first]
        remove(model, first)


@pytest.mark.parametrize("family", ["gpt2", "falcon, ALiBi", "llama, dynamic RoPE"])
def test_models_without_one_rope_are_refused(family):
    made, settings = families.ROWS[family]
    model = families.build(made, **settings)
    with pytest.raises(PosgapError, match="attention-buckets: (its attention does not|it has no rot|the frequencies)"):
        apply(model, "attention-buckets", {"bases": BASES})
