"""Synthetic needles beyond one literal statement. Equal arguments give equal examples."""

import random
from collections.abc import Iterator
from string import ascii_uppercase

from posgap.data.synthetic import ATTRIBUTES, place_names
from posgap.foundation.errors import PosgapError
from posgap.tasks.examples import Document, Example
from posgap.tasks.kinds import KINDS
from posgap.tasks.needles import COUNTS
from posgap.tasks.world import names, relations


def fact_examples(n_examples: int, n_docs: int, seed: int) -> Iterator[Example]:
    """Yields examples of `n_docs` documents, each a sentence that says one thing of one person.

    The question asks who it is of whom the first says it, by a fact of the world. All sentences have the verb of the
    question, as far as there are enough of these, so that the verb alone finds nothing; the others follow. A document's
    title is the thing, which no prompt shows. Raises `PosgapError` where there are too few names.
    """
    people, facts = names(), relations()
    if n_docs > len(people):
        raise PosgapError(f"n_docs={n_docs}: there are only {len(people)} names, one for each document")
    rng = random.Random(seed)
    every = [fact for of_verb in facts for fact in of_verb]
    for number in range(1, n_examples + 1):
        gold = rng.choice(every)
        like = [fact for fact in every if fact.verb == gold.verb and fact != gold]
        others = [fact for fact in every if fact.verb != gold.verb]
        shown = [gold, *rng.sample(like, len(like)), *rng.sample(others, len(others))][:n_docs]
        said = [
            Document(title=fact.thing, text=fact.statement(name))
            for fact, name in zip(shown, rng.sample(people, n_docs))
        ]
        answer, _, _ = said[0].text.partition(" ")
        yield Example(
            id=f"facts-{number:05d}",
            question=gold.question,
            answers=[answer],
            gold=said[:1],
            distractors=said[1:],
        )


VALUES = 2  # of a key
CHAIN = 3  # variables that have a number


