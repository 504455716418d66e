"""Gates of heads: the gradient by them, what they change and in whom; and the advice that is made of them."""

import sys

import numpy as np
import pytest
import torch
from conftest import ROOT, kv_example
from safetensors.torch import load_file, save_file

sys.path.append(str(ROOT / "benchmarks"))
import families

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_json
from posgap.generation.setup import prompt_builder
from posgap.measurement import statistics
from posgap.measurement.probe import Probe
from posgap.mitigating.config import ApplyConfig
from posgap.mitigations.applied import multiply
from posgap.mitigations.head_gates import Answered, answered, flattening, head_effects, turned
from posgap.mitigations.in_force import apply, load_model, remove
from posgap.mitigations.mitigation import TriedOn
from posgap.mitigations.registry import MITIGATIONS
from posgap.mitigations.state import in_force
from posgap.rollout.advice import (
    Advised,
    Checked,
    Effect,
    agreement,
    changes,
    first_pull,
    predicted,
    summary_text,
    to_check,
)
from posgap.rollout.config import RolloutAdviseConfig
from posgap.scaling.forcing import Tried
from posgap.scaling.questions import ask
from posgap.stages.apply import apply as apply_stage
from posgap.stages.rollout_advise import _checked, rollout_advise
from posgap.tasks.placements import Placement
from posgap.tasks.reading import write_examples

QUESTIONS = [([5, 9, 2, 7], [7, 3]), ([5, 9, 2, 8], [1, 4]), ([5, 9, 6], [2])]


def built(family):
    return families.build(family).double()


def shape(model):
    config = model.config.get_text_config()
    return config.num_hidden_layers, config.num_attention_heads


def with_gate(model, layer, head, gate):
    n_layers, n_heads = shape(model)
    gates = np.ones((n_layers, n_heads))
    gates[layer, head] = gate
    apply(model, "head-gates", {"gates": gates.tolist()})
    try:
        return answered(model, QUESTIONS).log_probability
    finally:
        remove(model, "head-gates")


@pytest.mark.parametrize("family", ["qwen3", "gpt2", "falcon", "youtu", "bloom"])
def test_the_gradient_is_what_a_small_turn_of_each_gate_does(family):
    model = built(family)
    effects, small = head_effects(model, QUESTIONS), 1e-4
    np.testing.assert_allclose(effects.log_probability, answered(model, QUESTIONS).log_probability, rtol=1e-6)
    for layer, head in [(0, 0), (1, shape(model)[1] - 1)]:
        up, down = (with_gate(model, layer, head, 1 + each) for each in (small, -small))
        np.testing.assert_allclose(effects.by_gate[:, layer, head], (up - down) / (2 * small), rtol=2e-2, atol=2e-4)


def test_a_gate_of_nothing_takes_a_head_s_columns_out_of_the_projection():
    model = built("llama")
    closed = with_gate(model, 1, 2, 0.0)
    weight = model.model.layers[1].self_attn.o_proj.weight
    size = weight.shape[1] // shape(model)[1]
    with torch.no_grad():
        weight[:, 2 * size : 3 * size] = 0
    np.testing.assert_allclose(answered(model, QUESTIONS).log_probability, closed, rtol=1e-6)


