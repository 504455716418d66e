"""Synthetic needle retrieval: the question asks for a number that one document among many states."""

import random
from collections.abc import Iterator

from posgap.foundation.errors import PosgapError
from posgap.tasks.examples import Document, Example

ATTRIBUTES = (
    *("access code", "archive number", "catalogue number", "customs number", "dispatch code", "filing number"),
    *("inspection number", "permit number", "radio call number", "registry number", "serial number", "vault code"),
)
_ONSETS = ("b", "br", "d", "dr", "f", "g", "k", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "z")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")
_KINDS = ("abbey", "archive", "bridge", "depot", "harbour", "library", "mill", "observatory", "station", "tower")


def needle_examples(
    n_examples: int, n_docs: int, facts: int, digits: int, seed: int, needles: int = 1
) -> Iterator[Example]:
    """Yields examples of `n_docs` documents, each of `facts` statements about an invented place.

    A statement gives one attribute of the place as a number of `digits` digits. The question asks for one attribute
    of one place, or for one of each of several, all of which are then the answers. All other statements have the same
    form, so place and attribute are both needed to find the number. Numbers are distinct within an example. Equal
    arguments give equal examples. Raises `PosgapError` if there are too few numbers of that many digits, or too few
    documents.
    """
    if needles > n_docs:
        raise PosgapError(f"needles={needles}: more than the {n_docs} documents")
    if n_docs * facts > 9 * 10 ** (digits - 1) // 2:
        raise PosgapError(f"digits={digits}: too few numbers for {n_docs} documents of {facts} facts")
    rng = random.Random(seed)
    for number in range(1, n_examples + 1):
        places: dict[str, None] = {}
        while len(places) < n_docs:
            places[_place(rng)] = None
        values = rng.sample(range(10 ** (digits - 1), 10**digits), n_docs * facts)
        statements = [dict(zip(rng.sample(ATTRIBUTES, facts), values[i::n_docs])) for i in range(n_docs)]
        documents = [
            Document(title=place, text=" ".join(f"The {a} of {place} is {v}." for a, v in attributes.items()))
            for place, attributes in zip(places, statements)
        ]
        attributes = [rng.choice(list(statements[i])) for i in range(needles)]
        asked = ", and the ".join(f"{attribute} of {d.title}" for attribute, d in zip(attributes, documents))
        yield Example(
            id=f"needle-{number:06d}",
            question=f"What {'is' if needles == 1 else 'are'} the {asked}?",
            answers=[str(statements[i][attribute]) for i, attribute in enumerate(attributes)],
            gold=documents[:needles],
            distractors=documents[needles:],
        )


def _place(rng: random.Random) -> str:
    name = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.randint(2, 3)))
    return f"{name.capitalize()} {rng.choice(_KINDS)}"
