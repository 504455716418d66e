"""Needles of other shapes: what their examples hold, and that answers are right and echoes are not."""

import re

import pytest
from conftest import qa_example

from posgap.data.config import MakeConfig
from posgap.data.made import made_examples
from posgap.data.needles import SHOWN, chain_examples, count_examples, note_examples, shot_examples, value_examples
from posgap.data.verbs import make
from posgap.foundation.errors import PosgapError
from posgap.tasks.kinds import KINDS
from posgap.tasks.mentions import mentioned, numbers
from posgap.tasks.metrics import METRICS
from posgap.tasks.needles import cited
from posgap.tasks.placements import Placement
from posgap.tasks.reading import read_examples
from posgap.tasks.registry import TASKS


def lines_of(prompt: str) -> str:
    """What stands in a prompt between the instruction and the question."""
    return prompt.split("\n\n")[1]


@pytest.mark.parametrize(
    ("response", "taken"),
    [
        ("12 and 345, not 12", "12, 345"),
        ("The code is 7.\nIt is 7\n\nQuestion: What is 8? 9", "7"),
        ("7\nQuestion: What is 8?", "7"),
        ("7\n 8", "7, 8"),
        ("none", ""),
        ("The numbers are:\n\n1. 123\n2. 456\n\nThe first is not 789.", "123, 456"),
        ("1. 123\n\n2) 456\n\n- 789\n\n5", "123, 456, 789"),
        ("12. It is.", ""),
        ("It is 12.", "12"),
        ("Question: 3?", ""),
    ],
)
def test_what_is_named_before_another_question(response, taken):
    assert numbers(response) == taken
    assert mentioned("[a-z]")("bab") == "b, a"


def test_a_set_is_all_of_the_answers_and_nothing_else():
    score = METRICS["set_em"].score
    for response, right in {"2, 1": 1, "1\n2": 1, "1,2,2": 1, "1": 0, "1, 2, 3": 0, "": 0, ", ": 0, "1 2": 0}.items():
        assert score(response, ["1", "2"]) == right, response
    assert score("The Abbey", ["abbey"]) and not score("x", [])


def test_every_key_has_two_values_and_one_question_asks_for_both(tmp_path):
    make(MakeConfig(kind="values", out=tmp_path / "v.jsonl", n_examples=20, n_docs=9))
    for example in read_examples(tmp_path / "v.jsonl"):
        stated = [re.fullmatch(r"One (.+) of (.+) is (\d{7})\.", d.text) for d in [*example.gold, *example.distractors]]
        assert len(stated) == len({found[3] for found in stated}) == 9 and len({found[1] for found in stated}) == 1
        places = [found[2] for found in stated]
        assert sorted(places.count(place) for place in set(places)) == [1, 2, 2, 2, 2]
        asked = re.fullmatch(r"What are the two (.+)s of (.+)\?", example.question)
        assert example.answers == [found[3] for found in stated if found[2] == asked[2]] and len(example.answers) == 2
    assert list(value_examples(2, 6, 3)) == list(value_examples(2, 6, 3)) != list(value_examples(2, 6, 4))


def resolved(lines: list[str]) -> dict[str, str]:
    """The value of each variable, by brute force: assignments are repeated until nothing is left to find."""
    values: dict[str, str] = {}
    assigned = [re.fullmatch(r"VAR ([A-Z]{5}) = (?:VAR )?(\w+)", line).groups() for line in lines]
    for _ in lines:
        for name, value in assigned:
            if value.isdigit() or value in values:
                values[name] = values.get(value, value)
    return values


@pytest.mark.parametrize("n_docs", [3, 8, 20])
def test_the_answers_are_the_variables_that_have_the_number(n_docs):
    for example in chain_examples(20, n_docs, seed=n_docs):
        lines = [document.text for document in [*example.gold, *example.distractors]]
        values, (asked,) = resolved(lines), re.findall(r"\d+", example.question)
        assert len(lines) == len(set(lines)) == len(values) == n_docs
        assert example.answers == [name for name, value in values.items() if value == asked] and len(example.gold) == 3
        assert not [a for a in example.answers if a in example.question]
        # Other chains run forward as the gold one does, and most are as long.
        for i, line in enumerate(lines[3:]):
            if "VAR" in line.partition("=")[2]:
                assert f"VAR {line.rpartition(' ')[2]} = " in "".join(lines[3 : 3 + i])
    assert list(chain_examples(2, 8, 3)) == list(chain_examples(2, 8, 3)) != list(chain_examples(2, 8, 4))


RIGHT = {
    "values": lambda a: ["{} and {}".format(*a), "The codes are {1}, {0}.".format(*a)],
    "tracking": lambda a: [", ".join(a), "VAR {2}, VAR {0} and VAR {1}".format(*a)],
    "cite": lambda a: [a[0], f"[{a[0]}]", f"Document [{a[0]}] says that it is 1234567.", f"Document {a[0]}"],
    "counting": lambda a: [
        a[0],
        f"The name is listed {a[0]} times.",
        f"{a[0]}\nQuestion: How many times is Anna listed? 9",
    ],
    "shots": lambda a: [a[0], f"Label: {a[0]}", f"The label of the word is {a[0]}."],
    "summary": lambda a: [f"In {a[0]} there was news.", f"Much happened, in {a[0]} and elsewhere. See AB-1234."],
    "turns": lambda a: [a[0], f"The number is {a[0]}.\nUser: Thanks.\n\nUser: And 12?"],
}


