"""Needles of other shapes: several values of one key, a chain of variables, a document to cite, a turn to recall,
repetitions to count, a demonstration to follow, a note to sum up."""

import re
from collections.abc import Sequence
from dataclasses import replace

from posgap.tasks.examples import Document
from posgap.tasks.kinds import KINDS
from posgap.tasks.mentions import mentioned, numbers
from posgap.tasks.slots import ROTATED
from posgap.tasks.spans import SPANS
from posgap.tasks.task import Task, one_of_all, search_results
from posgap.tasks.world import sentences

_in_brackets, _short_numbers = mentioned(r"(?<=\[)\d+(?=\])"), mentioned(r"(?<![\d.,])\d{1,3}(?!\d)")

# Two needles of RULER (Hsieh et al. 2024), which asks them at random depths, and scores the share of the answers found.
VALUES = replace(
    SPANS,
    name="values",
    help="all values of one key, which stand in two documents",
    template=(
        "Answer the question using only the documents below. The answer is two numbers.\n\n{documents}\n\n"
        "Question: {question}\nNumbers:"
    ),
    metric="set_em",
    extract=numbers,
    synthetic="values",
)
TRACKING = replace(
    SPANS,
    name="tracking",
    help="the variables that a number is handed on to, in three assignments",
    template=(
        "Read the assignments below. A variable has the value of the number, or of the variable, that is assigned to "
        "it.\n\n{documents}\n\nQuestion: {question}\nVariables:"
    ),
    render=sentences,
    metric="set_em",
    max_new_tokens=60,
    n_gold=3,
    extract=mentioned(r"\b[A-Z]{5}\b"),
    synthetic="tracking",
)


def cited(response: str) -> str:
    """The numbers of the documents that a response cites: those in brackets, or else those of at most three digits."""
    return _in_brackets(response) or _short_numbers(response)


CITE = Task(
    name="cite",
    help="the number of the document that answers a question",
    template=(
        "Which one of the documents below answers the question? Reply with the document's number alone, like [3]."
        "\n\n{documents}\n\nQuestion: {question}\nDocument:"
    ),
    render=search_results,
    metric="em",
    max_new_tokens=16,
    slots=ROTATED,
    slot_names=tuple(str(number) for number in range(1, 1000)),
    chance=one_of_all,
    extract=cited,
    synthetic="needle",
)


def turns(documents: Sequence[Document]) -> str:
    """Writes documents as what a user told an assistant, one in each turn."""
    return "\n".join(f"User: {document.text}\nAssistant: I will remember that." for document in documents)


TURNS = Task(
    name="turns",
    help="what the user said in one of the turns of a conversation",
    template=(
        "A conversation follows. The assistant's last reply is missing; write it. It is one number, which the user "
        "has told the assistant before.\n\n{documents}\n\nUser: {question}\nAssistant:"
    ),
    render=turns,
    metric="set_em",
    max_new_tokens=32,
    extract=numbers,
    synthetic="needle",
)

COUNTS = range(3, 8)  # how often a name is listed of which `counting` asks
COUNTING = Task(
    name="counting",
    help="how often a name is listed, all of whose mentions stand in one line",
    template=(
        "Each line below lists names, and a name may be listed more than once. Answer with one number, in digits."
        "\n\n{documents}\n\nQuestion: {question}\nNumber:"
    ),
    render=sentences,
    metric="set_em",
    max_new_tokens=16,
    chance=lambda n_docs: 1 / len(COUNTS),
    extract=numbers,
    synthetic="counting",
)

SHOTS = Task(
    name="shots",
    help="the label of a word, whose kind one of many labelled words shows",
    template=(
        "Every word below has a label, a number of two digits. Words for the same kind of thing have the same label. "
        "Reply with one number alone: the label of the word at the end.\n\n{documents}\n\nWord: {question}\nLabel:"
    ),
    render=sentences,
    metric="set_em",
    max_new_tokens=16,
    base_stop=("\n",),
    chance=lambda n_docs: 1 / min(n_docs, len(KINDS)),
    extract=numbers,
    synthetic="shots",
)

_FILE_NUMBER = re.compile(r"\b[A-Z]{2}-\d{4}\b")


def summed_up(response: str) -> str:
    """A summary, or nothing where the response gives file numbers of several notes: then it is a copy of them."""
    return "" if len(set(_FILE_NUMBER.findall(response))) > 1 else response


SUMMARY = Task(
    name="summary",
    help="whether a summary of many notes covers the one at each position",
    template=(
        "Sum up the notes below in one paragraph that names every place and says in a few words what happened there. "
        "Leave out the file numbers.\n\n{documents}\n\nSum up {question}.\nSummary:"
    ),
    render=sentences,
    metric="sub_em",
    max_new_tokens=300,
    extract=summed_up,
    synthetic="summary",
)
