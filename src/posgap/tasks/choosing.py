"""Tasks in which a model chooses one of the lettered items of a prompt, and how its choice is read: multiple-choice
questions (`options`), and answers to judge (`judge`).

A sweep puts every item at every letter once, by rotating the items.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from string import ascii_uppercase as LETTERS

from posgap.tasks.examples import AnyExample, Document
from posgap.tasks.metrics import METRICS, RightAnswers, exact_match
from posgap.tasks.placements import Placement
from posgap.tasks.slots import ROTATED, Slots
from posgap.tasks.task import PromptOrder, Task, document_writer, one_of_all, other_texts

_EMPHASIS = str.maketrans("", "", "*_`\"'“”‘’")
# The text around a letter that is set apart: "(B)", "[B]", "[[B]]", "B)", "B.", "B:". Before a word, a letter alone is
# none: "A better answer" and "I think" begin with words.
_VERDICT = r"\[\[\s*([A-Z])\s*\]\]"
_WHOLE_LINE = r"^[\[({]*([A-Z])[\])}.:,;]*$"
_STATED = (
    r"\b(?i:answer|option|choice|choose|pick|verdict|best|better|correct|winner|prefer)\b(?i:\s+(?:is|the|one|would|be"
    r"|answer|option|choice|response|assistant|letter|was|to))*\s*[:=]?\s*[\[(]*([A-Z])(?=$|[\])}.,:;!?\n]|\s*$|\s+[-–—])"
)
_TWO = r"^[\[(]*([A-Z])[\])]*\s*(?:[,/&]|\bor\b|\band\b)[\s\[(]*([A-Z])\b"
_AT_THE_BEGINNING = r"^[\[({]*([A-Z])(?:$|[\])}.:,;]|\s+[-–—])"
_ENCLOSED = r"[\[(]\s*([A-Z])\s*[\])]"
_ALONE = r"(?<![\w'])([A-Z])(?![\w'])"


def chosen_letter(response: str) -> str:
    """The one letter that a response chooses; empty if it chooses none, or more than one.

    A letter counts if it is set apart: as a verdict "[[B]]", as the whole first line, as the stated answer ("The answer
    is B"), at the beginning ("(B)", "B) Paris", "**B**"), in brackets, or as the only letter that stands by itself in
    the first line. The first of these ways that names a letter at all decides.
    """
    plain = unicodedata.normalize("NFKC", response).translate(_EMPHASIS).strip()
    line = plain.partition("\n")[0].strip()
    if re.fullmatch(r"[(\[]?[a-z][)\].:]?", plain):
        plain = line = plain.upper()
    ways: list[Iterable[str]] = [
        re.findall(_VERDICT, plain),
        re.findall(_WHOLE_LINE, line),  # base models go on to write questions of their own
        re.findall(_STATED, plain, re.MULTILINE),
        chain.from_iterable(re.findall(_TWO, line)),
        re.findall(_AT_THE_BEGINNING, line),
        re.findall(_ENCLOSED, plain),
        # "A" and "I" are words if another word follows.
        re.findall(_ALONE, re.sub(r"\b[AI]\s+(?=[a-z])", "", line)),
    ]
    for letters in map(set, ways):
        if letters:
            return letters.pop() if len(letters) == 1 else ""
    return ""


@dataclass(frozen=True)
class Choosing(Task):
    """A task whose response names an item by its letter, or has its text for a first line.

    The question stands before the items, as is usual, since an item is read with it in mind; with the order "both" it
    is repeated after them.
    """

    slots: Slots = ROTATED
    slot_names: Sequence[str] = LETTERS
    chance: Callable[[int], float] = one_of_all
    candidates: Callable[[AnyExample], list[str]] = other_texts
    extract: Callable[[str], str] = chosen_letter

    def ordered_template(self, order: PromptOrder) -> str:
        return super().ordered_template(order if order.question == "both" else replace(order, question="before"))

    def right_answers(self, example: AnyExample, placement: Placement) -> RightAnswers:
        """Returns what is right at this placement: first the letter of the slot, then the item's text."""
        of_slot = super().right_answers(example, placement)
        return RightAnswers([*of_slot, *example.answers], of_slot.others)

    def score(self, response: str, answers: Sequence[str], metric: str = "") -> float:
        if metric not in ("", self.metric):
            return METRICS[metric].score(response, answers)
        name, *texts = answers
        letter = self.extract(response)
        return letter == name if letter else exact_match(_first_line(response), texts)

    def chosen_slot(self, response: str, items: Sequence[Document]) -> int:
        """Returns the slot, counted from 1, of the letter or item in the response; 0 if it gives none or two."""
        if self.extract(response):
            return super().chosen_slot(response, items)
        said = [slot for slot, item in enumerate(items, start=1) if exact_match(_first_line(response), [item.text])]
        return said[0] if len(said) == 1 else 0


def _first_line(response: str) -> str:
    return response.strip().partition("\n")[0]


OPTIONS = Choosing(
    name="options",
    help="a multiple-choice question",
    template=(
        "Choose the right option of the following multiple-choice question, and reply with its letter alone.\n\n"
        "{documents}\n\nQuestion: {question}\nAnswer:"
    ),
    render=document_writer("{letter}. {text}"),
    metric="em",
    max_new_tokens=32,
    synthetic="choice",
)
JUDGE = Choosing(
    name="judge",
    help="the best of two or more answers to a question, which the model judges",
    template=(
        "Compare the answers to the following question, and choose the best one. Neither the order of the answers nor "
        "their length says which is better. Reply with the letter of the best answer alone.\n\n"
        "{documents}\n\nQuestion: {question}\nBest answer:"
    ),
    render=document_writer("Answer {letter}:\n{text}", "\n\n"),
    metric="em",
    max_new_tokens=32,
    synthetic="choice",
)
