"""Distractors that answer the question: at whichever position the gold document stands, another one answers as well."""

import math
from collections import Counter
from collections.abc import Iterable

from posgap.tasks.examples import AnyExample, KVExample, RankedExample
from posgap.tasks.metrics import holds_answer, normalize
from posgap.tasks.task import Task

MOST = 5.0  # percent of the examples in which a distractor may answer, if positions are to be judged


def count_answering(examples: Iterable[AnyExample], metric: str, n_docs: int = 0) -> tuple[int, int]:
    """Returns in how many examples a distractor holds an answer by this metric, and how many do so in all.

    Counts those that a prompt of `n_docs` documents takes; 0: all. Answers of yes or no tell nothing. A few records of
    a key-value example can share a value by chance; they count if most have the requested value, and examples with
    fewer count as far as chance does not explain their number.
    """
    in_examples, in_all = 0, 0
    examples = list(examples)
    for example in examples:
        if is_yes_or_no(example):
            continue
        if isinstance(example, KVExample):
            shared = sum(value == example.value for key, value in example.records if key != example.key)
            number = shared if 2 * shared >= len(example.records) else 0
        else:
            taken = example.distractors[: n_docs - len(example.gold)] if n_docs else example.distractors
            number = sum(holds_answer(document, example.answers, metric) for document in taken)
        in_examples += number > 0
        in_all += number
    beyond_chance = _shared_beyond_chance([each for each in examples if isinstance(each, KVExample)])
    return max(in_examples, beyond_chance), max(in_all, beyond_chance)


def _shared_beyond_chance(examples: list[KVExample]) -> int:
    """In how many examples another record has the asked value, less those expected if values were drawn as they occur
    in all records together, and three standard deviations."""
    counts = Counter(value for example in examples for _, value in example.records)
    total = counts.total()
    equal = sum((count / total) ** 2 for count in counts.values())
    found, expected, variance = 0, 0.0, 0.0
    for example in examples:
        found += any(value == example.value for key, value in example.records if key != example.key)
        chance = 1 - (1 - equal) ** (len(example.records) - 1)
        expected += chance
        variance += chance * (1 - chance)
    return max(0, math.floor(found - expected - 3 * math.sqrt(variance)))


def is_yes_or_no(example: AnyExample) -> bool:
    """Returns whether an answer is yes or no, which no document contains word for word."""
    return not {"yes", "no"}.isdisjoint(map(normalize, example.answers))


def describe_answering(examples: Iterable[AnyExample], task: Task, n_docs: int) -> str:
    """Says in how many examples of a prompt of `n_docs` documents a distractor answers; empty if in none."""
    listed = list(examples)
    among = count_unjudged(listed, task, n_docs)
    return f"in {among} of {len(listed)} examples a distractor holds an answer" if among else ""


def count_unjudged(examples: Iterable[AnyExample], task: Task, n_docs: int) -> int:
    """Returns the number of examples in which a distractor of the prompt holds an answer. Passages that were judged not
    to answer, and items to choose from, do not count."""
    judged = {"id", "label"}
    unjudged = [each for each in examples if not (isinstance(each, RankedExample) and each.relevance in judged)]
    return 0 if task.slot_names else count_answering(unjudged, task.metric, n_docs)[0]
