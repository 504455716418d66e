"""Whether wrong answers name the item at one place of the prompt, whichever was asked for: then what is right with the
gold document there may be a habit, and no retrieval."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from posgap.foundation.files import Record
from posgap.measurement.statistics import Count
from posgap.tasks.examples import AnyExample, Document
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import TextPromptBuilder

MIN_WRONG = 20  # answers of which a habit is said
MIN_SHARE = 0.5  # of the wrong answers that name one place's item


class SamePlace(Record):
    """Wrong answers that name the item at one place."""

    place: int = Field(description="which, from 1")
    named: Count = Field(description="how many wrong answers name its item")
    wrong: Count = Field(description="how many are wrong")

    @property
    def habit_text(self) -> str:
        """It in words, with what it means."""
        return (
            f"Of {self.wrong} wrong answers {self.named} are the item at position {self.place}, whichever was asked "
            "for: what is right there may be a habit, and no retrieval."
        )


def find_same_place(
    builder: TextPromptBuilder,
    examples: Sequence[AnyExample],
    placements: Sequence[Placement],
    wrong: Iterable[tuple[str, Sequence[int], str]],
) -> SamePlace | None:
    """The place whose item most of the `wrong` answers name (an example's id, the placement's positions, the response);
    None where it is half of them or fewer, where they are few, or where nobody knows what else a response could name.
    """
    if placements[0].n_docs < 3 or len(placements[0].positions) != 1:
        return None
    by_id: Mapping[str, AnyExample] = {example.id: example for example in examples}
    at = {tuple(placement.positions): placement for placement in placements}
    places, answers = Counter[int](), 0
    for id, positions, response in wrong:
        example = by_id[id]
        if not builder.task.candidates(example):
            return None
        answers += 1
        places[_find_place(builder.documents(example, at[tuple(positions)]), response)] += 1
    del places[0]
    place, often = max(places.items(), key=lambda item: item[1], default=(0, 0))
    if answers < MIN_WRONG or often <= MIN_SHARE * answers:
        return None
    return SamePlace(place=place, named=often, wrong=answers)


def _find_place(documents: Sequence[Document], response: str) -> int:
    """The place of the document whose text the response has first; 0 where it has none."""
    said = response.lower()
    found = [(said.find(document.text.lower()), place) for place, document in enumerate(documents, start=1)]
    return min((each for each in found if each[0] >= 0), default=(0, 0))[1]
