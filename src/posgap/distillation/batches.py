"""What is trained on at each step, and how it becomes tensors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from posgap.errors import PosgapError
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.responses import Response


@dataclass(frozen=True)
class Pair:
    """An example and the teacher's response to it."""

    example: AnyExample
    response: Response


def pair_up(examples: Sequence[AnyExample], responses: Sequence[Response]) -> list[Pair]:
    """Joins responses with their examples by id."""
    by_id = {example.id: example for example in examples}
    missing = [response.id for response in responses if response.id not in by_id]
    if missing:
        raise PosgapError(f"{len(missing)} responses answer examples that are not given, the first {missing[0]}")
    return [Pair(by_id[response.id], response) for response in responses]


@dataclass(frozen=True)
class Draw:
    """One example of a step, by index, and the trivial positions drawn for it."""

    pair: int
    positions: tuple[int, ...]


def plan(
    n_pairs: int, n_docs: int, advantageous: int, k: int, epochs: int, batch_size: int, seed: int
) -> list[list[Draw]]:
    """The steps of a training run: every pair once an epoch, K trivial positions each.

    A step takes `batch_size` pairs, or a few less where that makes the steps of an epoch even.
    Positions are drawn without replacement from all but the advantageous one, anew each epoch.
    A pure function of its arguments, so that a run can be told from its config.
    """
    trivial = [i for i in range(1, n_docs + 1) if i != advantageous]
    if k > len(trivial):
        raise PosgapError(f"k={k}: only {len(trivial)} of {n_docs} positions are not the advantageous one")
    steps = []
    for epoch in range(epochs):
        rng = np.random.default_rng([seed, epoch])
        draws = [
            Draw(int(i), tuple(sorted(rng.choice(trivial, size=k, replace=False).tolist())))
            for i in rng.permutation(n_pairs)
        ]
        # Even steps: a last one of few examples would be a noisy step at full rate.
        bounds = np.linspace(0, n_pairs, -(-n_pairs // batch_size) + 1).round().astype(int)
        steps += [draws[start:end] for start, end in pairwise(bounds)]
    return steps


def share(draws: Sequence[Draw], rank: int, world: int) -> Sequence[Draw]:
    """The draws of one step that process `rank` of `world` computes."""
    return draws[rank::world]


@dataclass
class Batch:
    """Prompts with their responses, aligned to the right.

    `input_ids, attention_mask, position_ids [R, S]` end with r_{T-1}, so that the last T columns
    predict r_1..r_T; `targets, response_mask [R, T]` hold those tokens, rows with shorter
    responses padded on the left. `pairs [R]` says whose response a row holds and `positions [R]`
    where its gold document stands.
    """

    input_ids: Tensor
    attention_mask: Tensor
    position_ids: Tensor
    targets: Tensor
    response_mask: Tensor
    pairs: Tensor
    positions: Tensor

    @property
    def window(self) -> int:
        """T: how many columns of logits are needed, at the end."""
        return self.targets.shape[1]

    def model_inputs(self) -> dict[str, Tensor]:
        return {
            "input_ids": self.input_ids,
            "attention_mask": self.attention_mask,
            "position_ids": self.position_ids,
        }

    def to(self, device: torch.device) -> "Batch":
        return Batch(*(value.to(device) for value in vars(self).values()))


class Collator:
    """Makes batches from (pair index, position) rows; remembers no prompts."""

    def __init__(self, pairs: Sequence[Pair], build: PromptBuilder):
        self.pairs, self.build, self.pad = pairs, build, build.tokenizer.pad_token_id

    def __call__(self, rows: Sequence[tuple[int, int]]) -> Batch:
        inputs, responses = [], []
        for index, position in rows:
            pair = self.pairs[index]
            response = pair.response.token_ids
            prompt = self.build(pair.example, Placement((position,), pair.response.n_docs))
            inputs.append(prompt + response[:-1])
            responses.append(response)
        input_ids, attention_mask = self._right_aligned(inputs)
        targets, response_mask = self._right_aligned(responses)
        return Batch(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=(attention_mask.cumsum(1) - 1).clamp_min(0),
            targets=targets,
            response_mask=response_mask.bool(),
            pairs=torch.tensor([index for index, _ in rows]),
            positions=torch.tensor([position for _, position in rows]),
        )

    def _right_aligned(self, rows: Sequence[list[int]]) -> tuple[Tensor, Tensor]:
        width = max(map(len, rows))
        ids = torch.tensor([[self.pad] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        return ids, mask


def chunks(rows: Sequence, size: int) -> Iterator[Sequence]:
    """`rows` in runs of `size`."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
