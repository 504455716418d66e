"""Token sequences to measure a model on: pieces of one text, the beginnings of many texts, or whole prompts."""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, cycle, groupby, islice
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from posgap.data.reading import read_examples
from posgap.foundation import bounds
from posgap.foundation.errors import Malformed, PosgapError
from posgap.foundation.files import read_jsonl
from posgap.foundation.progress import meter
from posgap.rollout.documents import MeasuredPrompt
from posgap.tasks.document_spans import token_offsets
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement, all_placements
from posgap.tasks.prompts import PromptBuilder

log = logging.getLogger(__name__)
DEFAULT_LENGTH = 256


@dataclass(frozen=True)
class Sequences:
    """Token sequences, read lazily, the `longest` first; there are at most `most` of them (0: unknown).

    `asked` has the places of each prompt's documents, in the order of the sequences, if these are prompts with one gold
    document and the documents' tokens can be found.
    """

    longest: int
    most: int
    stream: Iterator[list[int]]
    asked: list[MeasuredPrompt] = field(default_factory=list)

    def batches(self, batch_tokens: int, what: str) -> Iterator[Tensor]:
        """Yields batches `ids [B, N]` of sequences of one length, with at most `batch_tokens` tokens, but at least one
        sequence, in each.

        `what` names the work in the progress line; a batch counts once the next one is requested.
        """
        with meter(self.most, what) as done:
            for length, alike in groupby(self.stream, len):
                while batch := list(islice(alike, max(1, batch_tokens // length))):
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
    first = next(texts, None)
    if first is None:
        raise PosgapError(f"{path}: no text of {length} tokens; lower `length`")
    return Sequences(length, limit, islice(chain([first], texts), limit or None))


def read_prompts(path: Path, builder: PromptBuilder, n_docs: int, limit: int, positions: Sequence[int]) -> Sequences:
    """Whole prompts, the longest first, one per example, with the gold `positions` (none: all placements) in turn.

    Raises `PosgapError` if a prompt exceeds the model's context.
    """
    placed = placed_examples(path, builder, n_docs, limit, positions)
    prompts = [(list(builder.prompt(example, at).token_ids), example, at) for example, at in placed]
    prompts.sort(key=lambda prompt: -len(prompt[0]))
    asked: list[MeasuredPrompt] = []
    try:
        if builder.task.n_gold == 1:
            asked = [_locate_documents(builder, example, placement) for _, example, placement in prompts]
    except PosgapError as error:
        log.warning("%s: shares by document are left out: %s", path, error)
    return Sequences(len(prompts[0][0]), len(prompts), (ids for ids, *_ in prompts), asked)


def _locate_documents(builder: PromptBuilder, example: AnyExample, placement: Placement) -> MeasuredPrompt:
    prompt = builder.prompt(example, placement)
    spans = builder.spans(example, builder.documents(example, placement), prompt)
    offsets = token_offsets(builder.tokenizer, builder.chat, prompt.text, prompt.token_ids)
    within = [column for column, (start, end) in enumerate(offsets) if end > 0 and start < len(prompt.text)]
    return MeasuredPrompt(example.id, placement.positions[0], spans, (within[0], within[-1] + 1))


def placed_examples(
    path: Path, builder: PromptBuilder, n_docs: int, limit: int, positions: Sequence[int]
) -> list[tuple[AnyExample, Placement]]:
    """The examples of a file, or the first `limit`, each at the next of these gold positions (none: of all
    placements)."""
    examples = read_examples(path)[: limit or None]
    placements = [Placement((position,), n_docs) for position in positions] or all_placements(
        n_docs, builder.task.n_gold
    )
    return list(zip(examples, cycle(placements)))


def _pieces(path: Path, tokenizer: PreTrainedTokenizerBase, size: int) -> Iterator[list[int]]:
    """A text file cut into pieces of `size` tokens; a shorter rest at its end is left out."""
    ids = _tokenize(bounds.read_text(path), tokenizer)
    for start in range(0, len(ids) - size + 1, size):
        yield ids[start : start + size]


def _heads(path: Path, tokenizer: PreTrainedTokenizerBase, size: int) -> Iterator[list[int]]:
    """The first `size` tokens of every text of a .jsonl file."""
    for number, row in read_jsonl(path):
        if not isinstance(row.get("text"), str):
            raise Malformed(f"{path}:{number}: field `text` is missing; to read examples, give their `task`")
        ids = _tokenize(row["text"], tokenizer)
        if len(ids) >= size:
            yield ids[:size]


def _tokenize(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    return tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
