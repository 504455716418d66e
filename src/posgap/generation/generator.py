"""The Generator interface, which takes groups of prompts and yields their completions group by group."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from posgap.tasks.prompts import Prompt


class Completion(NamedTuple):
    """A response: its text without special tokens, and its token ids with the end token (none from an endpoint)."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen: temperature 0 is greedy, and equal seeds give equal samples."""

    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0


class Generator(Protocol):
    """A model, local or elsewhere, that completes prompts."""

    def generate(
        self, groups: Iterable[Sequence[Prompt]], sampling: Sampling
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Yields (index of a group, one completion for each of its prompts) in the order in which groups finish.

        A group holds the prompts of one example, which have long beginnings in common. `groups` is read only as
        prompts are needed, so it may be an iterator that makes them.
        """
        ...


def complete(generator: Generator, prompts: Sequence[Prompt], sampling: Sampling) -> Iterator[Completion]:
    """Yields one completion per prompt, in the order of the prompts; each prompt is a group by itself."""
    finished: dict[int, Completion] = {}
    following = 0
    for index, (completion,) in generator.generate(([prompt] for prompt in prompts), sampling):
        finished[index] = completion
        while following in finished:
            yield finished.pop(following)
            following += 1
