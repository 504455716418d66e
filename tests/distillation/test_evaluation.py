"""`distill --eval`: what is measured while a model trains, and which model is kept by it."""

import json
import logging

import pytest
import torch
from examples import kv_example
from pydantic import ValidationError

from posgap.data.reading import write_examples
from posgap.distillation.evaluation import Evaluation
from posgap.distillation.held_out import BEFORE, MEAN, NATS, TEXT, WORST, best_step, describe_training
from posgap.foundation.errors import BadOption, Malformed, PosgapError, Unreadable
from posgap.foundation.files import read_jsonl
from posgap.generation.asking import ResponseLimits
from posgap.generation.setup import builder_of
from posgap.measurement.plain_text import log_probabilities
from posgap.mitigations.in_force import load_model
from posgap.models.loading import load_tokenizer
from posgap.storage.lineage import training_examples
from posgap.tasks.content import content_keys
from posgap.tasks.placements import Placement
from posgap.verbs import distill as distilling
from posgap.verbs.distill import distill

TEXTS = ["k1 k2 v 3 ; 4 5 6", "question k1 k2 = 7 8 ;"]


@pytest.fixture
def evaluated(config, tmp_path):
    """A training on its own examples' look-alikes, measured after each of its steps."""
    write_examples(tmp_path / "held.jsonl", [kv_example(100 + i) for i in range(3)])
    (tmp_path / "text.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in TEXTS))
    more = {"eval": tmp_path / "held.jsonl", "eval_text": tmp_path / "text.jsonl", "eval_steps": 1, "method": "sft"}
    return config.model_copy(update=more)


def history_of(out):
    return [row for _, row in read_jsonl(out / "history.jsonl")]


def by_definition(model_folder, config):
    """The four figures by plain passes of the model, a prompt at a time."""
    model = load_model(str(model_folder), "float32")
    tokenizer = load_tokenizer(str(model_folder))
    builder = builder_of(str(model_folder), config.wording(), ResponseLimits(2))
    nats, rights = [], []
    for position in range(1, 6):
        for example in (kv_example(100 + i) for i in range(3)):
            placement = Placement((position,), 5)
            prompt, gold = builder(example, placement), builder.gold_response(example, placement)
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([prompt + gold])).logits[0, len(prompt) - 1 : -1]
            chances = logits.log_softmax(-1)
            nats.append(-chances[range(len(gold)), gold].mean().item())
            rights.append(chances.argmax(-1).tolist() == gold)
    accuracy = [100 * sum(rights[at : at + 3]) / 3 for at in range(0, 15, 3)]
    text = log_probabilities(model, tokenizer, TEXTS)
    return {
        WORST: min(accuracy),
        MEAN: sum(accuracy) / 5,
        NATS: sum(nats) / len(nats),
        TEXT: -sum(text) / len(text),
    }


def test_figures_are_those_of_plain_passes_before_and_after(evaluated, model_folder, caplog):
    caplog.set_level(logging.INFO)
    out = distill(evaluated)
    history = history_of(out)
    before = {name.removesuffix(BEFORE): figure for name, figure in history[0].items() if name.endswith(BEFORE)}
    assert before == pytest.approx(by_definition(model_folder, evaluated), abs=1e-4)
    assert {name: history[-1][name] for name in before} == pytest.approx(by_definition(out, evaluated), abs=1e-4)
    assert all(row.keys() >= {WORST, MEAN, NATS, TEXT} for row in history)
    assert history[-1][NATS] < before[NATS]
    said = f"plain text {before[TEXT]:.3f} nats a token before, {history[-1][TEXT]:.3f} nats a token after"
    assert said in caplog.text and said in describe_training(out) and describe_training(model_folder) == ""


def test_measuring_changes_nothing_of_the_training(evaluated, tmp_path):
    measured = distill(evaluated)
    plain = distill(evaluated.model_copy(update={"eval": None, "eval_text": None, "out": tmp_path / "plain"}))
    of_both = [load_model(str(out)).state_dict() for out in (measured, plain)]
    assert all(torch.equal(of_both[0][name], of_both[1][name]) for name in of_both[1])
    assert [row["loss"] for row in history_of(measured)] == [row["loss"] for row in history_of(plain)]
    assert not history_of(plain)[-1].keys() & {WORST, TEXT}


@pytest.mark.parametrize("every, steps, due", [(0, 4, [1, 2, 3, 4]), (0, 40, [*range(4, 41, 4)]), (3, 7, [3, 6, 7])])
def test_ten_evaluations_or_one_in_so_many_steps_and_one_at_the_end(every, steps, due):
    evaluation = Evaluation(None, [], None, every)
    assert [step for step in range(1, steps + 1) if evaluation.is_due(step, steps)] == due


def test_the_best_step_is_that_of_the_best_worst_placement_and_of_equals_of_the_fewest_nats():
    rows = [(1, 10.0, 3.0), (2, 30.0, 2.0), (3, 30.0, 1.0), (4, 20.0, 0.5)]
    history = [{"step": step, WORST: worst, NATS: nats} for step, worst, nats in rows]
    assert best_step(history) == 3 and best_step(history[:2]) == 2
    assert best_step([{"step": 1, "loss": 2.0}]) == 0


