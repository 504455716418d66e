"""What becomes of work whose first answers end within thoughts: a sweep asks the model otherwise, and says how; what
needs answers as a sweep's were, a teacher or a comparison of mitigations, ends."""

import logging
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from posgap.foundation.errors import PosgapError
from posgap.generation.generator import Completion
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder

log = logging.getLogger(__name__)
LOOK = 8  # first answers, of which half must end within thoughts
SWITCH = "enable_thinking"  # the argument by which chat templates of Qwen3, SmolLM3, GLM and others turn thinking off
BUDGET, MIN_BUDGET = 2048, 256  # tokens of thoughts where nothing turns them off; with fewer few models come to an end


class UnfinishedThoughts(PosgapError):
    """The first answers end within thoughts, at the limit of tokens; `seen` says of how many."""

    def __init__(self, seen: str):
        super().__init__(
            f"{seen}, at the limit of tokens; turn thinking off (--template-args '{{\"{SWITCH}\": false}}'), or give "
            "thoughts room (--max-thinking-tokens)"
        )
        self.seen = seen


class Retry(NamedTuple):
    """How a model is asked whose thoughts did not end: the changed parameter, what makes prompts then, and words."""

    changed: dict[str, Any]
    builder: TextPromptBuilder
    words: str


class FirstThoughts:
    """Looks at the first answers as they come. Raises `UnfinishedThoughts` if at least half end within thoughts."""

    def __init__(self, total: int):
        self.look = min(LOOK, total)
        self.count = 0
        self.unfinished = 0

    @classmethod
    def for_prompts(cls, builder: TextPromptBuilder, total: int) -> "FirstThoughts":
        """Looks at the first of this number of answers; at none if somebody has decided on the model's thoughts."""
        return cls(0 if _is_decided(builder) else total)

    @property
    def is_over(self) -> bool:
        """Whether enough was looked at."""
        return self.count == self.look

    def __call__(self, completion: Completion) -> None:
        if self.is_over:
            return
        self.count += 1
        self.unfinished += completion.outcome == "truncated" and bool(completion.thoughts)
        if self.is_over and 2 * self.unfinished >= self.look:
            raise UnfinishedThoughts(f"{self.unfinished} of the first {self.look} answers end within thoughts")


def thinking_retries(builder: TextPromptBuilder, example: AnyExample, placement: Placement) -> Iterator[Retry]:
    """In which other ways a model can be asked whose thoughts do not end: first without any, where a switch of its chat
    template is known, then with a limit of their own, as far as the context has room for it.

    There are none if somebody has decided on the model's thoughts.
    """
    if _is_decided(builder):
        return
    if _has_switch(builder):
        arguments = {**builder.framing.arguments, SWITCH: False}
        yield Retry(
            {"template_args": arguments},
            builder.with_template_args(arguments),
            f'thinking is turned off (--template-args {{"{SWITCH}": false}})',
        )
    room = _room(builder, example, placement)
    if room >= MIN_BUDGET:
        words = f"thoughts get {room:,} tokens beside those of the answer (--max-thinking-tokens {room})"
        yield Retry({"max_thinking_tokens": room}, builder.with_attributes(max_thinking_tokens=room), words)


def _is_decided(builder: TextPromptBuilder) -> bool:
    """Whether somebody has decided on the model's thoughts, by a limit of their own or by the switch."""
    return bool(builder.max_thinking_tokens) or turns_off(builder)


def _has_switch(builder: TextPromptBuilder) -> bool:
    """Whether the chat template has the switch; one of an endpoint may have it."""
    if isinstance(builder, PromptBuilder):
        return builder.chat is not None and bool(re.search(rf"\b{SWITCH}\b", builder.chat.source))
    return bool(builder.template)


def _room(builder: TextPromptBuilder, example: AnyExample, placement: Placement) -> int:
    """The tokens that thoughts can have: at most `BUDGET`, and of a model's context a part that other prompts, which
    may be somewhat longer than this one, leave."""
    if not isinstance(builder, PromptBuilder):
        return BUDGET
    tokens = builder.fill.tokens if builder.fill else round(1.1 * len(builder.prompt(example, placement).token_ids))
    return min(BUDGET, builder.context - builder.max_new_tokens - tokens)


def turns_off(builder: TextPromptBuilder) -> bool:
    """Whether the switch is among the arguments of the chat template."""
    return SWITCH in builder.framing.arguments
