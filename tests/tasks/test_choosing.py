"""Which lettered item a response chooses."""

import pytest
from examples import prompt_text
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

from posgap.data.synthetic import animal_examples
from posgap.foundation.errors import PosgapError
from posgap.measurement.option_bias import measure_option_bias, same_item
from posgap.tasks.choosing import chosen_letter
from posgap.tasks.examples import Document, Example
from posgap.tasks.placements import Placement
from posgap.tasks.registry import TASKS
from posgap.tasks.task import PromptOrder, document_writer

CITIES = Example(
    id="e",
    question="Capital of France?",
    answers=["Paris"],
    gold=[Document(title="some-model", text="Paris")],
    distractors=[Document(title="another-model", text=city) for city in ("London", "New York", "York")],
)
OPTIONS, JUDGE = TASKS["options"], TASKS["judge"]


@pytest.mark.parametrize(
    "response",
    [
        *("B", "b", " B ", "B.", "(B)", "[B]", "b)", "B)", "B:", "**B**", "`B`", '"B"', "B) Paris"),
        *("B. Paris", "(B) Paris"),
        *("Answer: B", "Answer: B.", "answer: (B)", "The answer is B", "The answer is B."),
        *("The correct answer is: **B**",),
        *("The answer is B) Paris", "Option B", "I choose option B.", "I would pick B.", "My verdict: [[B]]", "[[B]]"),
        *("Let us see. A is in England. The answer is B.", "It is large, so A fails.\nAnswer: B", "（B）", "B - Paris"),
        *("B Paris", "I say B", "B\nQuestion: another\nAnswer: C"),
        *("A good question; the answer is B", "The best answer is B, since A is in England.", "Response [B] wins"),
        "I think A is wrong, (B)",
    ],
)  # fmt: skip
def test_a_response_that_chooses_the_second(response):
    assert chosen_letter(response) == "B"
    assert OPTIONS.score(response, OPTIONS.right_answers(CITIES, Placement((2,), 4))) == 1
    assert OPTIONS.score(response, OPTIONS.right_answers(CITIES, Placement((3,), 4))) == 0


@pytest.mark.parametrize(
    "response",
    [
        *("", "   ", "A or B", "A, B", "A and B", "A / B", "(A) and (B)", "[[A]] [[B]]", "[[C]]?? [[B]]", "Both"),
        *("tie",),
        *("London or Paris", "A better question would help", "I cannot say", "?"),
        *("The answer is A. Answer: B",),
        *("None of them", "An apple", "The answer is unknown"),
    ],
)  # fmt: skip
def test_a_response_that_chooses_none_or_two(response):
    items = OPTIONS.slots.arrange(CITIES, Placement((1,), 4), 0)
    assert chosen_letter(response) == "" or OPTIONS.chosen_slot(response, items) == 1, "a text, which is an item's"
    assert OPTIONS.chosen_slot(response, items) == 0
    assert not any(OPTIONS.score(response, OPTIONS.right_answers(CITIES, Placement((i,), 4))) for i in (1, 2, 3, 4))


@pytest.mark.parametrize(
    "response",
    [
        "\nB, as I see it, not A",  # what stands before the first line is none
        "**B** - not A",  # emphasis is no sign that sets letters apart
        "B \nQuestion: another\nAnswer: C",
        "Not A: the answer is B  \nThat is all.",  # at the end of a line
    ],
)
def test_white_space_and_emphasis_are_no_part_of_what_is_said(response):
    assert chosen_letter(response) == "B"


@pytest.mark.parametrize(
    ("task", "items", "ending"),
    [
        (OPTIONS, "A. York\nB. Paris\nC. London\nD. New York", "Answer:"),
        (JUDGE, "Answer A:\nYork\n\nAnswer B:\nParis\n\nAnswer C:\nLondon\n\nAnswer D:\nNew York", "Best answer:"),
    ],
)
def test_items_stand_under_their_letters_after_the_question_whatever_the_order(task, items, ending):
    arranged, question = task.slots.arrange(CITIES, Placement((2,), 4), 0), "Question: Capital of France?\n"
    for order, last in (("before", ""), ("after", ""), ("both", question)):
        text = task.text(arranged, CITIES.question, PromptOrder(order))
        assert text.partition("\n\n")[2] == f"{question}\n{items}\n\n{last}{ending}"


def test_items_are_written_in_a_form_with_something_between_them():
    items = [Document(title="none", text=text) for text in ("one", "two", "three")]
    assert document_writer("<{letter}: {text}>", " / ")(items) == "<A: one> / <B: two> / <C: three>"


def test_slots_can_be_chosen_and_other_metrics_asked_for():
    assert OPTIONS.choose_placements(4, ["2", "4"]) == [Placement((2,), 4), Placement((4,), 4)]
    assert len(OPTIONS.choose_placements(4)) == 4
    right = OPTIONS.right_answers(CITIES, Placement((2,), 4))
    assert right == ["B", "Paris"]
    for metric, score in {"": 0, "em": 0, "sub_em": 1}.items():
        assert OPTIONS.score("It is Paris, I think", right, metric) == score, metric
        assert OPTIONS.score("It is London, I think", right, metric) == 0
    assert OPTIONS.score("\n Paris\nLondon", right) == 1


