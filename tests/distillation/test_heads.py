"""Families whose logits are their head's times a constant, and models that drop out in training."""

import sys

import pytest
import torch
from places import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import families

from posgap.distillation.batches import Batch, TrainingPrompt
from posgap.distillation.dropout import without_dropout
from posgap.distillation.head import Head, require_plain_head
from posgap.distillation.teacher_states import frozen_head

IDS = torch.arange(3, 25)[None]


def batch() -> Batch:
    return Batch([TrainingPrompt(0, (1,))], IDS, torch.arange(15, IDS.shape[1]), IDS[0, -7:], torch.tensor([7]))


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("granite", {"logits_scaling": 8.0}),
        ("granitemoe", {"logits_scaling": 0.25}),
        ("cohere", {"logit_scale": 0.0625}),
        ("cohere2", {"logit_scale": 3.0}),
        ("hyperclovax", {"logits_scaling": 0.125}),
        ("falcon_h1", {"lm_head_multiplier": 0.5}),
        ("gemma2", {"final_logit_softcapping": 2.0}),
        ("recurrent_gemma", {"logits_soft_cap": 2.0}),
        ("llama", {}),
    ],
)
@torch.no_grad()
def test_the_head_gives_the_logits_that_the_model_gives(family, settings):
    model = families.build_family(family, **settings)
    logits = model(input_ids=IDS, use_cache=False).logits[0]
    hidden = model.base_model(input_ids=IDS, use_cache=False).last_hidden_state[0]
    for head in (Head.from_model(model), frozen_head(model, rounded=False)):
        torch.testing.assert_close(head(hidden), logits, rtol=1e-4, atol=1e-4)
    if settings:
        assert not torch.allclose(model.get_output_embeddings()(hidden), logits, rtol=1e-2, atol=1e-2)
    require_plain_head(model, batch())


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("gpt2", {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attn_pdrop": 0.5}),
        ("opt", {"dropout": 0.5, "attention_dropout": 0.5, "layerdrop": 0.5}),
        ("bloom", {"hidden_dropout": 0.5, "attention_dropout": 0.5}),
        ("llama", {"attention_dropout": 0.5}),
        ("phi", {"resid_pdrop": 0.5, "embd_pdrop": 0.5, "attention_dropout": 0.5}),
        ("mixtral", {"router_jitter_noise": 0.5, "attention_dropout": 0.5}),
        ("falcon", {"hidden_dropout": 0.5, "attention_dropout": 0.5}),
    ],
)
@torch.no_grad()
def test_in_training_a_model_computes_what_it_answers_with(family, settings):
    model = families.build_family(family, **settings)
    answering = model(input_ids=IDS, use_cache=False).logits
    model.train()
    assert not torch.allclose(model(input_ids=IDS, use_cache=False).logits, answering, atol=1e-2)
    without_dropout(model)
    torch.testing.assert_close(model(input_ids=IDS, use_cache=False).logits, answering)
    require_plain_head(model, batch())
