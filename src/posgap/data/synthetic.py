"""Synthetic examples: key-value records, needles among invented facts, two-hop questions, items to choose from.

Equal arguments give equal examples.
"""

import math
import random
from collections.abc import Iterator
from uuid import UUID

from posgap.foundation.errors import PosgapError
from posgap.tasks.examples import Document, Example, KVExample


def uuid_records(n_examples: int, n_docs: int, seed: int) -> Iterator[dict]:
    """Yields `{"ordered_kv_records": [[key, value], ...], "key": ..., "value": ...}`.

    Keys and values are random version-4 UUIDs, distinct within an example; the queried record is drawn evenly. Equal
    arguments give equal records.
    """
    rng = random.Random(seed)

    def uuid4() -> str:
        return str(UUID(int=rng.getrandbits(128), version=4))

    for _ in range(n_examples):
        records: dict[str, str] = {}
        while len(records) < n_docs:
            records[uuid4()] = uuid4()
        key = rng.choice(list(records))
        yield {"ordered_kv_records": [list(r) for r in records.items()], "key": key, "value": records[key]}


def uuid_examples(n_examples: int, n_docs: int, seed: int) -> Iterator[KVExample]:
    """Yields the same records as examples."""
    for number, row in enumerate(uuid_records(n_examples, n_docs, seed), start=1):
        key = row["key"]
        value = row["value"]
        records = row["ordered_kv_records"]
        yield KVExample(id=f"kv-{number:05d}", question=key, answers=[value], key=key, value=value, records=records)


ATTRIBUTES = (
    *("access code", "archive number", "catalogue number", "customs number", "dispatch code", "filing number"),
    *("inspection number", "permit number", "radio call number", "registry number", "serial number", "vault code"),
)
_ONSETS = ("b", "br", "d", "dr", "f", "g", "k", "l", "m", "n", "p", "r", "s", "st", "t", "tr", "v", "z")
_VOWELS = ("a", "e", "i", "o", "u", "ai", "ou")
_KINDS = ("abbey", "archive", "bridge", "depot", "harbour", "library", "mill", "observatory", "station", "tower")


def needle_examples(n_examples: int, n_docs: int, facts: int, digits: int, seed: int) -> Iterator[Example]:
    """Yields examples of `n_docs` documents, each of `facts` statements about an invented place.

    A statement gives one attribute of the place as a number of `digits` digits. The question asks for one attribute
    of one place. All other statements have the same form, so place and attribute are both needed to find the number.
    Numbers are distinct within an example. Equal arguments give equal examples. Raises `PosgapError` if there are too
    few numbers of that many digits.
    """
    if n_docs * facts > 9 * 10 ** (digits - 1) // 2:
        raise PosgapError(f"digits={digits}: too few numbers for {n_docs} documents of {facts} facts")
    rng = random.Random(seed)
    for number in range(1, n_examples + 1):
        places = place_names(rng, n_docs)
        values = rng.sample(range(10 ** (digits - 1), 10**digits), n_docs * facts)
        statements = [dict(zip(rng.sample(ATTRIBUTES, facts), values[i::n_docs])) for i in range(n_docs)]
        documents: list[Document] = []
        for place, stated in zip(places, statements):
            text = " ".join(f"The {attribute} of {place} is {value}." for attribute, value in stated.items())
            documents.append(Document(title=place, text=text))
        attribute = rng.choice(list(statements[0]))
        yield Example(
            id=f"needle-{number:06d}",
            question=f"What is the {attribute} of {places[0]}?",
            answers=[str(statements[0][attribute])],
            gold=documents[:1],
            distractors=documents[1:],
        )


def place_names(rng: random.Random, number: int) -> list[str]:
    """Returns this number of invented places, all different."""
    places: dict[str, None] = {}
    while len(places) < number:
        name = "".join(rng.choice(_ONSETS) + rng.choice(_VOWELS) for _ in range(rng.randint(2, 3)))
        places[f"{name.capitalize()} {rng.choice(_KINDS)}"] = None
    return list(places)


PEOPLE = (
    *("Ada", "Ben", "Cid", "Dan", "Eva", "Fay", "Gus", "Hal", "Ian", "Jan", "Kim", "Lea"),
    *("Max", "Ned", "Oda", "Pia", "Qin", "Ray", "Sue", "Tom", "Uma", "Vic", "Wes", "Zoe"),
)
CONTACT_QUESTION = "Who is the contact of {}'s contact?"


