"""Prompts of a given length in tokens: filled with as many whole documents beside the gold one as fit.

The gold document stands after a share of the filler, its depth, at the nearest border of two documents. Prompt and
longest answer together have at most the tokens that were asked for, as the model's own tokenizer counts them, the chat
template included.
"""

import random
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain

import numpy as np
from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import Record, digest_of
from posgap.tasks.examples import AnyExample, Document
from posgap.tasks.metrics import holds_answer
from posgap.tasks.placements import Placement
from posgap.tasks.positions import parse_depths, tokens_of
from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder
from posgap.tasks.slots import INSERTED, shuffle_documents


class FillRecord(Record):
    """The length to which a sweep's prompts were filled, and what fills them."""

    length: str = Field(description="the requested length: tokens, or a share of the context like 50%")
    tokens: int = Field(ge=1, description="largest number of tokens of a prompt and its longest answer")
    depths: list[float] = Field(
        min_length=1, description="of each placement: percent of the filler before the gold document"
    )
    seed: int = Field(ge=0, description="seed that drew the filler of other examples")
    pool: str = Field(description="sha256 of all distractors")
    whole: bool = Field(False, description="false if an older posgap cut the last document")
    documents: int = Field(ge=1, description="documents in the first example's prompt")

    @property
    def depth_names(self) -> list[str]:
        """The depths as text."""
        return [f"{depth:.3g} %" for depth in self.depths]


class Fill:
    """Fills prompts up to `tokens`, the longest answer included, with distractors from `examples`.

    An example's own distractors come first, in their order. Then come those of other examples, in an order drawn by
    `seed`, without any that holds one of the example's answers, has the gold document's title, or is in the prompt
    already. All of an example's prompts have the same filler, as much as fits at every depth.
    """

    def __init__(self, length: str, tokens: int, depths: Sequence[float], seed: int, examples: Sequence[AnyExample]):
        self.length = length
        self.tokens = tokens
        self.depths = list(depths)
        self.seed = seed
        self._examples = examples
        # Of the last example, since its prompts come together.
        self._last: tuple[PromptBuilder, str, list[list[Document]]] | None = None

    @property
    def placements(self) -> list[Placement]:
        """A placement for each depth: its number among them."""
        return [Placement((number,), len(self.depths)) for number in range(1, len(self.depths) + 1)]

    @cached_property
    def pool(self) -> str:
        """sha256 of all distractors of all examples."""
        return digest_of([document.model_dump() for document in chain.from_iterable(self._distractors)])

    @property
    def as_json(self) -> dict[str, object]:
        """The settings that decide the filler of a prompt."""
        return {"tokens": self.tokens, "depths": self.depths, "seed": self.seed, "pool": self.pool, "whole": True}

    def make_record(self, builder: TextPromptBuilder, first: AnyExample) -> FillRecord:
        """Returns the record for the file of a sweep whose first example is this."""
        documents = len(self.documents(builder, first, self.placements[0]))
        return FillRecord(length=self.length, documents=documents, **self.as_json)  # type: ignore[arg-type]

    def documents(self, builder: TextPromptBuilder, example: AnyExample, placement: Placement) -> list[Document]:
        """The documents of a prompt: the filler with the gold document at the placement's depth.

        Raises `PosgapError` if there is too little filler, or the length is too short for the depths.
        """
        assert isinstance(builder, PromptBuilder)
        if self._last is None or self._last[:2] != (builder, example.id):
            self._last = builder, example.id, self._fill_up(builder, example)
        (number,) = placement.positions
        return self._last[2][number - 1]

    @cached_property
    def _distractors(self) -> list[list[Document]]:
        return [example.distractors for example in self._examples]

    def _fill_up(self, builder: PromptBuilder, example: AnyExample) -> list[list[Document]]:
        """The documents of an example's prompt at each depth."""
        pool, ends = self._collect_pool(builder, example)

        def count_tokens(documents: Sequence[Document]) -> int:
            """Tokens of the prompt and the longest answer."""
            tokens = len(builder.token_ids(builder.word_prompt(example, documents)))
            return tokens + builder.max_new_tokens + builder.max_thinking_tokens

        def count_first(number: int) -> int:
            return count_tokens([*pool[:number], *example.gold])

        number = bisect_right(range(len(pool) + 1), self.tokens, key=count_first) - 1
        if number < 0:
            raise PosgapError(
                f"length {self.tokens}: example {example.id} takes {count_first(0)} tokens without filler, "
                "including its longest answer; give a greater length, or lower max_new_tokens"
            )
        if number == len(pool) and count_first(number) < self.tokens:
            raise PosgapError(
                f"length {self.tokens}: example {example.id} is filled to {count_first(number)} tokens with its own "
                "distractors and all that may be taken from the other examples; ask for a shorter one, or give more "
                "examples, or examples with more distractors"
            )
        by_depth = self._place_gold(example, pool[:number], ends)
        # The tokens at a document's border are joined differently elsewhere.
        while max(map(count_tokens, by_depth)) > self.tokens:
            number -= 1
            by_depth = self._place_gold(example, pool[:number], ends)
        return by_depth

    def _collect_pool(self, builder: PromptBuilder, example: AnyExample) -> tuple[list[Document], list[int]]:
        """The filler that an example may have, more than fits or all there is, and after how many tokens of documents,
        each as the task writes it alone, each of its borders comes."""
        own = shuffle_documents(list(dict.fromkeys(example.distractors)), example, builder.order.shuffle)
        pool = list[Document]()
        ends = [0]
        for document in chain(own, self._draw(example, {*own, *example.gold})):
            if ends[-1] > 2 * self.tokens:  # among others a document has fewer tokens than alone, but not by half
                break
            text = builder.task.render([document])
            pool.append(document)
            ends.append(ends[-1] + len(builder.tokenizer(text, add_special_tokens=False)["input_ids"]))
        return pool, ends

    def _place_gold(self, example: AnyExample, filler: list[Document], ends: Sequence[int]) -> list[list[Document]]:
        """The filler with the gold document at each depth, at the nearest border."""
        there = np.array(ends[: len(filler) + 1])
        borders = {int(np.abs(there - depth / 100 * there[-1]).argmin()) for depth in self.depths}
        if len(borders) < len(self.depths):
            raise PosgapError(
                f"length {self.tokens}: the filler of example {example.id} is {len(filler)} documents, too few for "
                f"{len(self.depths)} depths; ask for a longer one, or for fewer --depths"
            )
        return [[*filler[:at], *example.gold, *filler[at:]] for at in sorted(borders)]

    def _draw(self, example: AnyExample, there: set[Document]) -> Iterator[Document]:
        """Filler of the other examples, in a random order of this example's own."""
        titles = {document.title.casefold() for document in example.gold} - {""}
        others: list[Document] = []
        for other, of_other in zip(self._examples, self._distractors):
            if other.id != example.id:
                others += of_other
        random.Random(f"{self.seed} {example.id}").shuffle(others)
        for document in others:
            usable = document.title.casefold() not in titles and not holds_answer(document, example.answers)
            if usable and document not in there:
                there.add(document)
                yield document


