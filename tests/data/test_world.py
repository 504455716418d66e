"""Needles that a fact of the world alone links with their question, and their literal control."""

import re
from itertools import product

import pytest
from examples import prompt_text

from posgap.data.config import MakeConfig
from posgap.data.distractors import relevance
from posgap.data.synthetic import fact_examples
from posgap.data.verbs import make
from posgap.foundation.errors import PosgapError
from posgap.measurement.comparability import ALLOWABLE
from posgap.tasks.content import examples_digest
from posgap.tasks.placements import Placement
from posgap.tasks.reading import read_examples
from posgap.tasks.registry import TASKS
from posgap.tasks.world import literal, names_in, people_names, relations

FACTS, CONTROL = TASKS["facts"], TASKS["facts-literal"]
COMMON = {"the", "of", "in", "a", "and", "to", "by", "with", "from", "next"}


def words(text: str, letters: int | None = None) -> set[str]:
    """The words that carry meaning; of each so many letters, so that Greek and Greece count as alike."""
    return {word[:letters] for word in re.findall(r"\w+", text.lower()) if word not in COMMON}


def test_there_are_several_hundred_facts_and_no_name_is_in_any():
    everything = [fact for of_verb in relations() for fact in of_verb]
    assert len(everything) >= 300 and len(people_names()) == len(set(people_names())) >= 100
    assert not [n for n, f in product(people_names(), everything) if n.lower() in words(f"{f.thing} {f.hint}")]


@pytest.mark.parametrize("of_verb", relations(), ids=lambda facts: facts[0].verb)
def test_a_hint_shares_no_word_with_what_documents_say_and_means_one_of_them(of_verb):
    assert len({fact.hint for fact in of_verb}) == len({fact.thing for fact in of_verb}) == len(of_verb)
    assert not [fact for fact in of_verb if words(fact.hint, 4) & words(fact.thing, 4)]
    assert not [pair for pair in product(of_verb, of_verb) if words(pair[0].hint) & words(pair[1].thing)]


def test_only_the_literal_question_is_nearest_to_its_own_document():
    nearest = {True: 0, False: 0}
    for example in fact_examples(60, 10, seed=3):
        documents = [*example.gold, *example.distractors]
        for question, is_literal in ((example.question, False), (literal(example.question), True)):
            gold, *others = relevance(question, documents)
            nearest[is_literal] += gold > max(others)
    assert nearest == {True: 60, False: 0}


def test_examples_have_one_verb_each_name_once_and_one_right_answer(tmp_path):
    make(MakeConfig(kind="facts", out=tmp_path / "f.jsonl", n_examples=40, n_docs=15))
    verbs = {fact.statement("X").split(fact.thing)[0] for of_verb in relations() for fact in of_verb}
    for example in read_examples(tmp_path / "f.jsonl"):
        (gold,), said = example.gold, [*example.gold, *example.distractors]
        people = [document.text.split()[0] for document in said]
        assert len(set(people)) == 15 and set(people) <= set(people_names())
        (verb,) = {v for v in verbs for d in said if d.text.startswith(v.replace("X", d.text.split()[0], 1))}
        assert example.answers == [people[0]] and gold.title not in [d.title for d in example.distractors]
        assert literal(example.question) == f"Who {verb.removeprefix('X ')}{gold.title}?"
    assert [e.question for e in fact_examples(3, 5, 7)] == [e.question for e in fact_examples(3, 5, 7)]
    assert max(len(e.distractors) for e in fact_examples(20, 129, 0)) == 128
    with pytest.raises(PosgapError, match="n_docs=130: there are only 129 names"):
        list(fact_examples(1, 130, 0))


def test_both_tasks_ask_the_same_of_the_same_haystack_and_can_be_compared():
    (example,) = fact_examples(1, 6, seed=1)
    placement = Placement((4,), 6)
    asked, control = prompt_text(FACTS, example, placement), prompt_text(CONTROL, example, placement)
    assert asked.replace(example.question, literal(example.question)) == control != asked
    assert example.gold[0].title not in asked.rpartition("Question:")[2]
    assert example.gold[0].title in CONTROL.closed_book_text(example.question)
    assert FACTS.wording() == CONTROL.wording() and "task" in ALLOWABLE
    assert examples_digest([example], 6)
    with pytest.raises(PosgapError, match="task facts-literal: the question 'Who\\?' is none by a fact of the world"):
        CONTROL.text([], "Who?")


def test_an_answer_is_right_and_an_echo_is_not():
    for example in fact_examples(10, 8, seed=5):
        for position in range(1, 9):
            placement = Placement((position,), 8)
            lines = prompt_text(FACTS, example, placement).split("\n\n")[1]
            right = FACTS.right_answers(example, placement)
            (name,) = right
            for response in (name, f"**{name.upper()}**.", f"{example.gold[0].text}\n\nQuestion: Who else? Zara"):
                assert FACTS.score(response, right) == 1, response
            for response in (lines, lines.replace("\n", " "), f"{name} or {example.distractors[0].text}", "", "Nobody"):
                assert FACTS.score(response, right) == 0, response


@pytest.mark.parametrize(
    ("response", "taken"),
    [
        ("Adele and Agnes, not Adele", "Adele, Agnes"),
        ("It is adele.\nIt is Adele\n\nQuestion: Who? Agnes", "adele"),
        ("Adele\nQuestion: Who is Agnes?", "Adele"),
        ("none", ""),
        ("The names are:\n\n1. Adele\n2. Agnes\n\nThe first is not Aisha.", "Adele, Agnes"),
        ("- Adele\n\n2) Agnes\n\nAisha", "Adele, Agnes"),
        ("Question: Adele?", ""),
    ],
)
def test_what_is_named_before_another_question(response, taken):
    assert names_in(response) == taken
