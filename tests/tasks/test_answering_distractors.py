"""Distractors that answer the question, by which a position says nothing."""

import random

import pytest
from examples import kv_example, qa_example

from posgap.tasks.answering_distractors import count_answering, count_unjudged
from posgap.tasks.examples import Document, KVExample
from posgap.tasks.registry import TASKS

ANSWERS = Document(title="Physics", text="Röntgen, Wilhelm? Wilhelm Röntgen it was.")


def with_answering(number, at=0):
    """A question among whose distractors one answers, after so many others."""
    known = qa_example(number)
    return known.model_copy(update={"distractors": [*known.distractors[:at], ANSWERS, *known.distractors[at:]]})


def test_only_documents_of_the_prompt_count():
    examples = [with_answering(0), with_answering(1, at=3), qa_example(2)]
    assert count_answering(examples, "sub_em") == (2, 2)
    assert count_answering(examples, "sub_em", n_docs=3) == (1, 1)
    assert count_unjudged(examples, TASKS["qa"], 3) == 1
    assert count_unjudged(examples, TASKS["judge"], 0) == 0, "the items are what is chosen from"


@pytest.mark.parametrize(("shared", "counted"), [(0, 0), (2, 0), (3, 3), (5, 5)])
def test_records_count_where_most_have_the_value(shared, counted):
    known = kv_example(0)
    others = [key for key, _ in known.records if key != known.key][:shared]
    records = [(key, known.value if key in others else value) for key, value in known.records]
    same = known.model_copy(update={"records": records})
    assert count_answering([same], "em") == (counted > 0, counted)


@pytest.mark.parametrize(("values", "least", "most"), [(16, 0, 0), (10**9, 90, 100)], ids=["by chance", "on purpose"])
def test_few_records_of_the_value_count_where_chance_does_not_explain_them(values, least, most):
    draw = random.Random(0)
    examples = []
    for number in range(100):
        records = [(f"{number}-{at}", str(draw.randrange(values))) for at in range(20)]
        (key, value), (other, _), *more = records
        records = records if values == 16 else [records[0], (other, value), *more]
        known = {"id": f"{number}", "question": key, "answers": [value], "key": key, "value": value}
        examples.append(KVExample(**known, records=records))
    assert least <= count_answering(examples, "em")[0] <= most


def test_yes_or_no_tells_nothing():
    known = with_answering(0).model_copy(update={"answers": ["yes"]})
    assert count_answering([known], "sub_em") == (0, 0)
