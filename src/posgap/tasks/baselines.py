"""Baselines: the questions of a sweep without its documents, with the gold ones alone, or with all in a random order.

Closed-book and oracle bound what documents are good for from below and above (Liu et al. 2024, table 1).
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from posgap.choices import Parameters
from posgap.tasks.examples import AnyExample, Document
from posgap.tasks.placements import Placement

if TYPE_CHECKING:
    from posgap.tasks.task import Order, Task


def as_any(task: "Task") -> bool:
    """Whether a task has items that answer its question, and none that are the answers themselves."""
    return not task.slot_names


@dataclass(frozen=True)
class Baseline:
    """A way of asking an example once, beside the placements of a sweep.

    `text(task, example, n_docs, order)` is the prompt's text, without any chat template. `suits(task)` says whether
    the task's questions can be asked so.
    """

    name: str
    help: str
    text: "Callable[[Task, AnyExample, int, Order], str]"
    suits: "Callable[[Task], bool]" = as_any
    parameters: ClassVar[type[Parameters]] = Parameters  # none


def _without_documents(task: "Task", example: AnyExample, n_docs: int, order: "Order") -> str:
    return task.closed_book_text(example.question)


def _gold_alone(task: "Task", example: AnyExample, n_docs: int, order: "Order") -> str:
    documents = [document for document in _shown(task, example, n_docs) if document in example.gold]
    return task.text(documents, example.question, order)


def _in_random_order(task: "Task", example: AnyExample, n_docs: int, order: "Order") -> str:
    """An order that depends on the example's id and on the seed that shuffles distractors."""
    documents = _shown(task, example, n_docs)
    random.Random(f"random order {order.shuffle} {example.id}").shuffle(documents)
    return task.text(documents, example.question, order)


def _shown(task: "Task", example: AnyExample, n_docs: int) -> list[Document]:
    """The documents of a prompt, the gold ones first."""
    return task.slots.arrange(example, Placement(tuple(range(1, task.n_gold + 1)), n_docs), 0)


CLOSED_BOOK = Baseline("closed-book", "without any documents", _without_documents)
ORACLE = Baseline("oracle", "with the gold documents alone", _gold_alone)
RANDOM = Baseline("random", "all documents in a random order", _in_random_order)
