"""The Generator interface: prompts of token ids in, completions out, in order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Completion(NamedTuple):
    """A response: its text without special tokens, and its token ids, end token included."""

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

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Iterator[Completion]:
        """Yields one completion per prompt, in the order of the prompts."""
        ...