@pytest.mark.full  # four trainings
def test_the_best_model_is_written_and_a_killed_training_knows_it(evaluated, tmp_path, monkeypatch):
    """The held-out figures are made up, so that the second of six steps is the best."""
    seen = []

    def measure(self, *_):
        seen.append(1)
        made_up = {1: 0.0, 2: 10.0, 3: 50.0}.get(len(seen), 20.0)  # the first is from before the training
        return {WORST: made_up, MEAN: made_up, NATS: 1.0}

    monkeypatch.setattr(Evaluation, "measure", measure)
    longer = evaluated.model_copy(update={"epochs": 3, "save_steps": 2})
    last = distill(longer)
    assert len(history_of(last)) == 6
    seen.clear()
    two = distill(longer.model_copy(update={"keep": "best", "out": tmp_path / "best"}))
    assert len(history_of(two)) == 6
    # What a model was chosen by tells no more of it than what it learnt.
    held_out = set(content_keys(kv_example(100 + i) for i in range(3)))
    assert not held_out & training_examples(str(last)) and held_out < training_examples(str(two))
    assert "worst position 0.0 % before, 20.0 % after" in describe_training(last)
    assert "worst position 0.0 % before, 50.0 % after" in describe_training(two)
    seen.clear()
    export = distilling.export
    monkeypatch.setattr(distilling, "export", lambda *args: (_ for _ in ()).throw(PosgapError("no room")))
    again = longer.model_copy(update={"keep": "best", "out": tmp_path / "again"})
    with pytest.raises(PosgapError, match="no room"):
        distill(again)
    monkeypatch.setattr(distilling, "export", export)
    three = distill(again)
    of_all = [load_model(str(out)).state_dict() for out in (last, two, three)]
    name = next(iter(of_all[0]))
    assert torch.equal(of_all[1][name], of_all[2][name]) and not torch.equal(of_all[0][name], of_all[1][name])


@pytest.fixture
def stopped(evaluated, tmp_path, monkeypatch):
    """A training that keeps the best of its steps, the second of four, and whose model could not be written."""
    figures = iter([0.0, 10.0, 50.0, 20.0, 20.0])
    monkeypatch.setattr(Evaluation, "measure", lambda self, *_: {WORST: next(figures), MEAN: 0.0, NATS: 1.0})
    config = evaluated.model_copy(update={"epochs": 2, "save_steps": 1, "keep": "best"})
    with monkeypatch.context() as patched:
        patched.setattr(distilling, "export", lambda *args: (_ for _ in ()).throw(PosgapError("no room")))
        with pytest.raises(PosgapError, match="no room"):
            distill(config)
    (checkpoints,) = (tmp_path / ".posgap-out" / "work").glob("checkpoints-*")
    assert sorted(each.name for each in checkpoints.iterdir()) == ["step-2", "step-3", "step-4"]
    return config, checkpoints


@pytest.mark.full  # two trainings
def test_a_damaged_best_checkpoint_is_refused(stopped):
    config, checkpoints = stopped
    weights = next((checkpoints / "step-2").glob("*.safetensors"))
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    with pytest.raises(Unreadable, match=r"step-2: .*safetensors "):
        distill(config)


@pytest.mark.full  # two trainings
def test_figures_of_other_held_out_examples_are_not_gone_on_from(stopped, monkeypatch):
    config, _ = stopped
    write_examples(config.eval, [kv_example(200 + i) for i in range(3)])
    monkeypatch.setattr(Evaluation, "measure", lambda self, *_: {WORST: 5.0, MEAN: 5.0, NATS: 1.0})
    assert {row[WORST] for row in history_of(distill(config))} == {5.0}


@pytest.mark.parametrize(
    "row", ['{"step": 1, "eval_worst": "<b>"}', '{"step": 1, "eval_worst": [1]}', '{"step": null}']
)
def test_a_history_that_holds_no_numbers_is_refused(row, tmp_path):
    (tmp_path / "history.jsonl").write_text(f'{{"step": 0, "loss": 1.0}}\n{row}\n')
    with pytest.raises(Malformed, match=r"history.jsonl:2: "):
        describe_training(tmp_path)
    (tmp_path / "history.jsonl").write_text("")
    assert describe_training(tmp_path) == ""


def test_figures_that_are_not_finite_end_the_training(evaluated, monkeypatch):
    monkeypatch.setattr(Evaluation, "measure", lambda self, *_: {TEXT: float("nan")})
    with pytest.raises(PosgapError, match="held-out .* learning_rate"):
        distill(evaluated)


def test_examples_that_are_learnt_and_a_best_model_of_nothing_are_refused(evaluated, config):
    with pytest.raises(BadOption, match=f"^{config.examples}: .*--eval"):
        distill(evaluated.model_copy(update={"eval": config.examples}))
    with pytest.raises(ValidationError, match="`keep`"):
        type(config)(**config.model_dump() | {"keep": "best"})
