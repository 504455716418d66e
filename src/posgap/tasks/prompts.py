"""Tasks as data, and the prompts they make.

Wordings are those of Lost in the Middle (Liu et al. 2024, TACL 12:157-173, appendix prompts).
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from posgap.config import TASKS
from posgap.errors import PosgapError
from posgap.tasks.examples import AnyExample, Document
from posgap.tasks.placements import Placement, arrange


def _json_records(documents: Sequence[Document]) -> str:
    return "{" + ",\n ".join(f'"{d.title}": "{d.text}"' for d in documents) + "}"


def _search_results(documents: Sequence[Document]) -> str:
    return "\n".join(f"Document [{i}](Title: {d.title}) {d.text}" for i, d in enumerate(documents, start=1))


@dataclass(frozen=True)
class Task:
    """What a prompt says and how its response is judged.

    `template` has the fields `documents` and `question`; `render` writes the documents. `answer`,
    with the field `answer`, words the response of a task that has one right answer; empty where
    many responses are right.
    """

    name: str
    template: str
    render: Callable[[Sequence[Document]], str]
    metric: str
    max_new_tokens: int
    answer: str = ""

    def prompt(self, example: AnyExample, placement: Placement) -> str:
        """The prompt's text, without any chat template."""
        documents = self.render(arrange(example, placement))
        return self.template.format(documents=documents, question=example.question)


_KV = Task(
    name="kv",
    template=(
        "Extract the value corresponding to the specified key in the JSON object below.\n\n"
        'JSON data:\n{documents}\n\nKey: "{question}"\nCorresponding value:'
    ),
    render=_json_records,
    metric="sub_em",
    max_new_tokens=100,
    answer=' "{answer}"',
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
_BY_NAME = {task.name: task for task in (_KV, _QA)}
assert set(_BY_NAME) == set(TASKS)


def get_task(name: str) -> Task:
    """The task of that name; `PosgapError` with the names there are."""
    if name not in _BY_NAME:
        raise PosgapError(f"unknown task {name!r}: choose one of {', '.join(_BY_NAME)}")
    return _BY_NAME[name]


class PromptBuilder:
    """Turns (example, placement) into token ids for one tokenizer and task.

    The chat template is applied when the tokenizer has one. `context` is the model's context
    length in tokens, out of which `max_new_tokens` are kept for the response.
    """

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase, context: int, max_new_tokens: int):
        self.task, self.tokenizer = task, tokenizer
        self.context, self.max_new_tokens = context, max_new_tokens

    def __call__(self, example: AnyExample, placement: Placement) -> list[int]:
        """Token ids of the prompt; `PosgapError` where prompt and response exceed the context."""
        ids = self.token_ids(self.task.prompt(example, placement))
        if len(ids) + self.max_new_tokens > self.context:
            raise PosgapError(
                f"example {example.id} at position {placement.positions}: prompt of {len(ids)} tokens and "
                f"{self.max_new_tokens} new ones exceed the model's context of {self.context}; lower n_docs "
                "or max_new_tokens"
            )
        return ids

    def response_ids(self, example: AnyExample, placement: Placement, metric: str) -> list[int]:
        """Token ids of the one right response: for sub_em as far as its answer reaches, for em whole,
        with the end token. `PosgapError` where the task or the tokenizer leaves it open."""
        (answer, *others), whole = example.answers, metric == "em"
        if not self.task.answer or others:
            raise PosgapError(f"example {example.id}: task {self.task.name} has no single right response")
        wording = self.task.answer if whole else self.task.answer.partition("{answer}")[0] + "{answer}"
        response = wording.format(answer=answer)
        if self.tokenizer.chat_template:
            ids = self.tokenizer(response.strip(), add_special_tokens=False)["input_ids"]
        else:
            text = self.task.prompt(example, placement)
            prompt, together = self.token_ids(text), self.token_ids(text + response)
            if together[: len(prompt)] != prompt:
                raise PosgapError(f"example {example.id}: the tokenizer joins the prompt's end and the answer")
            ids = together[len(prompt) :]
        return [*ids, self.tokenizer.eos_token_id] if whole else ids

    def token_ids(self, text: str) -> list[int]:
        if self.tokenizer.chat_template:
            return self.tokenizer.apply_chat_template(
                [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
            )
        return self.tokenizer(text)["input_ids"]

    def digest(self) -> str:
        """Identifies wording, chat template and vocabulary; two builders that agree in it
        make the same prompts."""
        parts = [self.task.template, self.tokenizer.chat_template or "", sorted(self.tokenizer.get_vocab().items())]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
