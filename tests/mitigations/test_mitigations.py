"""Every mitigation of a model, in families of models: what changes nothing, what is replaced, taken back and saved."""

import itertools
import sys

import pytest
import torch
from places import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import families

from posgap.foundation.errors import PosgapError
from posgap.mitigations.in_force import apply_mitigation, load_model, remove_mitigation
from posgap.mitigations.mitigation import ModelMitigation, PromptMitigation, ProposalInput
from posgap.mitigations.registry import MITIGATIONS
from posgap.mitigations.state import in_force
from posgap.models import CONFIG_KEY, MITIGATIONS_KEY
from posgap.models.loading import save_model

OF_MODELS = [mitigation.name for mitigation in MITIGATIONS if isinstance(mitigation, ModelMitigation)]
FAMILIES = ["llama", "gemma2"]
IDS = torch.tensor([[5, 9, 2, 7, 7, 3, 11, 4, 8, 6, 1, 12]])
PROMPTS = [IDS[0].tolist(), IDS[0].flip(0).tolist()]
PROMPT = 9  # of the tokens; what follows is the response


def logits(model, ids=IDS) -> torch.Tensor:
    with torch.inference_mode():
        return model(input_ids=ids, use_cache=False).logits


def decoded(model, ids=IDS, prefill=PROMPT) -> torch.Tensor:
    """The same logits by a prefill of some tokens and steps of one."""
    with torch.inference_mode():
        out = model(input_ids=ids[:, :prefill], use_cache=True)
        rows, states = [out.logits], out.past_key_values
        for at in range(prefill, ids.shape[1]):
            out = model(input_ids=ids[:, at : at + 1], past_key_values=states, use_cache=True)
            rows, states = [*rows, out.logits], out.past_key_values
    return torch.cat(rows, dim=1)


def continued(model) -> torch.Tensor:
    """The logits of what follows the prompt, read at once after it."""
    with torch.inference_mode():
        states = model(input_ids=IDS[:, :PROMPT], use_cache=True).past_key_values
        return model(input_ids=IDS[:, PROMPT:], past_key_values=states, use_cache=True).logits


def proposal_input(model) -> ProposalInput:
    """The model, two prompts, and a search that finds factors which rise by layer."""
    rising = [1.0 + layer / 4 for layer in range(model.config.num_hidden_layers)]
    return ProposalInput(model, PROMPTS, search_factors=lambda: [rising])


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    return request.param


@pytest.fixture(params=OF_MODELS)
def case(request, family):
    """A mitigation, a model of a family, and settings that are tried on it; skipped where the family is refused."""
    mitigation, model = MITIGATIONS[request.param], families.build_family(family)
    settings = list(mitigation.propose_settings(proposal_input(model)))
    before = logits(model)
    try:
        apply_mitigation(model, mitigation.name, settings[-1])
    except PosgapError as refused:
        assert torch.equal(logits(model), before) and "\n" not in str(refused) and not in_force(model)
        pytest.skip(str(refused))
    remove_mitigation(model, mitigation.name)
    return mitigation, model, settings


def test_settings_that_mean_nothing_change_nothing_to_the_bit(case):
    mitigation, model, _ = case
    if (neutral := mitigation.neutral_settings(model.config)) is None:
        pytest.skip("none of its settings means nothing")
    before = logits(model)
    apply_mitigation(model, mitigation.name, neutral)
    assert torch.equal(logits(model), before)


def test_prefill_and_decoding_equal_one_pass(case):
    mitigation, model, settings = case
    apply_mitigation(model, mitigation.name, settings[-1])
    wanted = logits(model)
    if mitigation.needs_own_batch:  # it ranks by the last token of the prompt, which one pass does not know
        wanted = torch.cat([logits(model, IDS[:, :PROMPT]), continued(model)], dim=1)
    torch.testing.assert_close(decoded(model), wanted, rtol=1e-4, atol=1e-4)


def test_it_is_applied_replaced_and_taken_back(case):
    mitigation, model, settings = case
    kept = model.config.to_dict()
    before = logits(model)
    apply_mitigation(model, mitigation.name, settings[-1])
    changed = logits(model)
    assert not torch.allclose(changed, before)
    apply_mitigation(model, mitigation.name, settings[-1])
    assert torch.equal(logits(model), changed)
    apply_mitigation(model, mitigation.name, settings[0])
    other = logits(model)
    remove_mitigation(model, mitigation.name)
    assert torch.equal(logits(model), before) and model.config.to_dict() == kept
    apply_mitigation(model, mitigation.name, settings[0])
    assert torch.equal(logits(model), other)


def test_a_saved_model_is_the_one_in_memory(case, tokenizer, tmp_path):
    mitigation, model, settings = case
    apply_mitigation(model, mitigation.name, settings[-1])
    save_model(model, tokenizer, tmp_path / "model")
    torch.testing.assert_close(logits(load_model(str(tmp_path / "model"), "float32")), logits(model))


@pytest.mark.parametrize(
    ("family", "mitigation", "reason"),
    [
        ("gemma3_text", "ntk", ""),  # a base for each type of layers
        ("falcon, ALiBi", "ms-poe", "no rotary position embedding to scale"),  # asked twice
        ("mamba", "ms-poe", "no rotary position embedding to scale"),
        ("phi3", "linear", "its RoPE takes no such rope_parameters: `rope_parameters`'s type field must be one of"),
    ],
)
def test_a_family_has_a_mitigation_or_is_told_truly_why_not(family, mitigation, reason):
    """Cells of the table in docs/mitigations.md."""
    cell = families.Family(family).cell(MITIGATIONS[mitigation])
    assert not cell.failed and bool(cell.refused) == bool(reason) and cell.reason().startswith(reason)


def test_mitigations_are_undone_in_any_order():
    """With each two in force, either is taken back, and what is left is as if the other had been alone."""
    model = families.build_family("llama")
    before, tried, alone = logits(model), {}, {}
    for name in OF_MODELS:
        tried[name] = MITIGATIONS[name].propose_settings(proposal_input(model))[-1]
        apply_mitigation(model, name, tried[name])
        alone[name] = logits(model)
        remove_mitigation(model, name)
    for first, second in itertools.permutations(OF_MODELS, 2):
        apply_mitigation(model, first, tried[first])
        try:
            apply_mitigation(model, second, tried[second])
        except PosgapError:  # these two cannot be in force together
            torch.testing.assert_close(logits(model), alone[first])
            remove_mitigation(model, first)
            continue
        remove_mitigation(model, first)
        torch.testing.assert_close(logits(model), alone[second])
        remove_mitigation(model, second)
        assert torch.equal(logits(model), before) and not hasattr(model.config, MITIGATIONS_KEY)


def test_every_mitigation_says_what_it_is():
    for mitigation in MITIGATIONS:
        assert isinstance(mitigation, ModelMitigation | PromptMitigation)
        assert mitigation.source and mitigation.cost and mitigation.help[0].islower() and mitigation.served_by


def test_factors_of_layers_are_undone_with_their_name_in_the_config():
    model = families.build_family("llama")
    apply_mitigation(model, "lpes", {"factors": [2.0] * model.config.num_hidden_layers})
    assert getattr(model.config, CONFIG_KEY)
    remove_mitigation(model, "lpes")
    assert not hasattr(model.config, CONFIG_KEY)