def at_lengths(
    lengths: Sequence[str], depths: str, seed: int, builder: TextPromptBuilder, examples: Sequence[AnyExample]
) -> list[TextPromptBuilder]:
    """Returns the prompt builder of each length, the shortest first; without lengths the unchanged builder.

    Prompts are filled with the distractors of these examples, drawn by `seed`, with the gold document at `depths`.

    Raises `PosgapError` if a length exceeds the model's context, two are the same, or the task's prompts cannot be
    filled.
    """
    if not lengths:
        return [builder]
    if not isinstance(builder, PromptBuilder):
        raise PosgapError("lengths: need the model's tokenizer, which an endpoint does not give")
    if builder.task.n_gold != 1 or builder.task.slots is not INSERTED:
        raise PosgapError(
            f"lengths: task {builder.task.name} is not one gold document among others, which could be filler"
        )
    by_tokens: dict[int, str] = {}
    for length in lengths:
        tokens = tokens_of(length, builder.context)
        if tokens > builder.context:
            raise PosgapError(f"length {length}: the model reads no more than {builder.context} tokens")
        other = by_tokens.setdefault(tokens, length)
        if other != length:
            raise PosgapError(f"lengths {other} and {length}: are both {tokens} tokens; leave one out")
    return [
        builder.with_attributes(fill=Fill(length, tokens, parse_depths(depths), seed, examples))
        for tokens, length in sorted(by_tokens.items())
    ]
