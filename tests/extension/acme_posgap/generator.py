"""A kind of made data: who has which number, among others who have another."""

from pydantic import Field

from posgap.data.generators import Generator
from posgap.foundation.registry import Parameters
from posgap.tasks.examples import Document, Example


class Roll(Parameters):
    step: int = Field(1, ge=1, description="roll: between one number and the next")


def roll(n_examples, n_docs, step, seed):
    for number in range(n_examples):
        first = seed + number
        said = [Document(title=f"p{i}", text=str(first + step * i)) for i in range(n_docs)]
        named = {"id": f"roll-{number}", "question": "p0?", "answers": [said[0].text]}
        yield Example(**named, gold=said[:1], distractors=said[1:])


ROLL = Generator("roll", "numbers in a row", roll, Roll, usual=3)