@pytest.mark.parametrize("family", ["llama", "gpt2", "youtu"])
def test_gates_in_the_weights_are_gates_in_force(family, tmp_path):
    """With biases, which are no head's; with projections of either layout; and values narrower than keys."""
    model = families.build(family)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(generator=torch.Generator().manual_seed(1))
    model.save_pretrained(tmp_path / "m")
    model = load_model(str(tmp_path / "m"))
    gates = np.random.default_rng(0).choice([0, 0.5, 1, 2], shape(model)).tolist()  # whose products are exact
    asked = {"model": str(tmp_path / "m"), "mitigation": "head-gates", "mitigation_settings": {"gates": gates}}
    out = apply_stage(ApplyConfig(**asked, in_weights=True, out=tmp_path / "out"))
    written = load_model(str(out))
    assert not in_force(written)
    assert (out / "config.json").read_bytes() == (tmp_path / "m" / "config.json").read_bytes()
    ids = torch.randint(3, 40, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        plain, again = model(ids).logits, written(ids).logits
        apply(model, "head-gates", {"gates": gates})
        gated = model(ids).logits
    assert torch.equal(again, gated) and float((plain - gated).norm()) > 1e-3 * float(gated.norm())
    changed = {name for name, each in model.named_parameters() if not torch.equal(each, written.get_parameter(name))}
    assert len(changed) == shape(model)[0] and all(name.endswith("proj.weight") for name in changed)


def test_what_weights_cannot_hold_is_said(tmp_path):
    families.build("llama").save_pretrained(tmp_path / "m")
    asked = {"model": str(tmp_path / "m"), "in_weights": True, "out": tmp_path / "out", "mitigation": "lpes"}
    with pytest.raises(PosgapError, match="lpes: cannot be put into weights"):
        apply_stage(ApplyConfig(**asked, mitigation_settings={"factors": [1, 1, 1, 2]}))
    with pytest.raises(PosgapError, match="its files have no parameter that is other.weight alone"):
        multiply(tmp_path / "m", {"other.weight": torch.ones(3)})
    save_file({"layers.0.w": torch.ones(2, 3), "k": torch.ones(2, dtype=torch.int8)}, tmp_path / "m" / "b.safetensors")
    multiply(tmp_path / "m", {"model.layers.0.w": torch.tensor([1.0, 0.5, 0.0])})
    kept = load_file(tmp_path / "m" / "b.safetensors")
    assert kept["layers.0.w"].tolist() == [[1, 0.5, 0]] * 2
    with pytest.raises(PosgapError, match="k is quantised"):
        multiply(tmp_path / "m", {"k": torch.ones(2)})


def test_right_are_those_whose_every_token_comes_first():
    model = built("llama")
    with torch.inference_mode():
        first = int(model(torch.tensor([[5, 9, 2]])).logits[0, -1].argmax())
        second = int(model(torch.tensor([[5, 9, 2, first]])).logits[0, -1].argmax())
    other = (second + 1) % 40
    asked = [([5, 9, 2], [first, second]), ([5, 9, 2], [first, other]), ([5, 9, 2], [other, second])]
    assert answered(model, asked).right.tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("family", "gates", "reason"),
    [
        ("llama", [[1.0]], "give a gate for each of 4 heads in each of 4 layers"),
        ("mamba", [[1.0]], "layer 0 has no single attention with one of the output projections known here"),
        ("moshi", None, ""),
    ],
)
def test_a_model_has_gates_or_is_told_why_not(family, gates, reason):
    model = families.build(family)
    if gates is None:
        apply(model, "head-gates", MITIGATIONS["head-gates"].neutral(model.config))
        return
    with pytest.raises(PosgapError, match=reason):
        apply(model, "head-gates", {"gates": gates})


def test_what_is_tried_goes_along_the_gradient_of_the_weaker_half():
    model = families.build("llama")
    tried = MITIGATIONS["head-gates"].tried(TriedOn(model, [], QUESTIONS))
    effects = head_effects(model, QUESTIONS)
    weak = np.argsort(effects.log_probability)[:2]
    direction = effects.by_gate[weak].mean(axis=0)
    np.testing.assert_allclose(flattening(effects), direction)
    for settings, step in zip(tried, (0.2, 0.4, 0.6), strict=True):
        change = np.array(settings.gates) - 1
        assert np.abs(change).max() == pytest.approx(step, abs=1e-6)
        np.testing.assert_allclose(change, step * direction / np.abs(direction).max(), atol=1e-6)
    assert min(min(row) for row in turned(direction, 5.0).gates) == 0, "no gate turns a head's sign"
    before = answered(model, QUESTIONS).log_probability[weak].mean()
    apply(model, "head-gates", turned(direction, 0.05))
    assert answered(model, QUESTIONS).log_probability[weak].mean() > before


def test_effects_on_mean_and_gap_are_predicted_to_first_order():
    by_gate = np.zeros((2, 3, 1, 2))
    by_gate[:, :, 0, 0] = [[4.0, 0.0, 2.0], [2.0, 2.0, 0.0]]  # means by position: 3, 1, 1
    log_probability = np.array([[-1.0, -3.0, -2.0], [-1.0, -5.0, -2.0]])  # -1, -4, -2: a gap of 3
    found = {change.name: change for change in changes(by_gate, np.array([[1.0, -2.0]]))}
    assert len(found) == 2 * (1 + 2) + 3
    head = predicted(found["layer 1 head 1 down by 0.5"], by_gate, log_probability)
    assert (head.mean, head.gap) == pytest.approx((-5 / 6, -1.0))
    assert predicted(found["layer 1 head 2 up by 0.5"], by_gate, log_probability) == Effect(mean=0, gap=0)
    whole = predicted(found["attention of layer 1 down by 0.5"], by_gate, log_probability)
    assert whole == head, "the other head does nothing"
    np.testing.assert_allclose(found["all heads along the gradient, the greatest by 0.4"].change, [[0.2, -0.4]])
    np.testing.assert_allclose(first_pull(by_gate), [[2.0, 0.0]])


def made(name, predicted_gap, measured_gap, accuracy_gap=0.0, ci=(-1.0, 1.0), mean_ci=(-1.0, 1.0)):
    measured = Checked(
        mean=-predicted_gap, gap=measured_gap, accuracy=[50.0, 50.0], accuracy_mean=sum(mean_ci) / 2,
        accuracy_mean_ci95=mean_ci, accuracy_gap=accuracy_gap, accuracy_gap_ci95=ci,
    )  # fmt: skip
    return Advised(name=name, gates=[[1.0]], predicted=Effect(mean=predicted_gap, gap=predicted_gap), measured=measured)


