"""Distractors drawn from the gold documents of other questions."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np

from posgap.tasks.examples import Document, Example
from posgap.tasks.metrics import holds_answer


def with_distractors(examples: Sequence[Example], n_docs: int, seed: int) -> Iterator[Example | None]:
    """Yields each example with `n_docs` documents: its own gold documents, and distractors drawn for it.

    Distractors are drawn without replacement from the gold documents of all examples, except the example's own and
    those that contain one of its answers (both normalised). The draw depends only on the seed, the example's place
    and the pool. Yields None for an example that has too few candidates: an answer like "A", for instance, is
    contained in every passage.
    """
    pool = list(dict.fromkeys(document for example in examples for document in example.gold))
    for place, example in enumerate(examples):
        order = np.random.default_rng([seed, place]).permutation(len(pool))
        drawn = first_distractors((pool[i] for i in order), example, n_docs)
        yield None if drawn is None else example.model_copy(update={"distractors": drawn})


def first_distractors(documents: Iterable[Document], example: Example, n_docs: int) -> list[Document] | None:
    """The first documents that are no gold ones and hold no answer, so many that a prompt has `n_docs` with the gold
    ones; None where there are too few."""
    usable = (each for each in documents if each not in example.gold and not holds_answer(each, example.answers))
    needed = n_docs - len(example.gold)
    found = list(islice(usable, max(0, needed)))
    return found if len(found) >= needed else None