def two_hop_examples(n_examples: int, n_docs: int, seed: int) -> Iterator[Example]:
    """Yields examples of `n_docs` documents, each a person (title) and that person's contact (text).

    The contacts form one random cycle over `n_docs` people, so that everyone is somebody's contact and the question
    gives no hint of its answer. All examples are different, and no two ask for the same answer by the same question
    until all such pairs have been drawn. Equal arguments give equal examples. Raises `PosgapError` if there are fewer
    different examples than that.
    """
    # The cycles, each started at the person in question, times the orders of the distractors.
    if n_examples > math.perm(len(PEOPLE), n_docs) * math.factorial(n_docs - 2):
        raise PosgapError(f"n_examples={n_examples}: so many different examples need more than {n_docs} documents")
    rng = random.Random(seed)
    drawn = set[tuple]()
    asked = set[tuple[str, str]]()
    while len(drawn) < n_examples:
        cycle = rng.sample(PEOPLE, n_docs)
        facts = list(zip(cycle, [*cycle[1:], cycle[0]]))
        gold = facts[:2]
        distractors = rng.sample(facts[2:], n_docs - 2)
        content = (*gold, *distractors)
        asks = (cycle[0], cycle[2])
        if content in drawn or (asks in asked and len(asked) < math.perm(len(PEOPLE), 2)):
            continue
        drawn.add(content)
        asked.add(asks)
        documents = [Document(title=who, text=contact) for who, contact in content]
        yield Example(
            id=f"two-hop-{len(drawn):05d}",
            question=CONTACT_QUESTION.format(cycle[0]),
            answers=[cycle[2]],
            gold=documents[:2],
            distractors=documents[2:],
        )


YOUNG = {
    **{"bear": "cub", "cat": "kitten", "cow": "calf", "deer": "fawn", "dog": "puppy", "duck": "duckling"},
    **{"eel": "elver", "frog": "tadpole", "goat": "kid", "goose": "gosling", "hen": "chick", "horse": "foal"},
    **{"owl": "owlet", "pig": "piglet", "sheep": "lamb", "swan": "cygnet"},
}
BEFORE = ("The", "That old", "My")
AFTER = ("sleeps.", "runs off.", "waits for us.")
ANIMAL_QUESTION = "Which one is about the {}?"


def animal_examples(n_examples: int, n_docs: int, seed: int) -> Iterator[Example]:
    """Yields examples of `n_docs` sentences, each about another animal; the question asks for one of them.

    Sentences name the animals themselves or, in half of the examples, their young, like foal for horse. Their lengths
    differ, and do not give away the right one. All examples are different, and no right sentence is reused until all
    have been drawn. Equal arguments give equal examples. Raises `PosgapError` if there are too few animals, or too few
    different examples.
    """
    if not 2 <= n_docs <= len(YOUNG):
        raise PosgapError(f"n_docs={n_docs}: there are sentences about 2 to {len(YOUNG)} animals")
    if n_examples > math.perm(len(YOUNG), n_docs) * (len(BEFORE) * len(AFTER)) ** n_docs // 2:
        raise PosgapError(f"n_examples={n_examples}: so many different examples need more than {n_docs} items")
    rng = random.Random(seed)
    drawn = set[tuple[str, ...]]()
    right = set[str]()
    sentences = 2 * len(YOUNG) * len(BEFORE) * len(AFTER)
    while len(drawn) < n_examples:
        young = rng.random() < 0.5
        animals = rng.sample(list(YOUNG), n_docs)
        texts = tuple(f"{rng.choice(BEFORE)} {YOUNG[a] if young else a} {rng.choice(AFTER)}" for a in animals)
        if texts in drawn or (texts[0] in right and len(right) < sentences):
            continue
        drawn.add(texts)
        right.add(texts[0])
        gold, *distractors = (Document(title="", text=text) for text in texts)
        yield Example(
            id=f"choice-{len(drawn):05d}",
            question=ANIMAL_QUESTION.format(animals[0]),
            answers=[gold.text],
            gold=[gold],
            distractors=distractors,
        )


def favorite_examples(n_examples: int, n_docs: int, seed: int) -> Iterator[Example]:
    """Yields questions for one person's favorite animal, among `n_docs` sentences about as many people."""
    friends, favorites = FRIENDS.split(), FAVORITES.split()
    if not 2 <= n_docs <= len(friends):
        raise PosgapError(f"n_docs={n_docs}: there are sentences about 2 to {len(friends)} people")
    rng = random.Random(seed)
    for number in range(n_examples):
        people = rng.sample(friends, n_docs)
        animals = rng.sample(favorites, n_docs)
        texts = [f"The favorite animal of {person} is the {animal}." for person, animal in zip(people, animals)]
        gold, *distractors = [Document(title=person, text=text) for person, text in zip(people, texts)]
        yield Example(
            id=f"favorite-{seed}-{number}",
            question=f"What is the favorite animal of {people[0]}?",
            answers=animals[:1],
            gold=[gold],
            distractors=distractors,
        )


FRIENDS = (
    "Anna Ben Carla David Emma Frank Grace Henry Ivan Julia Kevin Laura Mark Nina Oscar Paula Quinn Rosa Sam Tina "
    "Victor Wendy Xavier Yara Zoe Alice Bob Clara Daniel Eva"
)
FAVORITES = (
    "tiger horse rabbit eagle dolphin turtle camel zebra monkey lion wolf bear fox whale shark owl duck goose swan "
    "frog snake spider sheep goat donkey panda koala otter beaver parrot"
)