def test_what_is_advised_is_flatter_for_certain_and_has_no_lower_mean():
    pull, accuracy = np.array([[0.5, 1.5]]), np.array([90.0, 30.0])
    rows = [
        made("wild", -3, -1, -50, (-60, -40), (-30, -20)),
        made("good", -2, -3, -30, (-40, -20), (2, 6)),
        made("unsure", -1, -2, -40, (-90, 10)),
    ]
    agreed = agreement(rows)
    assert agreed == {"mean": pytest.approx(-1.0), "gap": pytest.approx(-0.5)}
    said = summary_text(rows, pull, agreed, accuracy)
    assert "layer 1 head 2 pulls most" in said
    assert said.endswith(
        "the flattest of those that are so for certain, all taken together, is good: gap 60.0 to 30.0 points, mean "
        "60.0 to 64.0"
    )
    none = summary_text([rows[0], rows[2]], pull, agreed, accuracy)
    assert none.endswith("none of them is for certain flatter without a lower mean, all 2 taken together")
    assert agreement(rows[:2]) == {"mean": None, "gap": None}
    assert to_check(rows, 0) == [] and to_check(rows * 4, 2) == [0, 1, 2, 11] and to_check(rows, 5) == [0, 1, 2]


def test_changes_that_were_made_are_judged_together():
    """Of twelve changes one in four would seem certain by chance if each had an interval of 95 % by itself."""
    rng = np.random.default_rng(0)
    before, after = (
        Answered(np.zeros((80, 3)), (rng.random((80, 3)) < p).astype(float)) for p in (0.5, [0.6, 0.5, 0.5])
    )
    one, of_twelve = _checked(after, before, 1), _checked(after, before, 12)
    for found, error in ((one, 0.025), (of_twelve, 0.025 / 12)):
        mean, interval = statistics.paired_difference(after.right, before.right, error)
        assert (found.accuracy_mean, found.accuracy_mean_ci95) == (mean, interval)
        assert found.accuracy_gap_ci95 == statistics.gap_difference(after.right, before.right, error)[1]
    was, now = (100 * each.right.mean(axis=0) for each in (before, after))
    assert of_twelve.accuracy == now.tolist() and of_twelve.accuracy_gap == pytest.approx(np.ptp(now) - np.ptp(was))
    assert of_twelve.accuracy_mean_ci95[0] < one.accuracy_mean_ci95[0] < one.accuracy_mean


def test_the_verb_makes_what_it_predicts_and_leaves_no_gate_behind(tmp_path, model_folder, monkeypatch):
    write_examples(tmp_path / "kv.jsonl", [kv_example(i) for i in range(8)])
    config = {"examples": tmp_path / "kv.jsonl", "model": str(model_folder), "task": "kv", "n_docs": 6, "check": 2}
    config["metric"] = "contains_any"  # by which an untrained model is right now and then
    given = RolloutAdviseConfig(**config, positions=["1", "3", "6"], out=tmp_path / "refused")
    with pytest.raises(PosgapError, match="of 24 questions rightly, but none of them at once.*--system"):
        rollout_advise(given)  # an untrained model writes digits until it is cut, without the space before an answer
    monkeypatch.setattr("posgap.stages.rollout_advise.tried", lambda *asked: Tried(1, Probe([])))
    out = rollout_advise(RolloutAdviseConfig(**config, positions=["1", "3", "6"], out=tmp_path / "advice"))
    advice = read_json(out / "advice.json")
    assert advice["examples"] == {"looked_at": 4, "checked_on": 4} and advice["positions"] == [1, 3, 6]
    gaps = [change["predicted"]["gap"] for change in advice["changes"]]
    assert gaps == sorted(gaps) and len(gaps) == 2 * (2 + 8) + 3
    assert [i for i, change in enumerate(advice["changes"]) if change["measured"]] == [0, 1, 2, 22]
    for change in (each for each in advice["changes"] if each["measured"]):
        model = load_model(str(model_folder), "float32")
        apply(model, "head-gates", {"gates": change["gates"]})
        build = prompt_builder("kv", str(model_folder), 0)
        rows = ask(build, [kv_example(i) for i in (1, 3, 5, 7)], placements(), config["metric"], True)
        said = answered(model, [(q.prompt, q.response) for row in rows for q in row]).log_probability.reshape(4, 3)
        expected = said.mean(axis=0) - np.array(advice["log_probability"])
        assert change["measured"]["mean"] == pytest.approx(expected.mean(), abs=1e-5)
    assert (out / "advice.png").stat().st_size > 10_000
    with pytest.raises(PosgapError, match="3 examples; advice needs 4 at least"):
        rollout_advise(RolloutAdviseConfig(**config | {"limit": 3}, out=tmp_path / "few"))
    with pytest.raises(PosgapError, match="more than one right response"):
        rollout_advise(RolloutAdviseConfig(**config | {"metric": "f1"}, out=tmp_path / "loose"))


def placements():
    return [Placement((position,), 6) for position in (1, 3, 6)]
