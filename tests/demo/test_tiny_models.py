"""The tiny models read the pipeline's own prompts, and are trained on exactly those."""

import math
from dataclasses import replace

import pytest
import tiny_two_hop
import torch
from examples import kv_example
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from posgap.data.reading import write_examples
from posgap.data.synthetic import CONTACT_QUESTION, two_hop_examples
from posgap.demo import tiny_model
from posgap.demo.tiny_training import IGNORED
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_json
from posgap.measurement.sweeps import read_sweep
from posgap.options.distill import DistillConfig
from posgap.options.sweep import SweepConfig
from posgap.options.teacher import TeacherConfig
from posgap.tasks.examples import Document, Example
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.registry import TASKS
from posgap.tasks.responses import read_responses
from posgap.verbs.distill import distill
from posgap.verbs.sweep import sweep_model
from posgap.verbs.teacher import teacher

# Of a recipe, so that its training takes no time.
SHORT = {"retrieval": 1, "threshold": math.inf, "ramp": 1, "bias": 1, "decay": 1}


@pytest.fixture(scope="module")
def build():
    return PromptBuilder(TASKS["multihop-cot"], tiny_two_hop.tokenizer(), 512, 16)


def as_example(build, ids):
    """The example that a row of a training batch asks about, and where its gold documents stand."""
    text = build.tokenizer.decode(ids, skip_special_tokens=True)
    documents = [tuple(line.strip().split(": ")) for line in text.split("...\n\n")[1].split("\n\n")[0].split("\n")]
    person = text.split("contact of ")[1].split("'")[0]
    contact = dict(documents)
    gold = [(person, contact[person]), (contact[person], contact[contact[person]])]
    others = [fact for fact in documents if fact not in gold]
    example = Example(
        id="x",
        question=CONTACT_QUESTION.format(person),
        answers=[gold[1][1]],
        gold=[Document(title=who, text=whom) for who, whom in gold],
        distractors=[Document(title=who, text=whom) for who, whom in others],
    )
    return example, tuple(documents.index(fact) + 1 for fact in gold)


def test_two_hop_training_is_on_the_prompts_and_responses_of_the_task(build):
    ids, labels = tiny_two_hop.draw_batch(torch.Generator().manual_seed(0), 20, 20, tiny_two_hop.pair_bias(20))
    for row, label in zip(ids.tolist(), labels.tolist()):
        example, positions = as_example(build, row)
        prompt = build(example, Placement(positions, 20))
        (first, second) = example.gold
        reasoning = f"{first.title}: {first.text}. {second.title}: {second.text}. The answer is {example.answers[0]}."
        response = build.response_ids(example, Placement(positions, 20), reasoning)
        assert row == prompt + response
        assert label == [IGNORED] * len(prompt) + response
        shown = build.tokenizer.decode(response, skip_special_tokens=True).strip()
        assert shown == reasoning and build.task.score(shown, example.answers) == 1


def test_two_hop_prompts_have_no_unknown_token(build):
    for example in two_hop_examples(20, 24, seed=1):
        prompt = build(example, Placement((24, 1), 24))
        assert build.tokenizer.unk_token_id not in prompt + build.gold_response(example, Placement((24, 1), 24))
        assert len(prompt) == 1 + 4 + 3 * 24 - 1 + 3


def test_biased_pairs_are_nearly_always_the_last_two(build):
    weights = tiny_two_hop.pair_bias(20)
    assert weights.sum() == pytest.approx(1) and weights.diagonal().eq(0).all() and weights[18, 19] == weights.max()
    ids, _ = tiny_two_hop.draw_batch(torch.Generator().manual_seed(0), 400, 20, weights)
    pairs = [as_example(build, row)[1] for row in ids.tolist()]
    assert pairs.count((19, 20)) / 400 == pytest.approx(float(weights[18, 19]), abs=0.08)


def test_without_pairs_everyone_is_asked_about_once(build):
    ids, labels = tiny_two_hop.draw_batch(torch.Generator().manual_seed(0), 3, 5)
    for row, label in zip(ids, labels):
        text = build.tokenizer.decode(row, skip_special_tokens=True)
        turns = text.split("Question: ")[1:]
        assert len({turn.split("'")[0] for turn in turns}) == 5
        answered = [token for token in label.tolist() if token != IGNORED]
        assert len(answered) == 5 * 10


