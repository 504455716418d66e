"""Makes prompts of examples and placements: text for endpoints, token ids for local models."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Protocol, Self

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import digest_of
from posgap.foundation.heavy_types import PreTrainedTokenizerBase
from posgap.tasks.document_spans import Span, characters, token_offsets, token_spans
from posgap.tasks.examples import AnyExample, Document
from posgap.tasks.framing import PLAIN, ChatTemplate, Framing
from posgap.tasks.placements import Placement
from posgap.tasks.special_tokens import special_tokens
from posgap.tasks.task import AS_GIVEN, BASELINES, PromptOrder, Task


class Prompt(NamedTuple):
    """A prompt: the task's text and, for a local model, its token ids, in the chat template if there is one; and which
    of several responses to it is asked for. `example` and `documents`, in their order, are what the text was made of:
    an application makes its own text of them."""

    text: str
    token_ids: Sequence[int] = ()
    sample: int = 0
    example: AnyExample | None = None
    documents: Sequence[Document] = ()


class Filler(Protocol):
    """Decides what fills prompts of `tokens`, the longest answer included, at each placement. `length` is the user's
    text for these tokens, like 4k or 25%."""

    @property
    def length(self) -> str: ...

    @property
    def tokens(self) -> int: ...

    @property
    def placements(self) -> list[Placement]: ...

    @property
    def as_json(self) -> dict[str, object]:
        """The settings that decide it, as JSON."""

    def documents(self, builder: "TextPromptBuilder", example: AnyExample, placement: Placement) -> list[Document]:
        """The documents of the prompt."""


@dataclass(eq=False)
class TextPromptBuilder:
    """Turns (example, placement) into text, for an endpoint that applies the tokenizer itself.

    `template` identifies the chat template that the endpoint puts the text into; empty means none. A response has at
    most `max_new_tokens`, and `max_thinking_tokens` before those, and ends before a string of `stop`.
    """

    task: Task
    max_new_tokens: int
    order: PromptOrder = AS_GIVEN
    template: str = ""
    framing: Framing = PLAIN
    stop: tuple[str, ...] = ()
    max_thinking_tokens: int = 0
    fill: Filler | None = None
    chat: ChatTemplate | None = None  # of a local model

    def prompt(self, example: AnyExample, placement: Placement) -> Prompt:
        """The prompt's text, and for a local model its token ids, which raises `PosgapError` if prompt and response
        would exceed the context."""
        self.task.require_fit(example)
        return self.of_documents(example, placement, self.documents(example, placement))

    def of_documents(self, example: AnyExample, placement: Placement, documents: Sequence[Document]) -> Prompt:
        """The prompt of an example that has these documents at this placement, in this order."""
        prompt = self.of_text(
            self.word_prompt(example, documents), f"example {example.id} at position {placement.name}"
        )
        return prompt._replace(example=example, documents=documents)

    def of_text(self, text: str, name: str) -> Prompt:
        """The prompt of a text; errors call it by that name."""
        return Prompt(text)

    def text(self, example: AnyExample, placement: Placement) -> str:
        """The prompt's text, without any chat template."""
        return self.word_prompt(example, self.documents(example, placement))

    def documents(self, example: AnyExample, placement: Placement) -> list[Document]:
        """Returns the prompt's documents, in its order."""
        if placement.baseline:
            return BASELINES[placement.baseline].documents(self.task, example, placement.n_docs, self.order)
        if self.fill:
            return self.fill.documents(self, example, placement)
        return self.task.slots.arrange(example, placement, self.order.shuffle)

    def word_prompt(self, example: AnyExample, documents: Sequence[Document]) -> str:
        """The text of a prompt that asks an example about these documents."""
        return self.task.text(documents, example.question, self.order)

    def with_attributes(self, **attributes: Any) -> Self:
        """A copy of the builder with other attributes, as `fill`, or `max_thinking_tokens`."""
        other = copy.copy(self)
        vars(other).update(attributes)
        return other

    def with_template_args(self, arguments: Mapping[str, Any]) -> Self:
        """A copy of the builder with other arguments of the chat template."""
        return self.with_attributes(framing=replace(self.framing, arguments=arguments))

    @property
    def shown_framing(self) -> dict[str, Any]:
        """The parts of the framing that prompts show, by the names of the config."""
        return self.framing.shown_settings(self.chat.source if self.chat else "")

    @property
    def ending(self) -> str | None:
        """Returns the text between a prompt's own text and the response; None if an endpoint's template decides
        that."""
        if self.chat:
            return self.chat.ending
        return None if self.template else ""

    def digest(self, *parts: str | list) -> str:
        """A digest of the prompts' wording, order and framing, and of other `parts`."""
        # Unused options are left out, so that digests from before the option existed stay valid.
        fill = self.fill.as_json if self.fill else {}
        options = [option for option in (self.order.shuffle, self.shown_framing, fill) if option]
        described = [self.task.ordered_template(self.order), self.task.wording(), *parts, *options]
        return digest_of(described)


