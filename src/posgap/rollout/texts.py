"""Token sequences of one length to measure a model on: from a text, from texts, or from prompts."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from posgap.errors import PosgapError
from posgap.files import read_jsonl
from posgap.progress import track
from posgap.tasks.examples import read_examples
from posgap.tasks.placements import all_placements
from posgap.tasks.prompts import PromptBuilder

DEFAULT_LENGTH = 256


def read_text(path: Path, tokenizer: PreTrainedTokenizerBase, length: int, limit: int) -> list[list[int]]:
    """Sequences of `length` tokens (0: 256): a text file cut into pieces, or the heads of a .jsonl's texts.

    Each begins with what the tokenizer begins a text with. Texts that are too short are left out.
    """
    length = length or DEFAULT_LENGTH
    whole = path.suffix not in (".jsonl", ".gz")
    if not whole:
        texts: Iterable[str] = _fields(path)
    else:
        try:
            texts = [path.read_text(encoding="utf-8")]
        except (OSError, UnicodeDecodeError) as error:
            raise PosgapError(f"{path}: cannot be read as text: {error}") from None
    begin = tokenizer("")["input_ids"][:1]
    begin = begin if begin == [tokenizer.bos_token_id] else []
    size = length - len(begin)
    sequences = []
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
        pieces = range(0, len(ids) - size + 1, size) if whole else range(len(ids) >= size)
        sequences += [begin + ids[at : at + size] for at in pieces]
        if limit and len(sequences) >= limit:
            break
    if not sequences:
        raise PosgapError(f"{path}: no text of {length} tokens; lower `length`")
    return sequences[: limit or None]


def read_prompts(path: Path, build: PromptBuilder, n_docs: int, length: int, limit: int) -> list[list[int]]:
    """Prompts of the examples, each at one placement in turn, all of `length` tokens (0: the shortest's).

    A longer prompt loses tokens right behind its first one, so that first token and question stay;
    a shorter one is left out.
    """
    examples = read_examples(path)[: limit or None]
    placements = all_placements(n_docs, build.task.n_gold)
    prompts = [build(example, placements[i % len(placements)]) for i, example in enumerate(examples)]
    length = length or min(map(len, prompts))
    fitting = [p for p in prompts if len(p) >= length]
    if not fitting:
        raise PosgapError(f"{path}: no prompt of {length} tokens; lower `length`")
    return [p[:1] + p[len(p) - length + 1 :] for p in fitting]


def batches(sequences: list[list[int]], batch_tokens: int, what: str) -> Iterator[Tensor]:
    """Batches of `ids [B, N]` of at most `batch_tokens`, at least one sequence each."""
    size = max(1, batch_tokens // len(sequences[0]))
    starts = range(0, len(sequences), size)
    for at in track(starts, len(starts), what):
        yield torch.tensor(sequences[at : at + size])


def _fields(path: Path) -> Iterator[str]:
    for number, row in read_jsonl(path):
        if not isinstance(row.get("text"), str):
            raise PosgapError(f"{path}:{number}: field `text` is missing; for examples give a `task`")
        yield row["text"]
