"""What a task is: how a prompt is worded, and how its response is judged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from posgap.choices import METRICS, Parameters
from posgap.files import digest_of
from posgap.tasks.examples import AnyExample, Document
from posgap.tasks.placements import Placement, arrange


@dataclass(frozen=True)
class Order:
    """Where the question stands (after, before, or both sides of the documents), and the seed that
    shuffles the distractors (0: as the example has them)."""

    question: str = "after"
    shuffle: int = 0


AS_GIVEN = Order()


@dataclass(frozen=True)
class Task:
    """What a prompt says and how its response is judged.

    `template` has the fields `documents` and `question`, in three paragraphs: instruction, documents,
    question with the answer's cue on a line below; `render` writes the documents. An example
    has `n_gold` gold documents. `target` is the form of a gold response, with the field `answer`,
    and `one_wording` says that a right response has no other. `extract` takes from a response what
    is compared with the answers.
    """

    name: str
    help: str
    template: str
    render: Callable[[Sequence[Document]], str]
    metric: str
    max_new_tokens: int
    n_gold: int = 1
    target: str = "{answer}"
    one_wording: bool = False
    extract: Callable[[str], str] = str
    parameters: ClassVar[type[Parameters]] = Parameters  # none

    def prompt(self, example: AnyExample, placement: Placement, order: Order = AS_GIVEN) -> str:
        """The prompt's text, without any chat template."""
        return self.text(arrange(example, placement, order.shuffle), example.question, order)

    def text(self, documents: Sequence[Document], question: str, order: Order = AS_GIVEN) -> str:
        """The prompt's text with these documents as they stand."""
        return self.ordered_template(order).format(documents=self.render(documents), question=question)

    def ordered_template(self, order: Order) -> str:
        """The template with the question after the documents, before them, or on both sides
        (query-aware contextualization, Liu et al. 2024, section 4.2)."""
        instruction, documents, asked = self.template.split("\n\n")
        question, cue = asked.split("\n")
        paragraphs = {
            "after": (instruction, documents, asked),
            "before": (instruction, question, documents, cue),
            "both": (instruction, question, documents, asked),
        }
        return "\n\n".join(paragraphs[order.question])

    def wording(self) -> str:
        """Digest of how prompts are worded, whatever they ask and wherever the question stands."""
        documents = [Document(title="title 1", text="text 1"), Document(title="title 2", text="text 2")]
        return digest_of(self.text(documents, "question"))

    def score(self, response: str, example: AnyExample, metric: str = "") -> float:
        """How right a response is, from 0 to 1; `metric` "" is the task's own."""
        return METRICS[metric or self.metric].score(self.extract(response), example.answers)


def search_results(documents: Sequence[Document]) -> str:
    """Documents as a numbered list, as Lost in the Middle has them."""
    return "\n".join(f"Document [{i}](Title: {d.title}) {d.text}" for i, d in enumerate(documents, start=1))
