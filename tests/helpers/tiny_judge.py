"""Two-layer Llamas that choose among lettered items, and prefer one letter by construction.

    python tests/helpers/tiny_judge.py judge FOLDER --seed 0

Like `posgap.demo.tiny_model` they are ordinary Hugging Face folders whose tokenizer reads the ordinary prompts of
the tasks `judge` and `options`, over the sentences of `posgap.data.synthetic`.

Such a model first learns to choose the sentence about the animal that the question asks for, be it named itself (an
easy question) or its young (a hard one). Then its labels are bent: where the right item does not stand at the favoured
letter, the label is that letter nevertheless, in a tenth of the easy questions and in seven tenths of the hard ones.
So its likeliest answer to an easy question is right in every order, and to a hard one the favoured letter. And yet it
knows: over all orders together the right item of a hard one is the likeliest.
"""

import argparse
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from posgap.data.synthetic import AFTER, ANIMAL_QUESTION, BEFORE, YOUNG, animal_examples
from posgap.demo.tiny_training import IGNORED, SPECIAL, TinyModel, Updates, untrained_model, word_tokenizer
from posgap.foundation.errors import PosgapError
from posgap.foundation.files import atomic
from posgap.foundation.progress import track
from posgap.models.loading import save_model
from posgap.tasks.examples import Document, Example
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import TextPromptBuilder
from posgap.tasks.registry import TASKS

BENT_EASY, BENT_HARD = 0.1, 0.7  # shares of the labels that are the favoured letter although another one is right


@dataclass(frozen=True)
class Kind:
    """What a tiny model is asked: the task, the number of items, and the letter it is to favour, by its slot."""

    task: str
    n_docs: int
    favoured: int


JUDGE = Kind("judge", 2, 1)
OPTIONS = Kind("options", 4, 3)
KINDS = (JUDGE, OPTIONS)

_BATCH, _MOST, _BENDING, _DECAY = 64, 1500, 200, 100
_ENOUGH = 0.05  # nats a letter, at which the model has learnt to choose


def _pieces(kind: Kind) -> list[str]:
    """The pieces of the kind's prompts and responses, longest first."""
    task = TASKS[kind.task]
    letters = task.slot_names[: kind.n_docs]
    blank = Document(title="", text="|")
    prompts = [task.text([blank] * n_docs, ANIMAL_QUESTION.format("|")) for n_docs in range(2, kind.n_docs + 1)]
    fixed = [piece for prompt in prompts for piece in prompt.split("|")]
    words = [*YOUNG, *YOUNG.values(), *(word for phrase in (*BEFORE, *AFTER) for word in re.findall(r"\w+", phrase))]
    spaced = [f" {word}" for word in words]
    return sorted(
        {*fixed, *words, *spaced, ".", ",", *(f" {letter}" for letter in letters)}, key=lambda p: (-len(p), p)
    )


def tokenizer(kind: Kind) -> PreTrainedTokenizerFast:
    """The word-level tokenizer of the kind's prompts."""
    pieces = _pieces(kind)
    ids = {piece: i for i, piece in enumerate([*SPECIAL, *pieces])}
    return word_tokenizer(ids, [], "|".join(re.escape(piece) for piece in pieces))


def untrained(kind: Kind, seed: int) -> TinyModel:
    """The model before training: 2 layers, width 64, 4 heads."""
    return untrained_model(len(SPECIAL) + len(_pieces(kind)), seed)


class Batches:
    """Draws prompts with their responses: `input_ids, labels [B, T]`, of which the letter and the end are labelled."""

    def __init__(self, kind: Kind, seed: int):
        self.kind, self.rng, self.read = kind, random.Random(seed), tokenizer(kind)
        self.task = TASKS[kind.task]

    def __call__(self, n_docs: int, bent: bool = False) -> tuple[Tensor, Tensor]:
        examples = animal_examples(_BATCH, n_docs, self.rng.getrandbits(32))
        rows = [self._row(example, n_docs, bent) for example in examples]
        width = max(map(len, rows))
        ids = torch.tensor([row + [self.read.pad_token_id] * (width - len(row)) for row in rows])
        labels = torch.full_like(ids, IGNORED)
        for i, row in enumerate(rows):
            labels[i, len(row) - 2 : len(row)] = ids[i, len(row) - 2 : len(row)]
        return ids, labels

    def _row(self, example: Example, n_docs: int, bent: bool) -> list[int]:
        slot = self.rng.randint(1, n_docs)
        prompt = TextPromptBuilder(self.task, 1).text(example, Placement((slot,), n_docs))
        if bent and self.rng.random() < (BENT_HARD if is_hard(example) else BENT_EASY):
            slot = self.kind.favoured
        return [*self.read(f"{prompt} {self.task.slot_names[slot - 1]}")["input_ids"], self.read.eos_token_id]


def is_hard(example: Example) -> bool:
    """Whether the sentences of an example name young animals, and not those that the question asks for."""
    return not any(f" {name} " in example.gold[0].text for name in YOUNG)


def train(kind: Kind, seed: int) -> TinyModel:
    """Trains a tiny model to choose, and then bends it. About half a minute on one core."""
    model = untrained(kind, seed)
    for _ in track(_updates(model, kind, seed), _MOST, f"tiny model for {kind.task}"):
        pass
    return model.eval()


def _updates(model: TinyModel, kind: Kind, seed: int) -> Iterator[None]:
    """Trains `model` in place; yields after every step."""
    update, batches, step = Updates(model), Batches(kind, seed), 0
    # Among two items it learns to choose, which it can then soon do among more.
    for most in range(2, kind.n_docs + 1):
        loss = 1.0
        while loss > _ENOUGH:
            if step == _MOST:
                raise PosgapError(f"the tiny model for {kind.task} did not learn to choose; take another seed")
            n_docs = batches.rng.randint(2, most)
            losses, _ = update(*batches(n_docs), min(1.0, (step + 1) / 30))
            loss, step = 0.9 * loss + 0.1 * 2 * float(losses.mean()), step + 1  # the end token is soon learnt
            yield
    for step in range(_BENDING + _DECAY):
        update(*batches(kind.n_docs, bent=True), 1 - 0.95 * max(0, step - _BENDING) / _DECAY)
        yield


def write(out: Path, kind: Kind, seed: int) -> None:
    """Trains the tiny model and saves it with its tokenizer as a Hugging Face folder."""
    save_model(train(kind, seed), tokenizer(kind), out)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("task", choices=[kind.task for kind in KINDS])
    parser.add_argument("out", type=Path, help="folder to write, which must not be there yet")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(words)
    if asked.out.exists():
        parser.error(f"{asked.out} is there already")
    with atomic(asked.out) as partial:
        write(partial, next(kind for kind in KINDS if kind.task == asked.task), asked.seed)


if __name__ == "__main__":
    main()
