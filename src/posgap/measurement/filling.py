"""Prompts of a given length in tokens: filled up to it with documents other than the gold one.

The gold document stands after a share of the filler, its depth, at the nearest border of two documents. The last
document of the filler is cut so that prompt and longest answer together have exactly the tokens that were asked for, as
the model's own tokenizer counts them, the chat template included.
"""

import logging
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import Record, digest_of
from posgap.tasks.examples import AnyExample, Document
from posgap.tasks.metrics import holds_answer
from posgap.tasks.placements import Placement
from posgap.tasks.positions import parse_depths, tokens_of
from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder
from posgap.tasks.slots import INSERTED, shuffle_documents
from posgap.tasks.task import PromptOrder

log = logging.getLogger(__name__)
_TRIES = 8  # of where to cut, each of which is tokenized
_SPARE = range(4)  # tokens of the document before the cut one that go too, where no cut alone fits


class FillRecord(Record):
    """To what length a sweep's prompts were filled, and with what."""

    length: str = Field(description="as it was asked for: tokens, or a share of the context like 50%")
    tokens: int = Field(ge=1, description="of prompt and longest answer together")
    depths: list[float] = Field(
        min_length=1, description="of each placement: percent of the filler before the gold document"
    )
    seed: int = Field(ge=0, description="by which filler of other examples was drawn")
    pool: str = Field(description="sha256 of all distractors")
    documents: int = Field(ge=1, description="in the first example's prompt")

    @property
    def depth_names(self) -> list[str]:
        """The depths as text."""
        return [f"{depth:.3g} %" for depth in self.depths]


