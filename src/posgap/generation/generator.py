"""Defines the Generator interface, which takes groups of prompts and yields each completion as soon as it is ready."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, Self, runtime_checkable

from posgap.foundation.files import digest_of
from posgap.generation.thoughts import opened_by
from posgap.tasks.prompts import Prompt, TextPromptBuilder

# How a prompt ended. Only `answered` is right or wrong; everything else scores 0 and is counted.
# answered: there is a text to score. truncated: the limit of tokens was reached before any text of an answer.
# refused: a content filter held back the prompt or the answer. empty: the model ended without any text.
# failed: there was no usable answer after all retries.
Outcome = Literal["answered", "truncated", "refused", "empty", "failed"]


class Usage(NamedTuple):
    """A prompt's tokens, a completion's tokens, how many of these were thoughts, and the seconds of waiting; None if
    unknown. A batch's usage stands with the first of its completions that is there. If an answer took several
    `prompts`, these are their sums.
    """

    prompt: int | None = None
    completion: int | None = None
    thinking: int | None = None
    seconds: float | None = None
    prompts: int = 1


class Completion(NamedTuple):
    """A response: its text without special tokens, and its token ids with the end token (none from an endpoint).

    `text` is the scored text: stripped, and without the model's `thoughts`, which are kept apart. `cut` says that the
    limit of tokens ended the text; it is scored all the same, since base models go on writing after a right answer. If
    the outcome is not `answered`, `reason` says why in the words of the endpoint or in ours.
    """

    text: str
    token_ids: list[int]
    outcome: Outcome = "answered"
    thoughts: str = ""
    reason: str = ""
    cut: bool = False
    usage: Usage | None = None

    @classmethod
    def from_text(
        cls, text: str, token_ids: list[int], cut: bool, thoughts: str = "", usage: Usage | None = None
    ) -> Self:
        """Returns a completion whose outcome follows from its text and from whether the token limit cut it off."""
        text = text.strip()
        thoughts = thoughts.strip()
        if text:
            return cls(text, token_ids, thoughts=thoughts, cut=cut, usage=usage)
        if cut:
            while_doing = "while thinking" if thoughts else "before any text"
            reason = f"the limit of new tokens was reached {while_doing}"
            return cls("", token_ids, "truncated", thoughts, reason, usage=usage)
        return cls("", token_ids, "empty", thoughts, "the model ended without any text", usage=usage)


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: temperature 0 is greedy, and equal seeds give equal samples. It also says where a response
    ends.

    It ends after `max_new_tokens`, thoughts included; with `max_thinking_tokens`, after that many tokens of thoughts or
    `max_new_tokens` of the answer. It also ends before the first `stop` string that follows text of the answer.
    `opened` is the thought's tag that the prompt's end opens: "" for none, None if unknown.
    """

    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    max_thinking_tokens: int = 0
    opened: str | None = ""

    @classmethod
    def for_builder(cls, builder: TextPromptBuilder, temperature: float = 0.0, seed: int = 0) -> Self:
        """Returns how prompts of this builder are answered."""
        opened = None if builder.ending is None else opened_by(builder.ending)
        return cls(builder.max_new_tokens, temperature, seed, builder.stop, builder.max_thinking_tokens, opened)

    def seed_of(self, prompt: Prompt) -> int:
        """The seed of a prompt's response, for backends that draw each by itself: another for every prompt and sample,
        since equal ones would draw alike, and examples count as independent."""
        if not self.temperature:
            return self.seed
        return int(digest_of([self.seed, prompt.text, list(prompt.token_ids), prompt.sample])[:7], 16)

    @property
    def ends_early(self) -> bool:
        """Whether a response can end before its end token and before the limit of all its tokens."""
        return bool(self.stop or self.max_thinking_tokens)

    @property
    def limit(self) -> int:
        """The most tokens of a response, thoughts and answer."""
        return self.max_new_tokens + self.max_thinking_tokens


class Generator(Protocol):
    """A model, local or elsewhere, that completes prompts."""

    def generate(self, groups: Iterable[Sequence[Prompt]], sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        """Yields (a group's index, a prompt's index within it, its completion), each as soon as it is ready.

        A group holds prompts of one example, which have long beginnings in common. `groups` is read only as prompts
        are needed, so it may be an iterator that makes them.
        """
        ...


@runtime_checkable
class LayerGenerator(Generator, Protocol):
    """A local model whose RoPE factors can be changed while it is loaded."""

    def scale_layers(self, factors: Sequence[float]) -> None:
        """Applies factors `[L]`."""
        ...


def complete(generator: Generator, prompts: Sequence[Prompt], sampling: Sampling) -> Iterator[Completion]:
    """Yields one completion per prompt, in the order of the prompts; each prompt is a group by itself."""
    finished: dict[int, Completion] = {}
    following = 0
    for index, _, completion in generator.generate(([prompt] for prompt in prompts), sampling):
        finished[index] = completion
        while following in finished:
            yield finished.pop(following)
            following += 1


def complete_groups(
    generator: Generator, groups: Sequence[Sequence[Prompt]], sampling: Sampling
) -> Iterator[tuple[int, list[Completion]]]:
    """Yields (index of a group, the completions of all its prompts in order) as groups finish."""
    unfinished: dict[int, dict[int, Completion]] = {}
    for index, number, completion in generator.generate(groups, sampling):
        answered = unfinished.setdefault(index, {})
        answered[number] = completion
        if len(answered) == len(groups[index]):
            yield index, [answered[i] for i in range(len(answered))]
            del unfinished[index]