@pytest.mark.parametrize(("name", "n_docs"), [(name, 8) for name in RIGHT])
def test_an_answer_is_right_at_every_placement_and_an_echo_at_none(name, n_docs):
    task = TASKS[name]
    for example in made_examples(task, 3, n_docs, seed=1):
        for placement in task.placements(n_docs):
            right = task.answers(example, placement)
            shown = lines_of(task.prompt(example, placement))
            for response in RIGHT[name](right):
                assert task.score(response, right) == 1, response
            assert task.score(task.right_response(example, placement), right) == 1
            wrong = [shown, shown.replace("\n", " "), "", "I do not know."]
            if len(right) > 1:
                wrong += right  # a part is not the whole
            for response in wrong:
                assert task.score(response, right) == 0, response


def test_one_demonstration_alone_shows_the_kind_of_the_word_asked_for():
    kind_of = {word: kind for kind, words in KINDS.items() for word in words}
    assert len(kind_of) == sum(map(len, KINDS.values()))  # no word is of two kinds
    for n_docs in (2, 24, SHOWN):
        for example in shot_examples(10, n_docs, seed=4):
            texts = [document.text for document in [*example.gold, *example.distractors]]
            shown = [re.fullmatch(r"Word: (\w+)\nLabel: (\d\d)", text).groups() for text in texts]
            words, labels = zip(*shown)
            assert len(set(words)) == n_docs and example.question not in words
            of_kind = [label for word, label in shown if kind_of[word] == kind_of[example.question]]
            assert of_kind == example.answers == [labels[0]]
            by_kind = {kind_of[word]: label for word, label in shown}
            assert all(by_kind[kind_of[word]] == label for word, label in shown)
            assert len(set(by_kind.values())) == len(by_kind) == min(n_docs, len(KINDS))
    # No word has a part in common with the name of its kind, or with a word of it, so that reading alone finds nothing.
    assert not [word for word, kind in kind_of.items() if word.casefold() in kind or kind in word.casefold()]
    assert list(shot_examples(2, 6, 3)) == list(shot_examples(2, 6, 3)) != list(shot_examples(2, 6, 4))


def test_every_note_has_one_form_and_a_place_and_a_number_of_its_own():
    for example in note_examples(5, 60, seed=5):
        notes = [*example.gold, *example.distractors]
        matched = [
            re.fullmatch(r"In (\w+ \w+) (.+?)\. .+\. .+\. File number ([A-Z]{2}-\d{4})\.", n.text) for n in notes
        ]
        assert len({found[1] for found in matched}) == len({found[3] for found in matched}) == 60
        assert example.answers == [matched[0][1]]
    assert list(note_examples(2, 6, 3)) == list(note_examples(2, 6, 3)) != list(note_examples(2, 6, 4))


def test_all_mentions_of_a_counted_name_stand_in_one_line():
    for example in count_examples(40, 9, seed=2):
        asked = re.fullmatch(r"How many times is (\w+) listed\?", example.question)[1]
        lines = [re.findall(r"\w+", document.text) for document in [*example.gold, *example.distractors]]
        assert [line.count(asked) for line in lines] == [int(example.answers[0])] + [0] * 8
        for line in lines:  # of one form: one name several times, the others once
            most, *others = sorted((line.count(name) for name in set(line)), reverse=True)
            assert len(line) == 10 and most in range(3, 8) and set(others) == {1}
    assert {e.answers[0] for e in count_examples(40, 1, 2)} == set("34567")
    assert list(count_examples(2, 6, 3)) == list(count_examples(2, 6, 3)) != list(count_examples(2, 6, 4))


def test_a_citation_names_where_the_document_stands():
    example, task = qa_example(0), TASKS["cite"]
    n_docs = 1 + len(example.distractors)
    for placement in task.placements(n_docs):
        (number,) = task.answers(example, placement)
        assert f"Document [{number}](Title: {example.gold[0].title})" in task.prompt(example, placement)
        assert [task.score(f"[{n}]", [number]) for n in range(1, n_docs + 1)].count(1) == 1
    with pytest.raises(PosgapError, match="task cite: 1000 documents, of which only 999 have a name"):
        task.placements(1000)
    said = {"[3]": "3", "Document 12.": "12", "[2] and [3]": "2, 3", "In 1969 it was [4]": "4", "In 1969": ""}
    assert {response: cited(response) for response in said} == said


def test_a_conversation_has_one_document_a_turn():
    (example,) = made_examples(TASKS["turns"], 1, 4, seed=0)
    prompt = TASKS["turns"].prompt(example, Placement((3,), 4))
    said = re.findall(r"^User: (.*)$", prompt, re.MULTILINE)
    assert said[2] == example.gold[0].text and said[-1] == example.question and len(said) == 5
    assert prompt.count("Assistant:") == 5 and prompt.endswith("Assistant:")