class PromptBuilder(TextPromptBuilder):
    """Turns (example, placement) into token ids for one tokenizer and task.

    The framing's chat template is applied, else the tokenizer's if it has one. `context` is the model's context length
    in tokens; the longest response's tokens are reserved from it. Raises `PosgapError` if the framing does not fit the
    model.
    """

    def __init__(
        self,
        task: Task,
        tokenizer: PreTrainedTokenizerBase,
        context: int,
        max_new_tokens: int,
        order: PromptOrder = AS_GIVEN,
        framing: Framing = PLAIN,
    ):
        own = tokenizer.get_chat_template() if tokenizer.chat_template else ""
        source = framing.template or own
        chat = ChatTemplate(source, tokenizer, framing) if source else None
        if framing.shown_settings() and not chat:
            names = ", ".join(framing.shown_settings())
            raise PosgapError(f"{names}: the model has no chat template to take it; give one with --template")
        template = digest_of(source) if source else ""
        super().__init__(task, max_new_tokens, order, template, framing, chat=chat)
        self.tokenizer = tokenizer
        self.context = context
        self.special = special_tokens(tokenizer)

    def __call__(self, example: AnyExample, placement: Placement) -> list[int]:
        """The prompt's token ids; raises `PosgapError` if prompt and response would exceed the context."""
        return list(self.prompt(example, placement).token_ids)

    def with_template_args(self, arguments: Mapping[str, Any]) -> Self:
        other = super().with_template_args(arguments)
        if self.chat:
            other.chat = ChatTemplate(self.chat.source, self.tokenizer, other.framing)
        return other

    def of_text(self, text: str, name: str) -> Prompt:
        ids = self.token_ids(text)
        new = self.max_new_tokens + self.max_thinking_tokens
        if len(ids) + new > self.context:
            raise PosgapError(
                f"{name}: prompt of {len(ids)} tokens and {new} new ones exceed the model's context of "
                f"{self.context}; lower n_docs or max_new_tokens"
            )
        return Prompt(text, ids)

    def spans(self, example: AnyExample, documents: Sequence[Document], prompt: Prompt) -> tuple[Span, ...]:
        """Returns the columns [first, after the last) of these documents' tokens in their prompt. Raises `PosgapError`
        if that cannot be known."""

        word_prompt = partial(self.word_prompt, example)
        found = [characters(word_prompt, documents, position) for position in range(1, len(documents) + 1)]
        return token_spans(token_offsets(self.tokenizer, self.chat, prompt.text, prompt.token_ids), found)

    def token_ids(self, text: str) -> list[int]:
        """Returns the token ids of a prompt's text, in the chat template if there is one.

        A special token in the text, for example in a passage, is read as plain characters.
        """
        whole = self.chat(text) if self.chat else text
        if any(token in text for token in self.special):
            before, found, after = whole.partition(text)
            if found:
                of_text = self._ids(text, split_special_tokens=True)
                own = [] if self.chat else self.tokenizer("", verbose=False)["input_ids"][:1]
                return [*own, *self._ids(before), *of_text, *self._ids(after)]
        return self.tokenizer(whole, add_special_tokens=not self.chat, verbose=False)["input_ids"]

    def _ids(self, text: str, **options: bool) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, verbose=False, **options)["input_ids"]
        return ids

    def response_ids(self, example: AnyExample, placement: Placement, text: str) -> list[int]:
        """The token ids of `text` as the model would write it after that prompt, with the end token.

        Raises `PosgapError` if the tokenizer joins the end of the prompt with the beginning of the response.
        """
        if self.chat:
            ids = self._ids(text)
        else:
            before = self.text(example, placement)
            prompt = self.token_ids(before)
            together = self.token_ids(f"{before} {text}")
            if together[: len(prompt)] != prompt:
                raise PosgapError(
                    f"example {example.id}: the tokenizer joins the prompt's end and the response into one token, so "
                    "the response has no token ids of its own"
                )
            ids = together[len(prompt) :]
        return [*ids, self.tokenizer.eos_token_id]

    def gold_response(self, example: AnyExample, placement: Placement) -> list[int]:
        """The token ids of the task's right response, and the end token."""
        return self.response_ids(example, placement, self.task.right_response(example, placement))

    def digest(self, *parts: str | list) -> str:
        """A digest of wording, order, chat template and vocabulary: two builders with equal digests make equal
        prompts."""
        own = (self.chat.source if self.chat else "", sorted(self.tokenizer.get_vocab().items()))
        return super().digest(*own, *parts)
