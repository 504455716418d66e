"""What is trained on at each step, and how it becomes tensors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from posgap.errors import PosgapError
from posgap.files import digest_of
from posgap.tasks.content import contents
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.responses import Response

T = TypeVar("T")
Positions = tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """An example and the response to be learnt."""

    example: AnyExample
    response: Response


def pair_up(examples: Sequence[AnyExample], responses: Sequence[Response]) -> list[Pair]:
    """Joins responses with their examples by content."""
    by_content = dict(zip(contents(examples), examples))
    missing = [response.id for response in responses if response.content not in by_content]
    if missing:
        raise PosgapError(f"{len(missing)} responses answer examples that are not given, the first {missing[0]}")
    return [Pair(by_content[response.content], response) for response in responses]


def with_gold(pair: Pair, build: PromptBuilder) -> Pair:
    """The pair with its gold answer in place of the teacher's response."""
    gold = build.gold_response(pair.example, pair.response.at)
    return Pair(pair.example, pair.response.model_copy(update={"token_ids": gold}))


def advantageous_rows(pairs: Sequence[Pair]) -> list["Row"]:
    """Each pair's prompt where its response was sampled: what the teacher reads."""
    return [Row(index, pair.response.at.positions) for index, pair in enumerate(pairs)]


@dataclass(frozen=True)
class Draw:
    """One example of a step, by index, and the placements drawn for it."""

    pair: int
    placements: tuple[Positions, ...]


class Row(NamedTuple):
    """One prompt of a step: the pair it is made of, by index, and where its gold documents stand."""

    pair: int
    positions: Positions


def plan(
    n_pairs: int, placements: Sequence[Positions], k: int, epochs: int, batch_size: int, seed: int
) -> list[list[Draw]]:
    """The steps of a training run: every pair once an epoch, at K of `placements`.

    A step takes `batch_size` pairs, or a few less where that makes the steps of an epoch even.
    Placements are drawn without replacement, anew each epoch. A pure function of its arguments,
    so that a run can be told, and taken up again, from its config.
    """
    if k > len(placements):
        raise PosgapError(f"k={k}: there are only {len(placements)} placements to draw from")
    steps = []
    for epoch in range(epochs):
        rng = np.random.default_rng([seed, epoch])
        draws = [
            Draw(int(i), tuple(placements[c] for c in sorted(rng.choice(len(placements), size=k, replace=False))))
            for i in rng.permutation(n_pairs)
        ]
        # Even steps: a last one of few examples would be a noisy step at full rate.
        bounds = np.linspace(0, n_pairs, -(-n_pairs // batch_size) + 1).round().astype(int)
        steps += [draws[start:end] for start, end in pairwise(bounds)]
    return steps


def share(rows: Sequence[T], rank: int, world: int) -> list[T]:
    """What process `rank` of `world` computes of a step: the same number of rows on each.

    Where `rows` do not divide evenly, the first row stands in for what is missing, at the end.
    """
    most = -(-len(rows) // world)
    own = list(rows[rank::world])
    return own + [rows[0]] * (most - len(own))


@dataclass
class Batch:
    """Prompts followed by their responses, padded on the right.

    `input_ids [R, S]` end with r_{T-1}. `predicts [R, S]` is true at the columns whose *next*
    token is a response token, the prompt's last column first; there are M of them, and
    `targets [M]` holds those next tokens, row after row, `lengths [R]` how many each row has.

    Padding stands behind everything that is read, so causal attention needs no mask for it.
    """

    rows: list[Row]
    input_ids: Tensor
    predicts: Tensor
    targets: Tensor
    lengths: Tensor

    def to(self, device: torch.device) -> "Batch":
        targets, lengths = self.targets.to(device), self.lengths.to(device)
        return Batch(self.rows, self.input_ids.to(device), self.predicts.to(device), targets, lengths)


class Collator:
    """Makes batches of rows; remembers no prompts."""

    def __init__(self, pairs: Sequence[Pair], build: PromptBuilder):
        self.pairs, self.build, self.pad = pairs, build, build.tokenizer.pad_token_id

    def token_ids(self, row: Row) -> tuple[list[int], list[int]]:
        """Prompt and response of a row."""
        pair = self.pairs[row.pair]
        return self.build(pair.example, Placement(row.positions, pair.response.n_docs)), pair.response.token_ids

    def key(self, row: Row) -> str:
        """sha256 of a row's token ids: what a model reads there."""
        return digest_of(self.token_ids(row))

    def __call__(self, rows: Sequence[Row]) -> Batch:
        prompts, responses = zip(*map(self.token_ids, rows))
        read = [prompt + response[:-1] for prompt, response in zip(prompts, responses)]
        width = max(map(len, read))
        predicts = torch.zeros(len(rows), width, dtype=torch.bool)
        for row, (prompt, ids) in enumerate(zip(prompts, read)):
            predicts[row, len(prompt) - 1 : len(ids)] = True
        return Batch(
            rows=list(rows),
            input_ids=torch.tensor([ids + [self.pad] * (width - len(ids)) for ids in read]),
            predicts=predicts,
            targets=torch.tensor([token for response in responses for token in response]),
            lengths=torch.tensor([len(response) for response in responses]),
        )


def chunks(rows: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """`rows` in runs of `size`."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
