"""Tasks whose responses name a slot: what is right, and which slots a model chooses."""

from dataclasses import replace

import numpy as np
import pytest
from examples import qa_example

from posgap.measurement.option_bias import measure_option_bias
from posgap.tasks.placements import Placement
from posgap.tasks.registry import TASKS
from posgap.tasks.slots import ROTATED

LETTERS = replace(TASKS["qa"], slots=ROTATED, slot_names=("A", "B", "C"), metric="em", extract=str.strip)
EXAMPLES = [qa_example(i, 3) for i in range(8)]
PLACEMENTS = LETTERS.choose_placements(3)


def test_what_is_right_is_the_slot_of_the_item_that_matters():
    assert [LETTERS.right_answers(EXAMPLES[0], placement) for placement in PLACEMENTS] == [["A"], ["B"], ["C"]]
    assert TASKS["qa"].right_answers(EXAMPLES[0], PLACEMENTS[1]) == EXAMPLES[0].answers
    assert LETTERS.score(" B ", LETTERS.right_answers(EXAMPLES[0], PLACEMENTS[1])) == 1
    items = ROTATED.arrange(EXAMPLES[0], PLACEMENTS[0], 0)
    assert [LETTERS.chosen_slot(response, items) for response in ("A", " C", "D", "", "A B")] == [1, 3, 0, 0, 0]


@pytest.mark.parametrize("shuffle", [0, 4])
def test_a_model_that_knows_the_item_is_consistent_and_prefers_no_slot(shuffle):
    orders = [[d.text for d in ROTATED.arrange(e, p, shuffle)] for e in EXAMPLES for p in PLACEMENTS]
    known = "ABC"
    by_item = [known[order.index(min(order))] for order in orders]  # wrong or right, but always the same item
    choices = measure_option_bias(LETTERS, EXAMPLES, PLACEMENTS, by_item, shuffle)
    assert choices.consistency == 100 and choices.none == 0
    assert choices.shares == pytest.approx([100 / 3] * 3)


def test_a_model_that_always_says_a_is_never_consistent():
    choices = measure_option_bias(LETTERS, EXAMPLES, PLACEMENTS, ["A"] * 24, 0)
    assert (choices.shares, choices.consistency, choices.slots) == ([100, 0, 0], 0, ["A", "B", "C"])


def test_a_response_that_names_no_slot_is_no_choice():
    said = ["A", "B", "perhaps"] * 8
    choices = measure_option_bias(LETTERS, EXAMPLES, PLACEMENTS, said, 0)
    assert choices.none == pytest.approx(100 / 3) and choices.consistency == 0
    two = measure_option_bias(LETTERS, EXAMPLES, [Placement((i,), 2) for i in (1, 2)], ["A", "C"] * 8, 0)
    assert (two.shares, two.none) == ([50, 0], 50), "the third slot is none of two"


def test_shares_count_every_sample_and_their_intervals_hold_them():
    said = list(np.random.default_rng(0).choice(["A", "B", "C", "?"], 8 * 3 * 2))
    choices = measure_option_bias(LETTERS, EXAMPLES, PLACEMENTS, said, 0)
    assert choices.shares == pytest.approx([100 * said.count(slot) / len(said) for slot in "ABC"])
    assert all(low <= share <= high for share, (low, high) in zip(choices.shares, choices.shares_ci95))
