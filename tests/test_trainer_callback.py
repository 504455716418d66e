"""The position gap during a training by transformers' Trainer."""

import json

import pytest
import torch
from conftest import kv_example
from transformers import Trainer, TrainingArguments

import posgap
from posgap.demo import tiny_model
from posgap.foundation.errors import PosgapError
from posgap.tasks.reading import write_examples

OPTIONS = {"n_docs": 4, "max_new_tokens": 2, "positions": [1, 2, 4]}
PLACES = {f"eval_accuracy_at_{position}" for position in OPTIONS["positions"]}


@pytest.fixture
def examples():
    return [kv_example(number) for number in range(4)]


def trainer_of(out) -> Trainer:
    """Trains the tiny model to say always the same, in four steps of which every second is evaluated."""
    ids = torch.full((8, 6), 9)
    rows = [{"input_ids": row, "labels": row} for row in ids]
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=4,
        per_device_train_batch_size=2,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="position_gap",
        greater_is_better=False,
        learning_rate=0.5,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    return Trainer(
        tiny_model.untrained(0),
        arguments,
        train_dataset=rows,
        eval_dataset=rows,
        processing_class=tiny_model.tokenizer(),
    )


@pytest.fixture
def trainer(tmp_path):
    return trainer_of(tmp_path / "run")


def test_gap_and_curve_are_logged_before_during_and_after_training(trainer, examples):
    callback = posgap.PositionGapCallback(trainer, examples, **OPTIONS)
    trainer.add_callback(callback)
    trainer.train()
    assert list(callback.results) == [0, 2, 4]
    logged = [row for row in trainer.state.log_history if "eval_position_gap" in row]
    assert [row["step"] for row in logged] == [0, 2, 4]
    for row, result in zip(logged, callback.results.values()):
        assert row.keys() >= PLACES and row["eval_position_gap"] == result.figures.gap
    first = posgap.sweep(tiny_model.untrained(0), examples, tokenizer=tiny_model.tokenizer(), **OPTIONS)
    assert callback.results[0].predictions == first.predictions
    # What the model has become is asked, not what it was.
    assert callback.results[4].predictions != first.predictions
    frame = callback.frame
    assert frame["step"].tolist() == [0, 2, 4] and frame["gap"].tolist() == [row["eval_position_gap"] for row in logged]
    assert {"mean", "gap_low", "gap_high", "at_1", "at_2", "at_4"} < set(frame.columns)


def test_the_checkpoint_with_the_smallest_gap_is_the_best_one(trainer, examples, monkeypatch):
    callback = posgap.PositionGapCallback(trainer, examples, **OPTIONS)
    gaps = iter([50.0, 10.0, 30.0])
    sweep = posgap.sweep

    def with_gaps(*arguments, **options):
        result = sweep(*arguments, **options)
        return posgap.SweepResult(result.figures.model_copy(update={"gap": next(gaps)}), result.predictions)

    monkeypatch.setattr("posgap.api.trainer_callback.sweep", with_gaps)
    trainer.add_callback(callback)
    trainer.train()
    assert trainer.state.best_metric == 10.0 and trainer.state.best_model_checkpoint.endswith("checkpoint-2")


def test_training_is_what_it_would_be_without_the_callback(examples, tmp_path):
    weights = []
    for watched in (False, True):
        trainer = trainer_of(tmp_path / str(watched))
        trainer.args.load_best_model_at_end, trainer.args.metric_for_best_model = False, None
        if watched:
            trainer.add_callback(posgap.PositionGapCallback(trainer, examples, every=1, **OPTIONS))
        trainer.train()
        weights.append(trainer.model.state_dict())
    assert all(torch.equal(*pair) for pair in zip(*(state.values() for state in weights)))


def test_every_so_many_steps_where_that_is_asked_for(trainer, examples, tmp_path):
    write_examples(tmp_path / "e.jsonl", examples)
    callback = posgap.PositionGapCallback(trainer, tmp_path / "e.jsonl", every=3, **OPTIONS)
    trainer.add_callback(callback)
    trainer.train()
    assert list(callback.results) == [0, 2, 3, 4]
    json.dumps(trainer.state.log_history)


def test_examples_are_looked_at_before_training(trainer):
    with pytest.raises(PosgapError, match="row 1"):
        posgap.PositionGapCallback(trainer, [{"question": "q"}])


def test_a_model_that_says_nothing_does_not_end_its_training(trainer, examples):
    torch.nn.init.zeros_(trainer.model.lm_head.weight)  # greedy: always the padding token
    trainer.args.learning_rate = 0.0
    trainer.add_callback(posgap.PositionGapCallback(trainer, examples, **OPTIONS))
    trainer.train()
    logged = [row for row in trainer.state.log_history if "eval_position_gap" in row]
    assert [row["eval_position_unanswered"] for row in logged] == [100.0] * 3
