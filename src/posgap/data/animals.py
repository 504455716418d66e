"""Synthetic questions that one of several sentences answers: which of them is about an animal?"""

import math
import random
from collections.abc import Iterator

from posgap.foundation.errors import PosgapError
from posgap.tasks.examples import Document, Example

YOUNG = {
    **{"bear": "cub", "cat": "kitten", "cow": "calf", "deer": "fawn", "dog": "puppy", "duck": "duckling"},
    **{"eel": "elver", "frog": "tadpole", "goat": "kid", "goose": "gosling", "hen": "chick", "horse": "foal"},
    **{"owl": "owlet", "pig": "piglet", "sheep": "lamb", "swan": "cygnet"},
}
BEFORE = ("The", "That old", "My")
AFTER = ("sleeps.", "runs off.", "waits for us.")
QUESTION = "Which one is about the {}?"


def animal_examples(n_examples: int, n_docs: int, seed: int, hard: float = 0.5) -> Iterator[Example]:
    """Yields examples of `n_docs` sentences, each about another animal, of which the question asks for one.

    Sentences name the animals themselves or, in a share `hard` of the examples, their young. Their lengths differ, and
    say nothing of what is right. All examples are different, and equal arguments give equal ones. Raises `PosgapError`
    where there are too few animals, or too few different examples.
    """
    if not 2 <= n_docs <= len(YOUNG):
        raise PosgapError(f"n_docs={n_docs}: there are sentences about 2 to {len(YOUNG)} animals")
    if n_examples > math.perm(len(YOUNG), n_docs) * (len(BEFORE) * len(AFTER)) ** n_docs // 2:
        raise PosgapError(f"n_examples={n_examples}: that many different examples need more than {n_docs} items")
    rng = random.Random(seed)
    drawn: set[tuple[str, ...]] = set()
    while len(drawn) < n_examples:
        young = rng.random() < hard
        animals = rng.sample(list(YOUNG), n_docs)
        texts = tuple(f"{rng.choice(BEFORE)} {YOUNG[a] if young else a} {rng.choice(AFTER)}" for a in animals)
        if texts in drawn:
            continue
        drawn.add(texts)
        gold, *distractors = (Document(title="", text=text) for text in texts)
        yield Example(
            id=f"choice-{len(drawn):05d}",
            question=QUESTION.format(animals[0]),
            answers=[gold.text],
            gold=[gold],
            distractors=distractors,
        )