def test_an_item_is_named_by_its_whole_text_too_unless_two_have_it():
    items = OPTIONS.slots.arrange(CITIES, Placement((2,), 4), 0)
    assert [item.text for item in items] == ["York", "Paris", "London", "New York"]
    for response, slot in {"Paris": 2, "paris.": 2, "New York\nQuestion:": 4, "York": 1, "It is Paris": 0}.items():
        assert OPTIONS.chosen_slot(response, items) == slot
        assert OPTIONS.score(response, OPTIONS.right_answers(CITIES, Placement((2,), 4))) == (slot == 2)
    assert OPTIONS.chosen_slot("York", [*items, items[0]]) == 0


def test_a_letter_beyond_the_items_as_a_tie_is_no_choice():
    items = [Document(title="", text="one"), Document(title="", text="two")]
    assert [JUDGE.chosen_slot(said, items) for said in ("[[A]]", "[[B]]", "[[C]]", "tie", "Both are good.")] == [
        1,
        2,
        0,
        0,
        0,
    ]


def test_an_option_that_is_a_letter_is_named_by_its_own_letter_alone():
    blood = CITIES.model_copy(update={"answers": ["B"], "gold": [Document(title="", text="B")]})
    right = OPTIONS.right_answers(blood, Placement((1,), 4))
    assert right == ["A", "B"]
    assert (OPTIONS.score("A", right), OPTIONS.score("B", right)) == (1, 0)


@given(st.text(max_size=60))
def test_whatever_is_said_chooses_a_letter_or_none(response):
    assert chosen_letter(response) in ("", *OPTIONS.slot_names)


@given(
    st.sampled_from(OPTIONS.slot_names),
    st.sampled_from(["{}", "({})", "{}.", "Answer: {}", "The answer is {}.", "[[{}]]", "*{}*"]),
)
def test_every_letter_is_read_in_every_form(letter, form):
    assert chosen_letter(form.format(letter)) == letter


def test_the_prompts_have_the_question_before_the_items_and_no_titles():
    (example,) = animal_examples(1, 2, seed=0)
    at = Placement((2,), 2)
    assert prompt_text(JUDGE, CITIES, at).split("\n\n")[1:] == [
        "Question: Capital of France?", "Answer A:\nLondon", "Answer B:\nParis", "Best answer:",
    ]  # fmt: skip
    assert prompt_text(OPTIONS, CITIES, at).endswith("Question: Capital of France?\n\nA. London\nB. Paris\n\nAnswer:")
    assert prompt_text(OPTIONS, CITIES, at, PromptOrder("before")) == prompt_text(OPTIONS, CITIES, at)
    assert prompt_text(OPTIONS, CITIES, at, PromptOrder("both")).count("Capital of France?") == 2
    assert "model" not in prompt_text(JUDGE, CITIES, at) + prompt_text(OPTIONS, CITIES, at)
    assert prompt_text(JUDGE, example, at) != prompt_text(JUDGE, example, Placement((1,), 2))


@pytest.mark.parametrize("n_docs", [1, 27])
def test_there_are_as_many_items_as_letters(n_docs):
    with refuses(PosgapError, f"{n_docs} items", "--n-docs"):
        OPTIONS.choose_placements(n_docs)


@pytest.mark.parametrize("n_docs", [2, 4, 26])
def test_chance_is_how_often_any_one_letter_is_right_over_all_placements(n_docs):
    (example,) = animal_examples(1, 2, seed=0)
    for task in (OPTIONS, JUDGE):
        right = [task.right_answers(example, at) for at in task.choose_placements(n_docs)]
        for letter in task.slot_names[:n_docs]:
            assert sum(task.score(letter, answers) for answers in right) / n_docs == task.chance(n_docs)


def test_choices_are_those_of_items_named_by_letter_or_text():
    at = OPTIONS.choose_placements(4)
    said = ["Paris", "B", "(C)", "D. Paris"]
    choices = measure_option_bias(OPTIONS, [CITIES], at, said, 0)
    assert (choices.shares, choices.none, choices.consistency) == ([25, 25, 25, 25], 0, 100)
    assert choices.slots == ["A", "B", "C", "D"]


def test_a_preference_is_measured_whatever_is_right_and_said_in_words():
    examples = list(animal_examples(20, 4, seed=1))
    at = OPTIONS.choose_placements(4)
    choices = measure_option_bias(OPTIONS, examples, at, (["C", "C", "A", "?"] * 20), 0)
    assert (choices.shares, choices.none, choices.consistency) == ([25, 0, 50, 0], 25, 0)
    assert (choices.slots[choices.favourite], choices.preference) == ("C", 50 - 75 / 4)
    assert choices.preference_text.startswith(
        "C is chosen most often, in 50.0 % (43.4 to 56.6) of the prompts; without a preference it would be 25.0 %."
    )
    assert choices.preference_text.endswith("25.0 % of the responses name no item.")


def test_the_gates_consistency_is_that_of_the_letters():
    examples, at = list(animal_examples(3, 4, seed=2)), OPTIONS.choose_placements(4)
    said = ["A", "B", "C", "D", "B", "C", "D", "A", "A", "A", "C", "D"]  # the right item; the next one; and neither
    placed = [(example.id, placement.positions[0]) for example in examples for placement in at]
    same = same_item(OPTIONS, ((*where, response) for where, response in zip(placed, said)), 4)
    assert same.tolist() == [1, 1, 0]
    assert measure_option_bias(OPTIONS, examples, at, said, 0).consistency == pytest.approx(100 * same.mean())
    assert same_item(OPTIONS, [("e", 1, "none"), ("e", 2, "none")], 2).tolist() == [0]