def test_key_value_training_is_on_the_prompts_of_the_task(tokenizer):
    build = PromptBuilder(TASKS["kv"], tokenizer, 512, 4)
    weights = torch.zeros(6, dtype=torch.float64)
    weights[2] = 1
    ids, labels = tiny_model.draw_batch(torch.Generator().manual_seed(0), 1, 6, 1, weights)
    words = tokenizer.convert_ids_to_tokens(ids[0].tolist())[4:]
    records = [("".join(words[i : i + 2]), words[i + 2].strip()) for i in range(0, 24, 4)]
    example = kv_example().model_copy(
        update={"records": records, "key": records[2][0], "question": records[2][0], "answers": [records[2][1]]}
    )
    prompt = build(example, Placement((3,), 6))
    gold = build.gold_response(example, Placement((3,), 6))
    assert ids[0].tolist() == prompt + gold
    # The second digit of the key, and the answer.
    assert labels[0].tolist() == [IGNORED] * (len(prompt) - 1) + prompt[-1:] + build.gold_response(
        example, Placement((3,), 6)
    )


def test_position_scales_end_with_the_training(cache):
    model = tiny_model.train(0, replace(tiny_model.STANDARD, **SHORT))
    assert not any(layer._forward_pre_hooks for layer in model.model.layers)


@pytest.mark.full
def test_a_model_that_stays_on_the_plateau_begins_again_with_other_parameters(cache, monkeypatch):
    seeds, untrained = [], tiny_model.untrained
    monkeypatch.setattr(tiny_model, "untrained", lambda seed, *how: seeds.append(seed) or untrained(seed, *how))
    recipe = replace(tiny_model.QUICK, retrieval=2, most=600, patience=2, threshold=0.0, ramp=1, bias=1, decay=1)
    with pytest.raises(PosgapError, match=" 5 attempts"):
        tiny_model.train(3, recipe)
    assert seeds[0] == 3 and len(set(seeds)) == 6
    monkeypatch.setattr(tiny_model, "_PLATEAU", 1e9)
    seeds.clear()
    tiny_model.train(3, replace(recipe, most=4))
    assert seeds == [3]  # a model below the plateau is gone on with, however slow it is


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of the test's own, and a batch of two prompts: what is trained here need not learn anything."""
    monkeypatch.setenv("POSGAP_CACHE", str(tmp_path))
    monkeypatch.setattr(tiny_model, "BATCH", 2)
    return tmp_path


def test_recipes_favour_the_first_record():
    recipe = tiny_model.STANDARD
    weights = tiny_model.end_bias(20, recipe.first, recipe.tau)
    assert weights.sum() == pytest.approx(1)
    assert weights.argmax() == 0 and weights[:10].sum() == pytest.approx(recipe.first, abs=1e-5)


@pytest.mark.nightly
@pytest.mark.full
def test_the_two_hop_model_reasons_near_the_end_and_r2_teaches_it_to_reason_anywhere(tmp_path):
    """Stored in bfloat16, before and after, as the models that people train are."""
    tiny_two_hop.write(tmp_path / "model", seed=0)
    LlamaForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.bfloat16).save_pretrained(tmp_path / "model")
    write_examples(tmp_path / "e.jsonl", two_hop_examples(100, 20, seed=1))
    shared = {"examples": tmp_path / "e.jsonl", "model": str(tmp_path / "model"), "task": "multihop-cot"}
    swept = sweep_model(SweepConfig(out=tmp_path / "sweep", positions="19+20,1+2,10+11,1+15,6+1", **shared))
    best, *others = read_sweep(swept).accuracy
    assert best >= 95 and best - max(others) >= 10 and best - min(others) >= 50
    taught = teacher(TeacherConfig(out=tmp_path / "teacher", sweep=swept, **shared))
    responses = read_responses(taught)
    assert len(responses) >= 95 and {tuple(r.placement) for r in responses} == {(19, 20)}
    r2 = {"method": "r2", "epochs": 10, "batch_size": 64, "learning_rate": 1e-3, "warmup_steps": 5}
    trained = distill(DistillConfig(responses=taught, out=tmp_path / "r2", **r2, **shared))
    write_examples(tmp_path / "held-out.jsonl", two_hop_examples(100, 20, seed=2))
    again = {**shared, "examples": tmp_path / "held-out.jsonl", "model": str(trained)}
    after = read_sweep(sweep_model(SweepConfig(out=tmp_path / "after", positions="19+20,1+2,10+11,1+15,6+1", **again)))
    assert min(after.accuracy) >= min(others) + 40 and after.gap < (best - min(others)) / 2
    assert {tensor.dtype for tensor in load_file(trained / "model.safetensors").values()} == {torch.bfloat16}
    assert read_json(trained / "export.json")["kept_update"] > 0.99
