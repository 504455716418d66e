"""The two-hop tasks, in wordings of our own, and the final answer in a chain of thought."""

import re

from posgap.tasks.task import Task, search_results

MARKER = "The answer is"

_STATED = re.compile(rf"\b{MARKER}\b", re.IGNORECASE)
_STOP = re.compile(r"[.!?][\"'”’*)]*\s+(?=(\S+))")
_INITIALS = re.compile(r"(\w\.)*[A-Z]")
_ABBREVIATIONS = {
    *("Bros", "Capt", "Co", "Col", "Corp", "Dr", "Ft", "Gen", "Gov", "Hon", "Inc", "Jr", "Lt", "Ltd", "Maj", "Messrs"),
    *("Mr", "Mrs", "Ms", "Mt", "Prof", "Rep", "Rev", "Sen", "Sgt", "Sr", "St", "vs"),
}
_OPENERS = {
    *("A", "An", "And", "As", "Because", "But", "He", "Hence", "Her", "His", "However", "I", "In", "It", "Its", "She"),
    *("So", "That", "The", "Therefore", "They", "This", "Thus"),
}


def final_answer(response: str) -> str:
    """The text after the last "The answer is", up to the end of its sentence or line; "" if the phrase does not occur.

    Surrounding quotes and asterisks and the final full stop are removed. A full stop inside an answer
    ("J. R. R. Tolkien", "3.5", "Warner Bros. Records") does not end the sentence. After an initial this can only be
    guessed: the sentence ends there if the next word is one that often opens a sentence ("It is vitamin C. This is").
    """
    _, *stated = _STATED.split(response)
    line = stated[-1].lstrip(" \t\r\n:*").partition("\n")[0] if stated else ""
    return _first_sentence(line).strip(" \t\r\"'“”‘’*`.")


def _first_sentence(line: str) -> str:
    for stop in _STOP.finditer(line):
        last = (line[: stop.start()].split() or [""])[-1].lstrip("\"'“‘*(")
        following = stop[1].strip("\"'“”‘’*()`.,")
        shortened = line[stop.start()] == "." and (_INITIALS.fullmatch(last) or last in _ABBREVIATIONS)
        if not (following[:1].islower() or (shortened and following not in _OPENERS)):
            return line[: stop.start()]
    return line


def _multihop(name: str, help: str, manner: str) -> Task:
    return Task(
        name=name,
        help=help,
        template=(
            "Answer the question from the documents below; some of them are irrelevant. The answer rests on more "
            f"than one document: {manner}, and end with a sentence of this form: {MARKER} ...\n\n"
            "{documents}\n\nQuestion: {question}\nReasoning:"
        ),
        closed_book=(
            f"Answer the question: reason step by step, and end with a sentence of this form: {MARKER} ...\n\n"
            "Question: {question}\nReasoning:"
        ),
        render=search_results,
        metric="em",
        max_new_tokens=256,
        n_gold=2,
        target=f"{MARKER} {{answer}}.",
        extract=final_answer,
        synthetic="two-hop",
    )


COT = _multihop(
    "multihop-cot", "a question about two documents, reasoned step by step", "reason over them step by step"
)
COC = _multihop(
    "multihop-coc",
    "the same, with the documents cited at every step",
    "reason over them step by step, at every step cite the number of the document used, like [3]",
)
