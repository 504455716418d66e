"""Tasks: how prompts are worded, and how responses are scored; and the baselines of a sweep: the questions without
documents, with the gold ones alone, in a random order or in the retriever's.

Closed-book and oracle bound what documents are good for from below and above (Liu et al. 2024, table 1).
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_of
from posgap.foundation.registry import Parameters, Registry
from posgap.tasks.examples import AnyExample, Document, distractor_texts
from posgap.tasks.metrics import METRICS, RightAnswers
from posgap.tasks.placements import Placement, swept_placements
from posgap.tasks.slots import INSERTED, Slots


@dataclass(frozen=True)
class PromptOrder:
    """The order of a prompt: the question's place ("after" or "before" the documents, or "both"), and the seed that
    shuffles the distractors (0: the example's own order)."""

    question: str = "after"
    shuffle: int = 0


AS_GIVEN = PromptOrder()


def one_of_all(n_docs: int) -> float:
    """A model that names any of the items, or copies any, is right once in n_docs."""
    return 1 / n_docs


def other_titles_and_texts(example: AnyExample) -> list[str]:
    """The titles and texts of the distractors: the keys and values of other records."""
    return [*chain.from_iterable(distractor_texts(example))]


def other_texts(example: AnyExample) -> list[str]:
    """Returns the distractors' texts, each an answer by itself."""
    return [document.text for document in example.distractors]


@dataclass(frozen=True)
class Task:
    """A task: the wording of its prompts and the scoring of its responses.

    `template` has the fields `documents` and `question` and three paragraphs: the instruction, the documents, and the
    question with the cue for the answer on the line below it. `render` writes the documents. A placement has `n_gold`
    positions, and `slots` says how an example's items take them. If a response names a slot, like an option's letter,
    `slot_names` has these names; the right one then depends on the placement, and `extract` finds the name.
    `closed_book` is the template of a prompt without documents; empty: the question and the cue alone.

    `target` is the form of a right response, with the field `answer`; `one_wording` says that all right responses have
    this form. `base_stop` are strings that end the response of a model without a chat template, which goes on writing
    after its answer. `chance(n_docs)` is the share of right answers (0 to 1) of a model that guesses among the prompt's
    candidates. `candidates(example)` is everything else in the prompt that a response could name, none of it right.
    `extract` returns the part of a response that is compared with the answers. `synthetic` names the data of `posgap
    data make` that the task can ask about; empty if there is none. `lacks` says what an example is missing that the
    task needs; empty if nothing.
    """

    name: str
    help: str
    template: str
    render: Callable[[Sequence[Document]], str]
    metric: str
    max_new_tokens: int
    n_gold: int = 1
    slots: Slots = INSERTED
    slot_names: Sequence[str] = ()
    closed_book: str = ""
    target: str = "{answer}"
    one_wording: bool = False
    base_stop: tuple[str, ...] = ()
    chance: Callable[[int], float] = lambda n_docs: 0.0  # open answers are not guessed
    candidates: Callable[[AnyExample], list[str]] = lambda example: []  # unknown what distractors would answer
    extract: Callable[[str], str] = str
    synthetic: str = ""
    lacks: Callable[[AnyExample], str] = lambda example: ""  # any example with gold documents can be asked
    parameters: ClassVar[type[Parameters]] = Parameters  # none

    def require_fit(self, example: AnyExample) -> None:
        """Raises `PosgapError` if the example lacks what the task needs."""
        lacking = self.lacks(example)
        if lacking:
            raise PosgapError(f"example {example.id}: {lacking}; give the task that its examples are for by --task")

    def choose_placements(self, n_docs: int, chosen: Sequence[str] = ()) -> list[Placement]:
        """The placements of a sweep: those chosen, written as text, or else those that the task's slots ask for.

        Raises `PosgapError` if responses name slots, and there is no choice, or are more documents than names.
        """
        if self.slot_names and not 2 <= n_docs <= len(self.slot_names):
            raise PosgapError(
                f"task {self.name}: {n_docs} items to choose from; set --n-docs to the number of items, from 2 to "
                f"{len(self.slot_names)}"
            )
        return swept_placements(n_docs, self.n_gold, chosen) if chosen else self.slots.swept(n_docs, self.n_gold)

    def categories(self, placements: Sequence[Placement]) -> list[str]:
        """The category of each placement; empty if there are none."""
        names = [self.slots.category(placement.positions) for placement in placements]
        return names if any(names) else []

    def text(self, documents: Sequence[Document], question: str, order: PromptOrder = AS_GIVEN) -> str:
        """The prompt's text with the documents in the order given, or without any."""
        if not documents:
            return (self.closed_book or self.template.split("\n\n")[-1]).format(question=question)
        return self._format_template(documents, question, order)

    def ordered_template(self, order: PromptOrder) -> str:
        """The template with the question after the documents, before them, or on both sides
        (query-aware contextualization, Liu et al. 2024, section 4.2)."""
        instruction, documents, question_and_cue = self.template.split("\n\n")
        question, cue = question_and_cue.split("\n")
        paragraphs = {
            "after": (instruction, documents, question_and_cue),
            "before": (instruction, question, documents, cue),
            "both": (instruction, question, documents, question_and_cue),
        }
        return "\n\n".join(paragraphs[order.question])

    def wording(self) -> str:
        """Returns a digest of the prompts' wording, independent of the question and its place."""
        documents = [Document(title="title 1", text="text 1"), Document(title="title 2", text="text 2")]
        return digest_of(self._format_template(documents, "question", AS_GIVEN))

    def _format_template(self, documents: Sequence[Document], question: str, order: PromptOrder) -> str:
        return self.ordered_template(order).format(documents=self.render(documents), question=question)

    def stop(self, metric: str = "") -> tuple[str, ...]:
        """Returns the strings after which the rest of a response does not change its score by a metric ("" means the
        task's own)."""
        return METRICS[metric or self.metric].stop if self.extract is str else ()

    def stop_of_base(self, metric: str = "") -> tuple[str, ...]:
        """Returns the strings that end the response of a model without a chat template, unless others are given."""
        return tuple(dict.fromkeys([*self.stop(metric), *self.base_stop]))

    def baselines(self, names: Sequence[str], n_docs: int) -> list[Placement]:
        """Returns the baselines of a sweep with `n_docs` documents, by name.

        Raises `PosgapError` if the task has no such baseline.
        """
        for name in names:
            if not BASELINES[name].suits(self):
                raise PosgapError(f"baselines: the task {self.name} has none that is {name}; leave it out")
        return [Placement((), n_docs, name) for name in names]

    def right_answers(self, example: AnyExample, placement: Placement) -> RightAnswers:
        """Returns what is right at this placement: the example's answers, or the name of the slot that holds the item
        that matters; with the other candidates."""
        right = [self.slot_names[placement.positions[0] - 1]] if self.slot_names else example.answers
        return RightAnswers(right, self.candidates(example))

    def right_response(self, example: AnyExample, placement: Placement) -> str:
        """Returns a right response: the first answer, or all of them if they are parts of one."""
        first, *others = self.right_answers(example, placement)
        return self.target.format(answer=", ".join([first, *others]) if METRICS[self.metric].of_parts else first)

    def score(self, response: str, answers: Sequence[str], metric: str = "") -> float:
        """Returns a response's score, from 0 to 1, given the right answers; `metric` "" means the task's own metric.
        Answers of `Task.answers` tell the metric of the other candidates, a plain list does not."""
        return METRICS[metric or self.metric].score(self.extract(response), answers)

    def chosen_slot(self, response: str, items: Sequence[Document]) -> int:
        """Returns the slot, counted from 1, of the item in `items` that the response names; 0 if it names none."""
        names = self.slot_names[: len(items)]
        name = self.extract(response)
        return names.index(name) + 1 if name and name in names else 0


def document_writer(form: str, between: str = "\n") -> Callable[[Sequence[Document]], str]:
    """Returns a function that writes documents in a `form` with some of the fields `number`, `letter`, `title` and
    `text`. Documents without a title have no `(Title: )`: a small model answered with that twenty times of twenty."""
    untitled = form.replace("(Title: {title})", "")

    def write(documents: Sequence[Document]) -> str:
        written = []
        for number, document in enumerate(documents, start=1):
            letter = chr(ord("@") + number)
            own = form if document.title.strip() else untitled
            written.append(own.format(number=number, letter=letter, title=document.title, text=document.text))
        return between.join(written)

    return write


search_results = document_writer("Document [{number}](Title: {title}) {text}")  # as in Lost in the Middle


@dataclass(frozen=True)
class Baseline:
    """A way of asking an example once, besides the placements of a sweep.

    `documents(task, example, n_docs, order)` are those in the prompt. `is_order` says that these are all of an
    example's documents, in an order that a mitigation can change. `suits(task)` says whether it works for the task's
    questions.
    """

    name: str
    help: str
    documents: Callable[[Task, AnyExample, int, PromptOrder], list[Document]]
    suits: Callable[[Task], bool] = lambda task: not task.slot_names  # whose items are no answers themselves
    is_order: bool = False
    parameters: ClassVar[type[Parameters]] = Parameters  # none


def _gold_alone(task: Task, example: AnyExample, n_docs: int, order: PromptOrder) -> list[Document]:
    return [document for document in _prompt_documents(task, example, n_docs) if document in example.gold]


def _in_random_order(task: Task, example: AnyExample, n_docs: int, order: PromptOrder) -> list[Document]:
    """Returns the documents in an order that depends on the example's id and on the seed that shuffles distractors."""
    documents = _prompt_documents(task, example, n_docs)
    random.Random(f"random order {order.shuffle} {example.id}").shuffle(documents)
    return documents


def _prompt_documents(task: Task, example: AnyExample, n_docs: int) -> list[Document]:
    """The documents of a prompt, the gold ones first."""
    return task.slots.arrange(example, Placement(tuple(range(1, task.n_gold + 1)), n_docs), 0)


def _in_the_retriever_s_order(task: Task, example: AnyExample, n_docs: int, order: PromptOrder) -> list[Document]:
    assert task.slots.as_given
    return task.slots.as_given(example, n_docs)


CLOSED_BOOK = Baseline("closed-book", "without any documents", lambda *_: [])
ORACLE = Baseline("oracle", "with the gold documents alone", _gold_alone)
RANDOM = Baseline("random", "all documents in a random order", _in_random_order, is_order=True)
AS_RETRIEVED = Baseline(
    "as-retrieved",
    "the passages in the order of the retriever",
    _in_the_retriever_s_order,
    suits=lambda task: task.slots.as_given is not None,
    is_order=True,
)
BASELINES: Registry[Baseline] = Registry("baseline", "posgap.baselines", CLOSED_BOOK, ORACLE, RANDOM, AS_RETRIEVED)
