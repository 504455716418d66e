"""Distractors from the other questions' passages."""

from collections.abc import Iterator, Sequence

import numpy as np

from posgap.data.passage_readers import holds_answer
from posgap.tasks.examples import Document, Example


def with_distractors(examples: Sequence[Example], n_docs: int, seed: int) -> Iterator[Example | None]:
    """Yields each example with `n_docs` documents, its own gold ones and drawn distractors.

    They are drawn without replacement from the gold documents of all examples, never one of the
    example's own and never one that contains an answer of it (both normalised). What an example
    draws depends on the seed, its place and the pool alone. None where the pool is too small for it:
    an answer like "A" is contained in every passage.
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
