"""Long texts of one's own: the part that answers is moved through the document, with the others in their order."""

from collections.abc import Sequence

from posgap.tasks.examples import Document
from posgap.tasks.slots import ROTATED
from posgap.tasks.task import Task

MAX_WORDS = 30  # of an answer that was asked for in a few words; a copy of the text has more


def short_answer(response: str) -> str:
    """A response that is short enough for an answer, whatever stands before that; else its first line if that is, or
    else nothing."""
    line, *_ = response.strip().splitlines() or [""]
    short = (text for text in (response.strip(), line) if len(text.split()) <= MAX_WORDS)
    return next(short, "")


def paragraphs(documents: Sequence[Document]) -> str:
    """Writes the documents' texts one after the other, without their titles."""
    return "\n\n".join(document.text for document in documents)


DOCUMENT = Task(
    name="document",
    help="a question about a text of your own, whose parts are turned as a ring",
    template=(
        "Read the text below, and answer the question about it in a few words.\n\n{documents}\n\n"
        "Question: {question}\nAnswer:"
    ),
    render=paragraphs,
    metric="answer_words",
    max_new_tokens=60,
    slots=ROTATED,
    extract=short_answer,
    synthetic="needle",
)