class Fill:
    """Fills prompts up to `tokens`, those of the longest answer included, with what `examples` have of distractors.

    An example's own come first, in their order, then those of other examples, in an order drawn by `seed`, but none
    that holds one of the example's answers, has the gold document's title, or stands in the prompt already.
    """

    def __init__(self, length: str, tokens: int, depths: Sequence[float], seed: int, examples: Sequence[AnyExample]):
        self.length, self.tokens, self.depths, self.seed = length, tokens, list(depths), seed
        self._examples, self._is_said = examples, False  # that prompts fall short
        # Of the last example, since its prompts come together.
        self._plan: tuple[tuple[str, PromptOrder], _Plan] | None = None

    @property
    def placements(self) -> list[Placement]:
        """A placement for each depth: its number among them."""
        return [Placement((number,), len(self.depths)) for number in range(1, len(self.depths) + 1)]

    @cached_property
    def pool(self) -> str:
        """sha256 of all distractors of all examples."""
        dumped = []
        for of_example in self._distractors:
            dumped.append([document.model_dump() for document in of_example])
        return digest_of(dumped)

    @property
    def as_json(self) -> dict[str, object]:
        """What decides the filler of a prompt."""
        return {"tokens": self.tokens, "depths": self.depths, "seed": self.seed, "pool": self.pool}

    def filled(self, builder: TextPromptBuilder, first: AnyExample) -> FillRecord:
        """What a sweep's file says of it, whose first example is this."""
        documents = len(self.documents(builder, first, self.placements[0]))
        return FillRecord(length=self.length, documents=documents, **self.as_json)  # type: ignore[arg-type]

    def documents(self, builder: TextPromptBuilder, example: AnyExample, placement: Placement) -> list[Document]:
        """The documents of a prompt: the filler with the gold document at the placement's depth.

        Raises `PosgapError` where there is too little filler, or the length is too short for the depths.
        """
        assert isinstance(builder, PromptBuilder)
        asked = example.id, builder.order
        if self._plan is None or self._plan[0] != asked:
            self._plan = asked, self._find_plan(builder, example)
        plan, (number,) = self._plan[1], placement.positions
        at = plan.borders[number - 1]
        fillers = self._exactly(example, plan.pool, plan.number, plan.removed, plan.counted(at)).fillers
        return plan.placed(fillers, at)

    @cached_property
    def _distractors(self) -> list[list[Document]]:
        return [example.distractors for example in self._examples]

    def _find_plan(self, builder: PromptBuilder, example: AnyExample) -> "_Plan":
        """How an example's prompts are filled, found for the one whose gold document stands last."""
        own = shuffle_documents(list(dict.fromkeys(example.distractors)), example, builder.order.shuffle)
        pool = _DistractorPool(builder, own, self._drawn(example, {*own, *example.gold}))
        plan = _Plan(builder, example, self.tokens, pool)
        count = plan.counted(None)
        least, target = count([]) + plan.target, plan.target
        if least > target:
            raise PosgapError(
                f"length {self.tokens}: example {example.id} takes {least + self.tokens - target} tokens without any "
                "filler, its longest answer included; ask for a longer one, or lower max_new_tokens"
            )
        # Sizes leave out what a task writes around each document.
        around = count(plan.pool.first(1)) + target - least - plan.pool.size(1)
        number = plan.pool.fewest(target - least, around)
        size = plan.pool.size(number, around)
        if size:
            filler = count(plan.pool.first(number)) + target - least
            number = plan.pool.fewest((target - least) * size / filler, around)
        while number and count(plan.pool.first(number - 1)) >= 0:
            number -= 1
        exact = self._exactly(example, plan.pool, number, 0, count)
        plan.number, plan.removed = exact.number, exact.removed
        if exact.short and not self._is_said:
            self._is_said = True
            log.warning(
                "length %d: no cut of a document fits exactly, so prompts fall short of it, that of %s by %d tokens",
                self.tokens, example.id, exact.short,
            )  # fmt: skip
        plan.borders = self._borders(plan, example)
        return plan

    def _borders(self, plan: "_Plan", example: AnyExample) -> list[int | None]:
        """After how many documents of filler the gold one stands at each depth; None: after all of them."""
        sizes = plan.pool.sizes[: plan.number]
        if sizes:
            sizes[-1] = max(0, sizes[-1] - plan.removed)
        ends = [0, *accumulate(sizes)]
        # Of two that are as near, as around a document that is cut to nothing, the outer one.
        nearest = [
            min(range(len(ends)), key=lambda i: (abs(ends[i] - depth / 100 * ends[-1]), -i if depth > 50 else i))
            for depth in self.depths
        ]
        if len(set(nearest)) < len(nearest):
            raise PosgapError(
                f"length {self.tokens}: the filler of example {example.id} is {len(sizes)} documents, too few for "
                f"{len(self.depths)} depths; ask for a longer one, or for fewer --depths"
            )
        return [None if at == len(sizes) else at for at in nearest]

    def _exactly(
        self, example: AnyExample, pool: "_DistractorPool", number: int, removed: int, count: "Count"
    ) -> "_FittedFiller":
        """Filler with which a prompt has exactly the tokens asked for: the fewest documents that are enough, of which
        some tokens are removed at the end, `removed` if that fits. Where nothing fits, what falls least short of it.
        """
        if removed:
            cut = pool.shortened(pool.first(number), removed)
            if not count(cut):
                return _FittedFiller(cut, number, removed, 0)
        excess = count(pool.first(number))
        while excess < 0:
            number += 1
            if not pool.has(number):
                raise PosgapError(
                    f"length {self.tokens}: example {example.id} is filled to {self.tokens + excess} tokens with its "
                    "own distractors and all that may be taken from the other examples; ask for a shorter one, or give "
                    "more examples, or examples with more distractors"
                )
            excess = count(pool.first(number))
        fillers = pool.first(number)
        if not excess:
            return _FittedFiller(fillers, number, 0, 0)
        nearest = _FittedFiller(pool.first(number - 1), number - 1, 0, -count(pool.first(number - 1)))
        for spare in _SPARE:
            tried: set[int] = set()
            fewer = max(excess - spare, 0)
            while fewer + spare > 0 and fewer >= 0 and fewer not in tried and len(tried) < _TRIES:
                tried.add(fewer)
                cut = pool.shortened(fillers, fewer, spare)
                off = count(cut)
                if not off:
                    return _FittedFiller(cut, number, 0 if spare else fewer, 0)
                if 0 < -off < nearest.short:
                    nearest = _FittedFiller(cut, number, 0, -off)
                fewer += off
        return nearest

    def _drawn(self, example: AnyExample, there: set[Document]) -> Iterator[Document]:
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


Count = Callable[[Sequence[Document]], int]  # by how many tokens a prompt with this filler exceeds its length


class _FittedFiller(NamedTuple):
    """Filler, of how many documents it is, how many of their tokens were removed, and by how many it falls short."""

    fillers: list[Document]
    number: int
    removed: int
    short: int


