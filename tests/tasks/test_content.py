"""What makes two examples the same, and what makes them others."""

import pytest
from examples import kv_example, qa_example

from posgap.tasks.content import UNMISTAKABLE, content_key, with_content_keys
from posgap.tasks.examples import Document, Example, KVExample

PASSAGE = Document(title="Nobel Prize", text="The first Nobel Prize in Physics was awarded in 1901 to Wilhelm Röntgen.")
LONG = Example(
    id="qa-1",
    question="Who got the first Nobel prize in physics?",
    answers=["Wilhelm Conrad Röntgen", "Röntgen"],
    gold=[PASSAGE],
    distractors=[Document(title=f"Other {i}", text=f"Nothing to see in {i}.") for i in range(3)],
)


def changed(example, **fields):
    return example.model_copy(update=fields)


@pytest.mark.parametrize(
    "same",
    [
        changed(LONG, id="from-another-file"),
        changed(LONG, distractors=[]),
        changed(LONG, answers=["röntgen", "Wilhelm  Conrad Röntgen", "Röntgen"]),
        changed(LONG, question=" who got the first\tNobel Prize in Physics? "),
        changed(LONG, gold=[changed(PASSAGE, text=PASSAGE.text.replace("ö", "o\u0308"))]),
    ],
    ids=["id", "distractors", "answers", "case and space", "unicode form"],
)
def test_the_same_question_on_the_same_passage_is_the_same_example(same):
    assert content_key(same) == content_key(LONG)


@pytest.mark.parametrize(
    "other",
    [
        changed(LONG, question="Who got the first Nobel prize in chemistry?"),
        changed(LONG, answers=["Röntgen"]),
        changed(LONG, gold=[changed(PASSAGE, text=PASSAGE.text.replace("1901", "1902"))]),
    ],
    ids=["question", "answers", "gold"],
)
def test_another_question_answer_or_passage_is_another_example_whatever_its_id(other):
    assert content_key(other) != content_key(LONG)


def test_short_facts_are_told_apart_by_the_other_documents():
    """Of two-digit keys and one-digit values there are so few that unrelated examples share theirs."""
    one = kv_example(0)
    key, value = one.records[0]
    assert len(key + value) < UNMISTAKABLE
    reordered = changed(one, id="x", records=one.records[::-1])
    other = changed(one, records=[(key, value), *((k, "f") for k, _ in one.records[1:])])
    assert content_key(reordered) == content_key(one) != content_key(other)


def test_a_key_among_records_is_the_same_example_as_documents():
    kv = KVExample(id="a", question="k1", answers=["v"], key="k1", value="v", records=[("k2", "w"), ("k1", "v")])
    as_documents = Example(
        **kv.model_dump(include={"id", "question", "answers"}), gold=kv.gold, distractors=kv.distractors
    )
    assert content_key(as_documents) == content_key(kv)


def test_among_names_those_that_are_known():
    assert with_content_keys([qa_example(1), kv_example(2), kv_example(3)], [content_key(kv_example(3)), "0" * 16]) == [
        kv_example(3)
    ]
