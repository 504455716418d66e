"""Needles that share no words with their questions, as in NoLiMa (Modarressi et al. 2025): a fact of the world links
them. "Marta lives in Vienna" answers "Who lives in the capital of Austria?".

Three things are known of each fact, in `world_facts.json` beside this module: the verb, what a document says ("in
Vienna"), and how the question calls it ("in the capital of Austria"). The literal control asks with the document's own
words, so both questions have the same documents and the same answer.
"""

import json
import re
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from posgap.foundation.errors import PosgapError, shorten
from posgap.tasks.task import Task, document_writer, one_of_all

FILE = Path(__file__).with_name("world_facts.json")
_GOES_ON = re.compile(r"\n\s*question\s*:", re.IGNORECASE)  # as base models do
_BLANK, _OF_LIST = re.compile(r"\n\s*\n"), re.compile(r"\s*(?:\d{1,2}[.)]\s|[-*•]\s)")


class Fact(NamedTuple):
    """What is said of somebody, "in Vienna" behind the verb "lives", and its `hint`: "in the capital of Austria"."""

    verb: str
    thing: str
    hint: str

    def statement(self, name: str) -> str:
        return f"{name} {self.verb} {self.thing}."

    @property
    def hinted_question(self) -> str:
        """Asks who it is, by a fact of the world."""
        return f"Who {self.verb} {self.hint}?"

    @property
    def literal_question(self) -> str:
        """Asks the same in the words of the statement."""
        return f"Who {self.verb} {self.thing}?"


@cache
def people_names() -> tuple[str, ...]:
    """The people's names, none of which stands in a fact."""
    return tuple(json.loads(FILE.read_text(encoding="utf-8"))["names"])


@cache
def relations() -> tuple[tuple[Fact, ...], ...]:
    """The facts by their verb. Of those with one verb, each hint belongs to one thing alone."""
    by_verb = []
    for relation in json.loads(FILE.read_text(encoding="utf-8"))["relations"]:
        by_verb.append(tuple(Fact(relation["verb"], thing, hint) for thing, hint in relation["things"].items()))
    return tuple(by_verb)


def literal(question: str) -> str:
    """The literal question that asks the same as a question by a fact of the world.

    Raises `PosgapError` where the question is none of `posgap data make facts`.
    """
    fact = _by_question().get(question)
    if fact is None:
        raise PosgapError(
            f"task facts-literal: the question {shorten(repr(question))} is none by a fact of the world; make "
            "examples with `posgap data make facts`"
        )
    return fact.literal_question


@cache
def _by_question() -> dict[str, Fact]:
    return {fact.hinted_question: fact for fact in chain.from_iterable(relations())}


def names_in(response: str) -> str:
    """The names that a response mentions, each once, with commas between: a response that repeats the prompt names what
    the other documents hold too, and so it is told from an answer.

    The first paragraph with a name counts, with the items of a list that follow it, and nothing behind another
    question.
    """
    name = re.compile(rf"\b(?:{'|'.join(people_names())})\b", re.IGNORECASE)
    answer, *_ = _GOES_ON.split(f"\n{response.strip()}")
    once: dict[str, str] = {}
    for paragraph in _BLANK.split(answer):
        if once and not _OF_LIST.match(paragraph):
            break
        for each in name.findall(paragraph):
            once.setdefault(each.casefold(), each)
    return ", ".join(once.values())


FACTS = Task(
    name="facts",
    help="who does it, where a fact of the world alone links question and document",
    template=(
        "Each line below says something about one person. Answer the question by the lines, with the name of the "
        "person alone.\n\n{documents}\n\nQuestion: {question}\nName:"
    ),
    render=document_writer("{text}"),
    metric="set_em",
    max_new_tokens=32,
    chance=one_of_all,
    extract=names_in,
    synthetic="facts",
)
FACTS_LITERAL = replace(
    FACTS, name="facts-literal", help="the same, asked in the document's own words: the control of facts", asked=literal
)
