"""From examples and placements to prompts: text for endpoints, token ids for models here."""

import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from posgap.errors import PosgapError
from posgap.files import digest_of
from posgap.positions import format_positions
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.task import AS_GIVEN, Order, Task

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Prompt(NamedTuple):
    """What a model is asked: the task's text, and its token ids with the chat template where they are known."""

    text: str
    token_ids: Sequence[int] = ()


class TextPromptBuilder:
    """Turns (example, placement) into text, for an endpoint that has the tokenizer itself.

    `template` says which chat template the text is put into: none where it is empty.
    """

    def __init__(self, task: Task, max_new_tokens: int, order: Order = AS_GIVEN, template: str = ""):
        self.task, self.max_new_tokens, self.order, self.template = task, max_new_tokens, order, template

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
        tokenizer: "PreTrainedTokenizerBase",
        context: int,
        max_new_tokens: int,
        order: Order = AS_GIVEN,
    ):
        template = tokenizer.chat_template or ""
        super().__init__(task, max_new_tokens, order, digest_of(template) if template else "")
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
