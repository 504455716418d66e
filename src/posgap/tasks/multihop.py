"""The two-hop tasks, in wordings of our own."""

from posgap.tasks.final_answers import MARKER, final_answer
from posgap.tasks.task import Task, search_results


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
