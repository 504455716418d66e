"""What a judge is asked about a response."""

import re
from importlib import resources
from typing import NamedTuple, Self

from posgap.foundation.files import digest_of
from posgap.tasks.examples import AnyExample
from posgap.tasks.fields import JUDGE_PLACES

_DIGITS = 12  # of the number in a tag


class JudgedResponse(NamedTuple):
    """A response, and what the judge is shown beside it: nothing of the documents, or of where they stood."""

    question: str
    answers: tuple[str, ...]
    response: str

    @classmethod
    def from_example(cls, example: AnyExample, response: str) -> Self:
        """What a judge is shown of an example and a response to it."""
        return cls(example.question, tuple(example.answers), response)


def own_prompt() -> str:
    """The prompt that is used unless another is given: `templates/judge_prompt.txt`."""
    return resources.files("posgap.grading").joinpath("templates/judge_prompt.txt").read_text(encoding="utf-8")


def judge_prompt(template: str, judged: JudgedResponse, response_first: bool) -> str:
    """The prompt that asks about a response, with the reference answers or with the response first.

    What is shown stands between tags whose number is a digest of all of it, so that no response can have its own
    closing tag in it; and what looks like a place of the template in a response stays as it is.
    """
    number = digest_of(judged)[:_DIGITS]
    references = _between("references", number, "\n".join(f"- {answer}" for answer in judged.answers))
    response = _between("response", number, judged.response)
    shown = {
        "{question}": _between("question", number, judged.question),
        "{first}": response if response_first else references,
        "{second}": references if response_first else response,
    }
    return re.sub("|".join(map(re.escape, JUDGE_PLACES)), lambda place: shown[place[0]], template)


def _between(name: str, number: str, text: str) -> str:
    return f"<{name}-{number}>\n{text}\n</{name}-{number}>"
