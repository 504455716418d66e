"""Token sequences of equal length to measure a model on, from one text, from many texts, or from prompts."""

import dataclasses
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import TextIO

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_jsonl
from posgap.foundation.progress import meter
from posgap.rollout.documents import Asked, shortened
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement, all_placements
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.reading import read_examples

log = logging.getLogger(__name__)
DEFAULT_LENGTH = 256
READ_AT_ONCE = 1 << 16  # characters of a text file


@dataclass(frozen=True)
class Sequences:
    """Sequences of `length` tokens each, read lazily; there are at most `most` of them (0: unknown).

    `asked` has the documents of each prompt that was read so far, where the sequences are prompts with one gold
    document whose documents' tokens can be told.
    """

    length: int
    most: int
    stream: Iterator[list[int]]
    asked: list[Asked] = field(default_factory=list)

    def batches(self, batch_tokens: int, what: str) -> Iterator[Tensor]:
        """Batches of `ids [B, N]` with at most `batch_tokens` tokens, but at least one sequence, in each.

        `what` names the work in the progress line, where a batch counts once whoever took it asks for the next.
        """
        with meter(self.most, what) as done:
            while batch := list(islice(self.stream, max(1, batch_tokens // self.length))):
                yield torch.tensor(batch)
                done(len(batch))


def read_text(path: Path, tokenizer: PreTrainedTokenizerBase, length: int, limit: int) -> Sequences:
    """Sequences of `length` tokens (0: 256): a text file cut into pieces, or the first tokens of a .jsonl's texts.

    Each begins with the tokenizer's begin-of-sequence token, if it has one. Texts that are too short are left out.
    """
    length = length or DEFAULT_LENGTH
    begin = tokenizer("")["input_ids"][:1]
    begin = begin if begin == [tokenizer.bos_token_id] else []
    read = _heads if path.suffix in (".jsonl", ".gz") else _pieces
    texts = (begin + ids for ids in read(path, tokenizer, length - len(begin)))
    return _sequences(texts, path, "text", length, limit)


def read_prompts(path: Path, build: PromptBuilder, n_docs: int, length: int, limit: int) -> Sequences:
    """Prompts of `length` tokens (0: that of the shortest prompt), the placements taken in turn, one per example.

    A longer prompt loses tokens right behind its first one, so that the first token and the question stay.
    A shorter prompt is left out.
    """
    placed = placed_examples(path, build, n_docs, limit)
    prompts = [build(example, placement) for example, placement in placed]
    length = length or min(map(len, prompts))
    asked: list[Asked] = []

    def fitting() -> Iterator[list[int]]:
        marked = build.task.n_gold == 1
        for prompt, (example, placement) in zip(prompts, placed):
            if len(prompt) < length:
                continue
            lost = len(prompt) - length
            if marked:
                documents = build.documents(example, placement)
                try:
                    spans = build.spans(example, documents, build.prompt(example, placement))
                except PosgapError as error:
                    log.warning("%s: shares by document are left out: %s", path, error)
                    marked = False
                    asked.clear()
                else:
                    asked.append(Asked(example.id, placement.positions[0], *shortened(spans, lost)))
            yield prompt[:1] + prompt[lost + 1 :]

    sequences = _sequences(fitting(), path, "prompt", length, len(prompts))
    return dataclasses.replace(sequences, asked=asked)


def placed_examples(path: Path, build: PromptBuilder, n_docs: int, limit: int) -> list[tuple[AnyExample, Placement]]:
    """The examples of a file, or the first `limit`, each at another of all placements in turn."""
    examples = read_examples(path)[: limit or None]
    placements = all_placements(n_docs, build.task.n_gold)
    return [(example, placements[i % len(placements)]) for i, example in enumerate(examples)]


def _sequences(texts: Iterator[list[int]], path: Path, what: str, length: int, most: int) -> Sequences:
    first = next(texts, None)
    if first is None:
        raise PosgapError(f"{path}: no {what} of {length} tokens; lower `length`")
    return Sequences(length, most, islice(chain([first], texts), most or None))


def _pieces(path: Path, tokenizer: PreTrainedTokenizerBase, size: int) -> Iterator[list[int]]:
    """A text file cut into pieces of `size` tokens."""
    left: list[int] = []
    try:
        with open(path, encoding="utf-8") as file:
            for text in _blocks(file):
                left += _tokens(text, tokenizer)
                whole = len(left) // size * size
                yield from (left[at : at + size] for at in range(0, whole, size))
                left = left[whole:]
    except (OSError, UnicodeDecodeError) as error:
        raise PosgapError(f"{path}: cannot be read as text: {error}") from None


def _blocks(file: TextIO) -> Iterator[str]:
    """A file's text in blocks that end before a space, where there is one."""
    rest = ""
    while text := file.read(READ_AT_ONCE):
        end = text.rfind(" ") if len(text) == READ_AT_ONCE else -1
        yield rest + text[: end if end > 0 else None]
        rest = text[end:] if end > 0 else ""
    if rest:
        yield rest


def _heads(path: Path, tokenizer: PreTrainedTokenizerBase, size: int) -> Iterator[list[int]]:
    """The first `size` tokens of every text of a .jsonl file."""
    for number, row in read_jsonl(path):
        if not isinstance(row.get("text"), str):
            raise PosgapError(f"{path}:{number}: field `text` is missing; to read examples, give their `task`")
        ids = _tokens(row["text"], tokenizer)
        if len(ids) >= size:
            yield ids[:size]


def _tokens(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
