"""Handles work whose first answers end within thoughts. A sweep changes its settings and says how; a teacher or a
comparison of mitigations, which need answers made like a sweep's, stop."""

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
LOOK = 8  # first answers; half of them must end within thoughts
SWITCH = "enable_thinking"  # the argument that turns thinking off in chat templates of Qwen3, SmolLM3, GLM and others
BUDGET, MIN_BUDGET = 2048, 256  # tokens of thoughts if thinking cannot be turned off; few models finish with fewer


class UnfinishedThoughts(PosgapError):
    """The first answers end within thoughts, at the token limit; `seen` says how many."""

    def __init__(self, seen: str):
        super().__init__(
            f"{seen}, at the limit of tokens; turn thinking off (--template-args '{{\"{SWITCH}\": false}}'), or give "
            "thoughts room (--max-thinking-tokens)"
        )
        self.seen = seen


class Retry(NamedTuple):
    """How to ask a model again if its thoughts did not end: the changed parameter, a new prompt builder, and words."""

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
        """Looks at the first of this number of answers; at none if the user has set the model's thinking."""
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
    """Returns other ways to ask a model whose thoughts do not end: first without thoughts, if its chat template has a
    known switch; then with a limit on thoughts, if the context has room for it.

    There are none if the user has set the model's thinking.
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
    """Returns whether the user has set the model's thinking, by its own limit or by the switch."""
    return bool(builder.max_thinking_tokens) or turns_off(builder)


def _has_switch(builder: TextPromptBuilder) -> bool:
    """Returns whether the chat template has the switch; an endpoint's may have it."""
    if isinstance(builder, PromptBuilder):
        return builder.chat is not None and bool(re.search(rf"\b{SWITCH}\b", builder.chat.source))
    return bool(builder.template)


def _room(builder: TextPromptBuilder, example: AnyExample, placement: Placement) -> int:
    """Returns the tokens available for thoughts: at most `BUDGET`, and within the model's context, with a margin for
    prompts somewhat longer than this one."""
    if not isinstance(builder, PromptBuilder):
        return BUDGET
    tokens = builder.fill.tokens if builder.fill else round(1.1 * len(builder.prompt(example, placement).token_ids))
    return min(BUDGET, builder.context - builder.max_new_tokens - tokens)


def turns_off(builder: TextPromptBuilder) -> bool:
    """Whether the switch is among the arguments of the chat template."""
    return SWITCH in builder.framing.arguments
