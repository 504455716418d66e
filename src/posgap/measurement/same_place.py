"""Finds whether wrong answers name the item at one place of the prompt, whichever was asked for: then right answers
with the gold document there may be a habit, and no retrieval."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from posgap.foundation.files import Record
from posgap.measurement.statistics import Count
from posgap.tasks.examples import AnyExample, Document, distractor_texts, gold_texts
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import TextPromptBuilder

MIN_WRONG = 20  # answers needed to report a habit
MIN_SHARE = 0.5  # of the wrong answers that name one place's item


class SamePlace(Record):
    """Wrong answers that name the item at one place."""

    place: int = Field(description="the position, from 1")
    named: Count = Field(description="wrong answers that name the item at this position")
    wrong: Count = Field(description="wrong answers in all")

    @property
    def habit_text(self) -> str:
        """The habit in words, with its meaning."""
        return (
            f"Of {self.wrong} wrong answers {self.named} are the item at position {self.place}, whichever "
            "position was right: correct answers there may come from a habit, not from retrieval."
        )


def find_same_place(
    builder: TextPromptBuilder,
    examples: Sequence[AnyExample],
    placements: Sequence[Placement],
    wrong: Iterable[tuple[str, Sequence[int], str]],
) -> SamePlace | None:
    """Returns the place that most `wrong` answers name (an example's id, the placement's positions, the response); None
    if it is at most half of them, if they are few, or if other candidates are unknown."""
    if placements[0].n_docs < 3 or len(placements[0].positions) != 1:
        return None
    by_id: Mapping[str, AnyExample] = {example.id: example for example in examples}
    at = {tuple(placement.positions): placement for placement in placements}
    places = Counter[int]()
    answers = 0
    last = ""
    texts = dict[str, str]()
    for id, positions, response in wrong:
        example = by_id[id]
        if id != last:  # the answers to an example follow one another
            if not builder.task.candidates(example):
                return None
            last = id
            texts = {text: text.lower() for _, text in [*gold_texts(example), *distractor_texts(example)]}
        answers += 1
        said = _find_texts(texts, response)
        if said:
            places[_find_place(builder.documents(example, at[tuple(positions)]), said)] += 1
    del places[0]
    place, often = max(places.items(), key=lambda item: item[1], default=(0, 0))
    if answers < MIN_WRONG or often <= MIN_SHARE * answers:
        return None
    return SamePlace(place=place, named=often, wrong=answers)


def _find_texts(texts: Mapping[str, str], response: str) -> list[str]:
    """Returns the texts that a response contains, each with its lower-case form, in the response's order."""
    said = response.lower()
    found = [(said.find(lowered), text) for text, lowered in texts.items() if lowered in said]
    return [text for _, text in sorted(found)]


def _find_place(documents: Sequence[Document], said: Sequence[str]) -> int:
    """Returns the place of the document that has the first of these texts found in any; 0 if none has one."""
    places: dict[str, int] = {}
    for place, document in enumerate(documents, start=1):
        places.setdefault(document.text, place)
    return next((places[text] for text in said if text in places), 0)
