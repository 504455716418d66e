"""Wrong answers that name one place's item, whichever was asked for."""

import logging
import random

import pytest
from endpoint import Endpoint, retrieve, served
from examples import kv_example

from posgap.data.reading import write_examples
from posgap.measurement.predictions import read_predictions
from posgap.measurement.same_place import SamePlace, find_same_place
from posgap.measurement.sweeps import read_sweep
from posgap.options.sweep import SweepConfig
from posgap.tasks.placements import swept_placements
from posgap.tasks.prompts import TextPromptBuilder
from posgap.tasks.registry import TASKS
from posgap.verbs.sweep import sweep_model

EXAMPLES = [kv_example(number) for number in range(30)]
PLACEMENTS = swept_placements(5, 1, ["1", "3", "5"])
DRAW = random.Random(0)
HABITS = {
    "the first": lambda n: 1,
    "the last": lambda n: n,
    "another at random": lambda n: DRAW.randint(1, n),
}


def first_value(text: str) -> str:
    """The first record's value in a prompt."""
    return text.split('": "')[1].split('"')[0]


def answered(habit, builder, share=1.0):
    """The wrong answers of a model that has a habit in a share of its answers, and else says nothing of use."""
    for number, example in enumerate(EXAMPLES):
        for placement in PLACEMENTS:
            place = habit(placement.n_docs)
            if place != placement.positions[0]:
                named = builder.documents(example, placement)[place - 1].text if number < share * len(EXAMPLES) else "?"
                yield example.id, placement.positions, f"It is {named}!"


@pytest.mark.parametrize(("habit", "place"), [("the first", 1), ("the last", 5), ("another at random", None)])
def test_a_habit_is_found_and_chance_is_none(habit, place):
    builder = TextPromptBuilder(TASKS["kv"], 4)
    wrong = list(answered(HABITS[habit], builder))
    found = find_same_place(builder, EXAMPLES, PLACEMENTS, wrong)
    assert found == (place and SamePlace(place=place, named=len(wrong), wrong=len(wrong)))


def test_it_takes_more_than_half_of_enough_answers():
    builder = TextPromptBuilder(TASKS["kv"], 4)
    wrong = list(answered(HABITS["the first"], builder, share=0.5))
    assert find_same_place(builder, EXAMPLES, PLACEMENTS, wrong) is None  # exactly half
    assert find_same_place(builder, EXAMPLES, PLACEMENTS, wrong[:-1]).named == len(wrong) / 2
    assert find_same_place(builder, EXAMPLES, PLACEMENTS, wrong[:20]) and not find_same_place(
        builder, EXAMPLES, PLACEMENTS, wrong[:19]
    )


@pytest.mark.parametrize("copies", [True, False])
def test_a_sweep_says_it_in_its_log_and_on_its_page(copies, tmp_path, caplog):
    write_examples(tmp_path / "examples.jsonl", EXAMPLES)
    with served(Endpoint(first_value if copies else retrieve)) as endpoint, caplog.at_level(logging.INFO, "posgap"):
        asked = {"model": "m", "backend": "openai", "base_url": endpoint.url}
        out = sweep_model(SweepConfig(examples=tmp_path / "examples.jsonl", out=tmp_path / "out", n_docs=5, **asked))
    swept, said = read_sweep(out), "are the item at position 1, whichever position was right"
    assert bool(swept.same_place) == (said in caplog.text) == (said in (out / "sweep.html").read_text()) == copies
    if copies:
        assert swept.accuracy[0] == 100 and swept.same_place.place == 1


def test_what_was_not_answered_and_orders_that_nobody_knows_are_left_out(tmp_path):
    def asked(name: str, endpoint: Endpoint, **how):
        config = {"model": "m", "backend": "openai", "base_url": endpoint.url, "max_unanswered": 100, **how}
        return read_sweep(
            sweep_model(SweepConfig(examples=tmp_path / "e.jsonl", out=tmp_path / name, n_docs=5, **config))
        )

    def half(text: str) -> str:
        return "" if int(text.rpartition('Key: "')[2][0], 16) % 2 else first_value(text)

    write_examples(tmp_path / "e.jsonl", EXAMPLES)
    with served(Endpoint(half)) as endpoint:
        swept = asked("half", endpoint)
        rows = read_predictions(tmp_path / "half")
        wrong = sum(not row["correct"] and "outcome" not in row for row in rows)
        assert swept.outcomes.n_unanswered > 20 and swept.same_place == SamePlace(place=1, named=wrong, wrong=wrong)
        assert asked("reversed", endpoint, mitigation="reversed").same_place is None