class _Plan:
    """How the prompts of an example are filled: with so many documents of its stock, of which about so many tokens are
    removed, and at which borders between them the gold document stands."""

    def __init__(self, builder: PromptBuilder, example: AnyExample, tokens: int, pool: "_DistractorPool"):
        self._build, self._example, self.pool = builder, example, pool
        self.target = tokens - builder.max_new_tokens - builder.max_thinking_tokens
        self.number = self.removed = 0
        self.borders: list[int | None] = []

    def placed(self, fillers: Sequence[Document], at: int | None) -> list[Document]:
        """The filler with the gold document after so many of its documents; None: after all."""
        at = len(fillers) if at is None else at
        return [*fillers[:at], *self._example.gold, *fillers[at:]]

    def counted(self, at: int | None) -> Count:
        """By how many tokens a prompt is too long, whose gold document stands there."""

        def count(fillers: Sequence[Document]) -> int:
            text = self._build.word_prompt(self._example, self.placed(fillers, at))
            return len(self._build.token_ids(text)) - self.target

        return count


class _DistractorPool:
    """The filler of an example: its own documents, then those drawn for it, as far as they are needed.

    `sizes` are the tokens of each document's title and text.
    """

    def __init__(self, builder: PromptBuilder, own: list[Document], drawn: Iterator[Document]):
        self._tokenizer, self._drawn = builder.tokenizer, drawn
        self._documents: list[Document] = []
        self.sizes: list[int] = []
        self._add(own)

    def fewest(self, tokens: float, around: int) -> int:
        """The fewest of the first documents that have so many tokens together, with so many around each, or else all
        that there are."""
        number, total = 0, 0
        while total < tokens and self.has(number + 1):
            total += self.sizes[number] + around
            number += 1
        return number

    def has(self, number: int) -> bool:
        """Whether there are so many documents."""
        while len(self._documents) < number:
            document = next(self._drawn, None)
            if document is None:
                return False
            self._add([document])
        return True

    def first(self, number: int) -> list[Document]:
        """The first so many documents."""
        self.has(number)
        return self._documents[:number]

    def size(self, number: int, around: int = 0) -> int:
        """The tokens of the first so many documents, with so many around each."""
        return sum(size + around for size in self.sizes[:number])

    def shortened(self, documents: Sequence[Document], fewer: int, spare: int = 0) -> list[Document]:
        """The documents without the last so many tokens of their texts: the last text is cut, and where that is not
        enough the one before it. Of the document before the cut one `spare` tokens are left out, too."""
        shorter = list(documents)
        for i in range(len(shorter) - 1, -1, -1):
            size = self._count(shorter[i].text)
            kept = max(0, size - fewer)
            shorter[i] = shorter[i].model_copy(update={"text": self._beginning(shorter[i].text, kept)})
            fewer -= size - kept
            if not fewer:
                return [*self.shortened(shorter[:i], spare), *shorter[i:]] if spare else shorter
        return shorter

    def _beginning(self, text: str, tokens: int) -> str:
        """The longest beginning of a text that has at most so many tokens."""
        lengths = range(1, len(text) + 1 if tokens else 1)
        return text[: bisect_right(lengths, tokens, key=lambda length: self._count(text[:length]))]

    def _count(self, text: str) -> int:
        return len(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _add(self, documents: Sequence[Document]) -> None:
        if documents:
            texts = [f"{document.title} {document.text}" for document in documents]
            self.sizes += [len(ids) for ids in self._tokenizer(texts, add_special_tokens=False)["input_ids"]]
            self._documents += documents


def at_lengths(
    lengths: Sequence[str], depths: str, seed: int, builder: TextPromptBuilder, examples: Sequence[AnyExample]
) -> list[PromptBuilder]:
    """For each of these lengths, the shortest first, the builder of its prompts: they are filled with the distractors
    of these examples, drawn by `seed`, with the gold document at these `depths`.

    Raises `PosgapError` where a length exceeds the model's context, two are the same, or the task's prompts cannot be
    filled.
    """
    if not isinstance(builder, PromptBuilder):
        raise PosgapError("lengths: are counted by the model's tokenizer, which an endpoint keeps to itself")
    if builder.task.n_gold != 1 or builder.task.slots is not INSERTED:
        raise PosgapError(
            f"lengths: task {builder.task.name} is not one gold document among others, which could be filler"
        )
    tokens = {length: tokens_of(length, builder.context) for length in dict.fromkeys(lengths)}
    for length, number in tokens.items():
        if number > builder.context:
            raise PosgapError(f"length {length}: the model reads no more than {builder.context} tokens")
        for other, same in tokens.items():
            if same == number and other != length:
                raise PosgapError(f"lengths {length} and {other}: are both {number} tokens; leave one out")
    ordered = sorted(tokens.items(), key=lambda item: item[1])
    return [
        builder.with_attributes(fill=Fill(length, number, parse_depths(depths), seed, examples))
        for length, number in ordered
    ]
