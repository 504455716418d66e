"""Attention calibration: relevance without the bias of places, and attention shared out by it."""

import sys

import pytest
import torch
from conftest import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import families

from posgap.foundation.errors import PosgapError
from posgap.mitigations.calibration import CALIBRATION, TEMPERATURES
from posgap.mitigations.in_force import apply
from posgap.mitigations.mitigation import TriedOn
from posgap.models.layout import during_forward

IDS = torch.tensor([[5, 9, 2, 7, 7, 3, 11, 4, 8, 6, 1, 12]])
SPANS, DUMMY = [(1, 3), (3, 6), (7, 10)], 20
SETTINGS = {"temperature": 0.01, "last_layers": 1, "dummy": DUMMY}


@torch.inference_mode()
def attentions(model, ids) -> torch.Tensor:
    """The attention `[L, H, S, S]` of a prompt."""
    return torch.cat(model(input_ids=ids, output_attentions=True).attentions)


def per_token(weights: torch.Tensor) -> torch.Tensor:
    return torch.stack([weights[..., start:end].mean(-1) for start, end in SPANS], dim=-1)


def relevance(model) -> torch.Tensor:
    """Equations 2 to 5, a document at a time."""
    own = per_token(attentions(model, IDS)[:, :, -1]).mean((0, 1))
    found = []
    for document, (start, end) in enumerate(SPANS):
        ids = IDS.clone()
        ids[:, start:end] = DUMMY
        found.append(own[document] - per_token(attentions(model, ids)[:, :, -1]).mean((0, 1))[document])
    return torch.stack(found)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_attention_is_shared_out_as_the_paper_writes_it(implementation):
    model = families.build("llama", num_key_value_heads=2)
    model.set_attn_implementation("eager")
    shares = (relevance(model) / SETTINGS["temperature"]).softmax(-1)
    weights = attentions(model, IDS)[-1]  # [H, S, S]
    model.set_attn_implementation(implementation)
    layer = model.model.layers[-1].self_attn
    caught: list[tuple[torch.Tensor, torch.Tensor]] = []
    layer.register_forward_hook(lambda _, a, k, o: caught.append((k["hidden_states"][0], o[0][0])), with_kwargs=True)
    with torch.inference_mode(), during_forward(model, SPANS):
        model(input_ids=IDS)
        apply(model, "calibration", SETTINGS)
        model(input_ids=IDS)
        (_, before), *_, (states, after) = caught
        # Documents get in proportion to the shares, a token, and in all as much as they had.
        new = weights[:, -1].clone()
        in_all = sum(new[:, start:end].sum(-1) for start, end in SPANS)
        size = sum(share * (end - start) for share, (start, end) in zip(shares, SPANS))
        for share, (start, end) in zip(shares, SPANS):
            among = new[:, start:end] / new[:, start:end].sum(-1, keepdim=True)
            new[:, start:end] = among * (in_all * share * (end - start) / size)[:, None]
        torch.testing.assert_close(new.sum(-1), torch.ones(4))
        value = layer.v_proj(states).view(12, 2, -1).transpose(0, 1).repeat_interleave(2, 0)
        wanted = layer.o_proj((new[:, None] @ value)[:, 0].flatten())
    torch.testing.assert_close(after[-1], wanted, rtol=1e-4, atol=1e-4)
    assert (after[-1] - before[-1]).abs().max() > 0.01
    assert torch.equal(after[:-1], before[:-1])


def test_only_the_last_layers_and_what_is_answered_change():
    model = families.build("llama")
    with torch.inference_mode(), during_forward(model, SPANS, 11):
        before = model(input_ids=IDS, output_hidden_states=True)
        apply(model, "calibration", {**SETTINGS, "last_layers": 2})
        after = model(input_ids=IDS, output_hidden_states=True)
    assert torch.equal(after.logits[:, :10], before.logits[:, :10])
    changed = [not torch.equal(a, b) for a, b in zip(after.hidden_states[1:], before.hidden_states[1:])]
    assert changed == [False, False, True, True]
    assert all((after.logits[:, row] - before.logits[:, row]).abs().max() > 0.01 for row in (10, 11))


@pytest.mark.parametrize("spans", [[], [(1, 6)]])
def test_with_one_document_it_is_the_model_itself(spans):
    model = families.build("llama")
    with torch.inference_mode(), during_forward(model, spans):
        before = model(input_ids=IDS).logits
        apply(model, "calibration", SETTINGS)
        assert torch.equal(model(input_ids=IDS).logits, before)


def test_each_prompt_has_shares_of_its_own():
    model, other = families.build("llama"), IDS.flip(1)
    apply(model, "calibration", SETTINGS)
    with torch.inference_mode(), during_forward(model, SPANS):
        alone = model(input_ids=other).logits
        model(input_ids=IDS)
        assert torch.equal(model(input_ids=other).logits, alone)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [({**SETTINGS, "last_layers": 5}, "it has 4 layers, not 5"), ({**SETTINGS, "dummy": 64}, "has no token 64")],
)
def test_what_the_model_has_not_is_refused(settings, reason):
    with pytest.raises(PosgapError, match=reason):
        apply(families.build("llama"), "calibration", settings)


def test_a_prompt_is_read_whole_and_alone():
    model = families.build("llama")
    apply(model, "calibration", SETTINGS)
    with torch.inference_mode(), during_forward(model, SPANS, 12):
        with pytest.raises(PosgapError, match="each in a batch of its own"):
            model(input_ids=IDS.repeat(2, 1))
        with pytest.raises(PosgapError, match="read in pieces"):
            model(input_ids=IDS[:, :11])


def test_two_mitigations_that_compute_attention_are_not_in_force_together():
    model = families.build("llama")
    apply(model, "calibration", SETTINGS)
    with pytest.raises(PosgapError, match="another mitigation computes its attention already"):
        apply(model, "pine", {})


def test_the_last_half_of_the_layers_and_the_most_frequent_token_are_tried():
    tried = CALIBRATION.tried(TriedOn(families.build("llama"), [[4, 5, 5], [6, 5, 4]]))
    assert [each.temperature for each in tried] == list(TEMPERATURES)
    assert {(each.last_layers, each.dummy) for each in tried} == {(2, 5)}
