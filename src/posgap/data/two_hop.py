"""Synthetic two-hop questions: who is the contact of a person's contact?"""

import math
import random
from collections.abc import Iterator

from posgap.foundation.errors import PosgapError
from posgap.tasks.examples import Document, Example

PEOPLE = (
    *("Ada", "Ben", "Cid", "Dan", "Eva", "Fay", "Gus", "Hal", "Ian", "Jan", "Kim", "Lea"),
    *("Max", "Ned", "Oda", "Pia", "Qin", "Ray", "Sue", "Tom", "Uma", "Vic", "Wes", "Zoe"),
)
QUESTION = "Who is the contact of {}'s contact?"


def two_hop_examples(n_examples: int, n_docs: int, seed: int) -> Iterator[Example]:
    """Yields examples of `n_docs` documents, each a person (title) and that person's contact (text).

    The contacts form one random cycle over `n_docs` people, so that everyone is somebody's contact and the question
    gives no hint of its answer. All examples are different; equal arguments give equal examples. Raises `PosgapError`
    if there are fewer different examples than that.
    """
    # The cycles, each started at the person in question, times the orders of the distractors.
    if n_examples > math.perm(len(PEOPLE), n_docs) * math.factorial(n_docs - 2):
        raise PosgapError(f"n_examples={n_examples}: that many different examples need more than {n_docs} documents")
    rng = random.Random(seed)
    drawn: set[tuple] = set()
    while len(drawn) < n_examples:
        cycle = rng.sample(PEOPLE, n_docs)
        facts = list(zip(cycle, [*cycle[1:], cycle[0]]))
        gold, distractors = facts[:2], rng.sample(facts[2:], n_docs - 2)
        content = (*gold, *distractors)
        if content in drawn:
            continue
        drawn.add(content)
        yield Example(
            id=f"two-hop-{len(drawn):05d}",
            question=QUESTION.format(cycle[0]),
            answers=[cycle[2]],
            gold=[Document(title=who, text=contact) for who, contact in gold],
            distractors=[Document(title=who, text=contact) for who, contact in distractors],
        )
