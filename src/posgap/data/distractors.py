"""Distractors drawn from the gold documents of other questions."""

from collections.abc import Iterator, Sequence

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
        needed = n_docs - len(example.gold)
        drawn: list[Document] = []
        for i in np.random.default_rng([seed, place]).permutation(len(pool)):
            if len(drawn) >= needed:
                break
            if pool[i] not in example.gold and not holds_answer(pool[i], example.answers):
                drawn.append(pool[i])
        yield example.model_copy(update={"distractors": drawn}) if len(drawn) >= needed else None
