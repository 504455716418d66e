"""Tasks as data, and the prompts they make.

The wordings of `kv` and `qa` are those of Lost in the Middle (Liu et al. 2024, TACL 12:157-173,
appendix prompts); those of the two-hop tasks are our own.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers import PreTrainedTokenizerBase

from posgap.config import TASKS
from posgap.config.positions import format_positions
from posgap.errors import PosgapError
from posgap.tasks.examples import AnyExample, Document
from posgap.tasks.final_answers import MARKER, final_answer
from posgap.tasks.metrics import METRICS
from posgap.tasks.placements import Placement, arrange


def _json_records(documents: Sequence[Document]) -> str:
    return "{" + ",\n ".join(f'"{d.title}": "{d.text}"' for d in documents) + "}"


def _search_results(documents: Sequence[Document]) -> str:
    return "\n".join(f"Document [{i}](Title: {d.title}) {d.text}" for i, d in enumerate(documents, start=1))


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
    template: str
    render: Callable[[Sequence[Document]], str]
    metric: str
    max_new_tokens: int
    n_gold: int = 1
    target: str = "{answer}"
    one_wording: bool = False
    extract: Callable[[str], str] = str

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

    def score(self, response: str, example: AnyExample, metric: str = "") -> float:
        """How right a response is, from 0 to 1; `metric` "" is the task's own."""
        return METRICS[metric or self.metric](self.extract(response), example.answers)


_KV = Task(
    name="kv",
    template=(
        "Extract the value corresponding to the specified key in the JSON object below.\n\n"
        'JSON data:\n{documents}\n\nKey: "{question}"\nCorresponding value:'
    ),
    render=_json_records,
    metric="sub_em",
    max_new_tokens=100,
    target='"{answer}"',
    one_wording=True,
)
_QA = Task(
    name="qa",
    template=(
        "Write a high-quality answer for the given question using only the provided search results "
        "(some of which might be irrelevant).\n\n{documents}\n\nQuestion: {question}\nAnswer:"
    ),
    render=_search_results,
    metric="sub_em",
    max_new_tokens=100,
)


def _multihop(name: str, manner: str) -> Task:
    return Task(
        name=name,
        template=(
            "Answer the question from the documents below; some of them are irrelevant. The answer rests on more "
            f"than one document: {manner}, and end with a sentence of this form: {MARKER} ...\n\n"
            "{documents}\n\nQuestion: {question}\nReasoning:"
        ),
        render=_search_results,
        metric="em",
        max_new_tokens=256,
        n_gold=2,
        target=f"{MARKER} {{answer}}.",
        extract=final_answer,
    )


_COT = _multihop("multihop-cot", "reason over them step by step")
_COC = _multihop(
    "multihop-coc", "reason over them step by step, at every step cite the number of the document used, like [3]"
)
_BY_NAME = {task.name: task for task in (_KV, _QA, _COT, _COC)}
assert set(_BY_NAME) == set(TASKS)


def get_task(name: str) -> Task:
    """The task of that name; `PosgapError` with the names there are."""
    if name not in _BY_NAME:
        raise PosgapError(f"unknown task {name!r}: choose one of {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


class Prompt(NamedTuple):
    """What a model is asked: the task's text, and its token ids with the chat template where they are known."""

    text: str
    token_ids: Sequence[int] = ()


class TextPromptBuilder:
    """Turns (example, placement) into text, for an endpoint that has tokenizer and chat template itself."""

    def __init__(self, task: Task, max_new_tokens: int, order: Order = AS_GIVEN):
        self.task, self.max_new_tokens, self.order = task, max_new_tokens, order

    def prompt(self, example: AnyExample, placement: Placement) -> Prompt:
        """The prompt's text, without token ids."""
        return Prompt(self.text(example, placement))

    def text(self, example: AnyExample, placement: Placement) -> str:
        """The prompt's text, without any chat template."""
        return self.task.prompt(example, placement, self.order)

    def digest(self) -> str:
        """Identifies wording and order."""
        return self._digest()

    def _digest(self, *parts: str | list) -> str:
        # The order an example came in has never been part of it.
        shuffle = [self.order.shuffle] if self.order.shuffle else []
        described = [self.task.ordered_template(self.order), *parts, *shuffle]
        return hashlib.sha256(json.dumps(described).encode()).hexdigest()


class PromptBuilder(TextPromptBuilder):
    """Turns (example, placement) into token ids for one tokenizer and task.

    The chat template is applied when the tokenizer has one. `context` is the model's context
    length in tokens, out of which `max_new_tokens` are kept for the response.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: PreTrainedTokenizerBase,
        context: int,
        max_new_tokens: int,
        order: Order = AS_GIVEN,
    ):
        super().__init__(task, max_new_tokens, order)
        self.tokenizer, self.context = tokenizer, context

    def __call__(self, example: AnyExample, placement: Placement) -> list[int]:
        """Token ids of the prompt; `PosgapError` where prompt and response exceed the context."""
        return list(self.prompt(example, placement).token_ids)

    def prompt(self, example: AnyExample, placement: Placement) -> Prompt:
        """The prompt as text and token ids; `PosgapError` as above."""
        text = self.text(example, placement)
        ids = self.token_ids(text)
        if len(ids) + self.max_new_tokens > self.context:
            raise PosgapError(
                f"example {example.id} at position {format_positions(placement.positions)}: prompt of {len(ids)} "
                f"tokens and {self.max_new_tokens} new ones exceed the model's context of {self.context}; lower "
                "n_docs or max_new_tokens"
            )
        return Prompt(text, ids)

    def token_ids(self, text: str) -> list[int]:
        if self.tokenizer.chat_template:
            ids: Any = self.tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
            )
            return ids
        return self.tokenizer(text)["input_ids"]

    def response_ids(self, example: AnyExample, placement: Placement, text: str) -> list[int]:
        """Token ids of `text` as the model would write it after that prompt, end token included.

        Raises `PosgapError` where the tokenizer joins the prompt's end and the response.
        """
        if self.tokenizer.chat_template:
            ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        else:
            before = self.text(example, placement)
            prompt, together = self.token_ids(before), self.token_ids(f"{before} {text}")
            if together[: len(prompt)] != prompt:
                raise PosgapError(f"example {example.id}: the tokenizer joins the prompt's end and the response")
            ids = together[len(prompt) :]
        return [*ids, self.tokenizer.eos_token_id]

    def gold_response(self, example: AnyExample, placement: Placement) -> list[int]:
        """Token ids of the task's target with the example's first answer, end token included."""
        return self.response_ids(example, placement, self.task.target.format(answer=example.answers[0]))

    def digest(self) -> str:
        """Identifies wording, order, chat template and vocabulary; two builders that agree in it
        make the same prompts."""
        return self._digest(self.tokenizer.chat_template or "", sorted(self.tokenizer.get_vocab().items()))
