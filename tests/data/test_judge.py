"""The tasks judge and options through the stages, asked of small models."""

import pytest
from refusals import refuses

from posgap.data.expectations import example_table, expectations, run_expectations
from posgap.data.reading import read_examples, write_examples
from posgap.data.synthetic import YOUNG, animal_examples
from posgap.foundation.errors import PosgapError
from posgap.measurement.predictions import read_predictions
from posgap.measurement.sweeps import read_sweep
from posgap.options.data_make import MakeConfig
from posgap.options.sweep import SweepConfig
from posgap.tasks.content import content_key
from posgap.tasks.examples import Document
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.registry import TASKS
from posgap.verbs.data_make import data_make
from posgap.verbs.sweep import sweep_model


@pytest.fixture
def questions(tmp_path):
    file = tmp_path / "questions.jsonl"
    write_examples(file, animal_examples(4, 3, seed=0))
    return file


def test_a_sweep_of_options_asks_every_rotation_and_says_what_was_chosen(tmp_path, model_folder, questions):
    config = {"task": "options", "n_docs": 3, "examples": questions, "model": str(model_folder), "max_new_tokens": 4}
    swept = sweep_model(SweepConfig(**config, max_unanswered=100, out=tmp_path / "swept"))
    figures, rows = read_sweep(swept), read_predictions(swept)
    assert figures.placements == [[1], [2], [3]] and len(rows) == 12
    choices = figures.choices
    assert choices.slots == ["A", "B", "C"] and sum(choices.shares) + choices.none == pytest.approx(100)
    some = sweep_model(SweepConfig(**config, positions=["1", "3"], max_unanswered=100, out=tmp_path / "some"))
    assert read_sweep(some).choices is None, "the right item never stands at B"
    page = (swept / "sweep.html").read_text()
    assert "Which letter the model chooses" in page and choices.preference_text in page
    card = " ".join((swept / "model_card.md").read_text().split())
    assert f"| same item in every order | {choices.consistency:.1f} |" in card
    assert f"| A chosen | {choices.shares[0]:.1f} |" in card


@pytest.mark.full
def test_examples_have_the_wanted_number_of_items_and_the_right_one_once(tokenizer):
    (pair,), (three,) = (animal_examples(1, n_docs, seed=0) for n_docs in (2, 3))
    again = Document(title="another model", text=f" {pair.gold[0].text}\n")
    examples = [pair.model_copy(update={"distractors": [again]}), three.model_copy(update={"id": "three"})]
    table = example_table(examples, PromptBuilder(TASKS["judge"], tokenizer, 512, 4), 2)
    failures = run_expectations(table, expectations(2, 500, all_items=True))["failures"]
    assert [line.partition(" ")[0] for line in failures] == ["`gold_among_distractors`", "`n_docs`"]
    assert "choice-00001 (1)" in failures[0] and "three (3)" in failures[1]


def test_made_questions_are_repeatable_and_never_alike_and_their_lengths_say_nothing(tmp_path):
    data_make(MakeConfig(kind="choice", n_examples=200, n_docs=3, seed=3, out=tmp_path / "a.jsonl"))
    data_make(MakeConfig(kind="choice", n_examples=200, n_docs=3, seed=3, out=tmp_path / "b.jsonl"))
    assert (tmp_path / "a.jsonl").read_bytes() == (tmp_path / "b.jsonl").read_bytes()
    examples = read_examples(tmp_path / "a.jsonl")
    assert len({content_key(example) for example in examples}) == 200
    asked = [next(animal for animal in YOUNG if example.question.endswith(f" {animal}?")) for example in examples]
    named = [f" {animal} " in example.gold[0].text for animal, example in zip(asked, examples)]
    young = [f" {YOUNG[animal]} " in example.gold[0].text for animal, example in zip(asked, examples)]
    assert all(a != b for a, b in zip(named, young)) and 75 <= sum(young) <= 125
    longest = [len(e.gold[0].text) > max(len(d.text) for d in e.distractors) for e in examples]
    assert 40 <= sum(longest) <= 90
    with refuses(PosgapError, "n_examples=10000", "2 items"):
        next(animal_examples(10_000, 2, seed=0))
