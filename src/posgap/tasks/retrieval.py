"""The retrieval tasks, in the wordings of Lost in the Middle (Liu et al. 2024, TACL 12:157-173, appendix prompts), and
the task of a text of your own: the part that answers moves through the document, the others keep their order."""

from collections.abc import Sequence

from posgap.tasks.examples import AnyExample, Document, KVExample
from posgap.tasks.slots import ROTATED
from posgap.tasks.task import Task, document_writer, one_of_all, other_titles_and_texts, search_results

MAX_WORDS = 30  # of an answer that was asked for in a few words; a copy of the text has more


def json_records(documents: Sequence[Document]) -> str:
    """Writes documents as one JSON object with one record per line."""
    return "{" + ",\n ".join(f'"{d.title}": "{d.text}"' for d in documents) + "}"


def short_answer(response: str) -> str:
    """Returns a response that is short enough for an answer, whatever precedes it; else its first line if that is short
    enough; else nothing."""
    line, *_ = response.strip().splitlines() or [""]
    short = (text for text in (response.strip(), line) if len(text.split()) <= MAX_WORDS)
    return next(short, "")


def why_no_record(example: AnyExample) -> str:
    """Says that an example is none of keys and values: its question is no record's key."""
    if isinstance(example, KVExample) or any(document.title == example.question for document in example.gold):
        return ""
    return "the task kv asks for the value of a key, and no record has its question for a key"


KV = Task(
    name="kv",
    help="a key's value among JSON records",
    template=(
        "Extract the value corresponding to the specified key in the JSON object below.\n\n"
        'JSON data:\n{documents}\n\nKey: "{question}"\nCorresponding value:'
    ),
    render=json_records,
    metric="sole_answer",
    max_new_tokens=100,
    target='"{answer}"',
    one_wording=True,
    base_stop=("\n",),
    chance=one_of_all,
    candidates=other_titles_and_texts,
    synthetic="kv",
    lacks=why_no_record,
)
QA = Task(
    name="qa",
    help="a question that one of the documents answers",
    template=(
        "Write a high-quality answer for the given question using only the provided search results "
        "(some of which might be irrelevant).\n\n{documents}\n\nQuestion: {question}\nAnswer:"
    ),
    render=search_results,
    metric="litm",
    max_new_tokens=100,
    synthetic="needle",
)
DOCUMENT = Task(
    name="document",
    help="a question about a text of your own, whose parts are turned as a ring",
    template=(
        "Read the text below, and answer the question about it in a few words.\n\n{documents}\n\n"
        "Question: {question}\nAnswer:"
    ),
    render=document_writer("{text}", "\n\n"),
    metric="answer_words",
    max_new_tokens=60,
    slots=ROTATED,
    extract=short_answer,
    synthetic="needle",
)
