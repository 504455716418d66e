"""Retrieval-augmented generation: any number of relevant passages among those that a retriever returned.

A prompt of n documents holds at most n relevant passages, filled up with the highest-ranked others. So all orders, the
retriever's included, have the same documents.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from posgap.foundation.errors import PosgapError
from posgap.foundation.printing import format_count
from posgap.tasks.examples import AnyExample, Document, Passage, RankedExample, documents_of
from posgap.tasks.placements import Placement
from posgap.tasks.retrieval import QA
from posgap.tasks.slots import Slots, shuffle_documents
from posgap.tasks.task import AS_RETRIEVED, Task


def place_block(example: AnyExample, placement: Placement, shuffle: int = 0) -> list[Document]:
    """The relevant passages as a block that begins at the position, in the retriever's order, among the others.

    If the block would run over the end it ends at the last slot, so that every example has a prompt at every
    position: the last positions of an example with m relevant passages are all its position n - m + 1.
    """
    passages = prompt_passages(example, placement.n_docs)
    relevant = documents_of(passages, relevant=True)
    others = shuffle_documents(documents_of(passages, relevant=False), example, shuffle)
    before = min(placement.positions[0] - 1, len(others))
    return others[:before] + relevant + others[before:]


def place_best(example: AnyExample, placement: Placement, shuffle: int = 0, alone: bool = False) -> list[Document]:
    """Returns the relevant passage with the highest rank at the position, and all others, relevant ones too, in the
    retriever's order. If it is `alone`, the other relevant ones are left out and more others fill the prompt."""
    passages = prompt_passages(example, placement.n_docs, alone)
    marks = [passage.relevant for passage in passages]
    best = passages.pop(marks.index(True))
    documents = shuffle_documents([passage.document for passage in passages], example, shuffle)
    documents.insert(placement.positions[0] - 1, best.document)
    return documents


def as_retrieved(example: AnyExample, n_docs: int, alone: bool = False) -> list[Document]:
    """The documents of a prompt in the retriever's own order. Raises `PosgapError` for an example without ranks."""
    if not isinstance(example, RankedExample):
        raise PosgapError(f"example {example.id}: has no retriever's order; give a retrieval log")
    return [passage.document for passage in prompt_passages(example, n_docs, alone)]


def order_of_retriever(task: Task, examples: Sequence[AnyExample], n_docs: int) -> Placement | None:
    """Returns the placement that keeps a task's examples in the retriever's order; None if some have none."""
    if task.slots.as_given and all(isinstance(example, RankedExample) for example in examples):
        return Placement((), n_docs, AS_RETRIEVED.name)
    return None


def prompt_passages(example: AnyExample, n_docs: int, alone: bool = False) -> list[Passage]:
    """The passages of a prompt of `n_docs` documents in the retriever's order; of an example without ranks the gold
    documents come first. `alone` takes only the relevant passage that was ranked highest.

    Raises `PosgapError` if there are too few.
    """
    passages: list[Passage] = []
    if isinstance(example, RankedExample):
        passages += example.passages
    else:
        for at, document in enumerate([*example.gold, *example.distractors]):
            passages.append(Passage(title=document.title, text=document.text, relevant=at < len(example.gold)))
    places: dict[bool, list[int]] = {True: [], False: []}
    for place, passage in enumerate(passages):
        places[passage.relevant].append(place)
    if not places[True]:
        raise PosgapError(f"example {example.id}: has no relevant passage")
    kept = places[True][: 1 if alone else n_docs]
    kept += places[False][: n_docs - len(kept)]
    if len(kept) < n_docs:
        raise PosgapError(
            f"example {example.id}: {format_count(len(kept), 'passage')} can be shown, fewer than the {n_docs} "
            f"documents of a prompt; give --n-docs {len(kept)} or less, or leave such examples out by `posgap data "
            f"import --min-docs {n_docs}`"
        )
    return [passages[place] for place in sorted(kept)]


RAG = replace(
    QA,
    name="rag",
    metric="answer_words",
    base_stop=("\n",),  # after it a model without a chat template invents questions
    help="a question with the passages that a retriever returned, the relevant ones moved together",
    slots=Slots(place_block, of_any_number=True, as_given=as_retrieved),
)
RAG_ONE = replace(
    RAG,
    name="rag-one",
    help="the same, but only the best-ranked relevant passage moves; the others stay as the retriever ranked them",
    slots=Slots(place_best, of_any_number=True, as_given=as_retrieved),
)
RAG_ALONE = replace(
    RAG,
    name="rag-alone",
    help="the same, the other relevant passages left out",
    slots=Slots(partial(place_best, alone=True), of_any_number=True, as_given=partial(as_retrieved, alone=True)),
)