def value_examples(n_examples: int, n_docs: int, seed: int) -> Iterator[Example]:
    """Yields examples of `n_docs` documents, each with one of two numbers that belong to an invented place.

    The question asks for both numbers of one place, which two documents give. Every other place has two as well, but
    for the last where the documents are odd in number.
    """
    rng = random.Random(seed)
    for number in range(1, n_examples + 1):
        attribute, places = rng.choice(ATTRIBUTES), place_names(rng, (n_docs + 1) // VALUES)
        keys = [place for place in places for _ in range(VALUES)][:n_docs]
        values = rng.sample(range(10**6, 10**7), n_docs)
        documents = [
            Document(title=place, text=f"One {attribute} of {place} is {value}.") for place, value in zip(keys, values)
        ]
        others = documents[VALUES:]
        yield Example(
            id=f"values-{number:05d}",
            question=f"What are the two {attribute}s of {keys[0]}?",
            answers=[str(value) for value in values[:VALUES]],
            gold=documents[:VALUES],
            distractors=rng.sample(others, len(others)),
        )


def chain_examples(n_examples: int, n_docs: int, seed: int) -> Iterator[Example]:
    """Yields examples of `n_docs` documents, each one assignment, as in RULER's variable tracking (Hsieh et al. 2024).

    A chain gives a variable a number, a second one the first, and a third one the second. The question asks for all
    three by the number. The other documents are of further chains, in random order, each in its own order; the last of
    these may be incomplete.
    """
    rng = random.Random(seed)
    for number in range(1, n_examples + 1):
        length = -(-n_docs // CHAIN) * CHAIN
        names: dict[str, None] = {}
        while len(names) < length:
            names["".join(rng.choices(ascii_uppercase, k=5))] = None
        variables, values = list(names), [str(value) for value in rng.sample(range(10**4, 10**5), length // CHAIN)]
        lines = [
            f"VAR {name} = {values[i // CHAIN] if i % CHAIN == 0 else f'VAR {variables[i - 1]}'}"
            for i, name in enumerate(variables)
        ]
        chains = [iter(lines[start : start + CHAIN]) for start in range(CHAIN, length, CHAIN)]
        order = rng.sample([chain for chain in chains for _ in range(CHAIN)], length - CHAIN)
        yield Example(
            id=f"tracking-{number:05d}",
            question=f"Which variables have the value {values[0]}?",
            answers=variables[:CHAIN],
            gold=[Document(title="", text=line) for line in lines[:CHAIN]],
            distractors=[Document(title="", text=next(chain)) for chain in order][: n_docs - CHAIN],
        )


LISTED = 10  # names in a line of `counting`


def count_examples(n_examples: int, n_docs: int, seed: int) -> Iterator[Example]:
    """Yields examples of `n_docs` documents, each a line of ten names, some of them several times.

    In every line one name stands three to seven times, and each other name once. The question asks how often the first
    line lists its name, which no other line has. All lines have the same form, so that repetition alone finds nothing.
    """
    rng, people = random.Random(seed), names()
    for number in range(1, n_examples + 1):
        asked, *others = rng.sample(people, len(people))
        count, lines = rng.choice(COUNTS), []
        for line in range(n_docs):
            often = count if line == 0 else rng.choice(COUNTS)
            repeated, *once = [asked] * (line == 0) + rng.sample(others, LISTED - often + (line != 0))
            lines.append(", ".join(rng.sample([repeated] * often + once, LISTED)) + ".")
        documents = [Document(title="", text=line) for line in lines]
        yield Example(
            id=f"counting-{number:05d}",
            question=f"How many times is {asked} listed?",
            answers=[str(count)],
            gold=documents[:1],
            distractors=documents[1:],
        )


SHOWN = sum(map(len, KINDS.values())) - max(map(len, KINDS.values())) + 1  # most words in an example of `shots`


def shot_examples(n_examples: int, n_docs: int, seed: int) -> Iterator[Example]:
    """Yields examples of `n_docs` documents, each a word with a label, a number that its kind of thing has.

    The question is a word of the kind that the first document shows, and no other one does: the label must be taken
    from there, and no word is shared. Other kinds are shown once each, as far as there are enough of them, and then
    again by other words. Labels are drawn anew for each example.
    """
    rng = random.Random(seed)
    for number in range(1, n_examples + 1):
        gold, *others = rng.sample(list(KINDS), len(KINDS))
        labels = dict(zip([gold, *others], rng.sample(range(10, 100), len(KINDS))))
        shown, asked = rng.sample(KINDS[gold], 2)
        words = {kind: rng.sample(KINDS[kind], len(KINDS[kind])) for kind in others}
        rounds = [(kind, words[kind][turn]) for turn in range(max(map(len, words.values()))) for kind in others]
        documents = [
            Document(title="", text=f"Word: {word}\nLabel: {labels[kind]}")
            for kind, word in [(gold, shown), *rounds][:n_docs]
        ]
        yield Example(
            id=f"shots-{number:05d}",
            question=asked,
            answers=[str(labels[gold])],
            gold=documents[:1],
            distractors=rng.sample(documents[1:], n_docs - 1),
        )


_EVENTS = (
    *("a bridge was closed for repairs", "a new school was opened", "the market hall burned down"),
    *("two trams collided", "a bakery won a prize", "the river rose by two metres", "a clock was stolen"),
    *("the mayor resigned", "a well was dug", "a choir sang for three hours", "the harvest failed"),
    *("a lost dog was found", "the theatre reopened", "a ship ran aground", "the old mill was sold"),
    *("a storm broke many windows", "the library bought a rare map", "a wedding was called off"),
    *("the ferry stopped running", "a treasure was dug up", "the lamps were replaced", "a football match was lost"),
    *("an oak was felled", "a hospital was built"),
)
_MORE = (
    *("It was on a Monday.", "Many people came to see it.", "The paper wrote about it at length."),
    *("Nobody was hurt.", "The costs are not yet known.", "It had been expected for years."),
    *("The council will meet next week.", "An old woman told the reporter about it.", "It rained all day."),
)


def note_examples(n_examples: int, n_docs: int, seed: int) -> Iterator[Example]:
    """Yields examples of `n_docs` documents, each a note on what happened in an invented place, with a file number.

    The answer is the first note's place. All notes have one form: the event, two sentences that say little, and the
    file number, which a copy has and a summary is to leave out.
    """
    rng = random.Random(seed)
    for number in range(1, n_examples + 1):
        places = place_names(rng, n_docs)
        events = [event for _ in range(-(-n_docs // len(_EVENTS))) for event in rng.sample(_EVENTS, len(_EVENTS))]
        files = rng.sample(range(26 * 26 * 9000), n_docs)
        notes = []
        for place, event, file in zip(places, events, files):
            letters, digits = divmod(file, 9000)
            code = f"{ascii_uppercase[letters // 26]}{ascii_uppercase[letters % 26]}-{1000 + digits}"
            more = " ".join(rng.sample(_MORE, 2))
            notes.append(Document(title=place, text=f"In {place} {event}. {more} File number {code}."))
        yield Example(
            id=f"summary-{number:05d}",
            question=f"the {n_docs} notes",
            answers=places[:1],
            gold=notes[:1],
            distractors=notes[1:],
        )
