"""The Generator interface: groups of prompts in, their completions out, group by group."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from posgap.tasks.prompts import Prompt


class Completion(NamedTuple):
    """A response: its text without special tokens, and its token ids, end token included.

    An endpoint tells no token ids.
    """

    text: str
    token_ids: list[int]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. Temperature 0 is greedy; equal seeds give equal samples."""

    max_new_tokens: int
    temperature: float = 0.0
    seed: int = 0


class Generator(Protocol):
    """Whatever can answer prompts."""

    def generate(
        self, groups: Iterable[Sequence[Prompt]], sampling: Sampling
    ) -> Iterator[tuple[int, list[Completion]]]:
        """Yields (index of a group, one completion per prompt of it) as groups are finished.

        A group is what belongs together: the prompts of one example, which share much of their
        beginnings. `groups` is read as prompts are needed, so that it may be made on the way.
        """
        ...


def complete(generator: Generator, prompts: Sequence[Prompt], sampling: Sampling) -> Iterator[Completion]:
    """Yields one completion per prompt, in the order of the prompts, which share nothing."""
    finished: dict[int, Completion] = {}
    following = 0
    for index, (completion,) in generator.generate(([prompt] for prompt in prompts), sampling):
        finished[index] = completion
        while following in finished:
            yield finished.pop(following)
            following += 1
