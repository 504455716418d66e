"""The prompts and responses of each training step, and their tensors."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from posgap.distillation.branches import Branches, pack_shared_prefixes
from posgap.foundation.errors import BadOption, PosgapError
from posgap.foundation.files import digest_of
from posgap.tasks.content import content_keys
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement, all_placements
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.responses import Response

T = TypeVar("T")
Positions = tuple[int, ...]


@dataclass(frozen=True)
class Pair:
    """An example and the response to learn."""

    example: AnyExample
    response: Response


def pair_up(examples: Sequence[AnyExample], responses: Sequence[Response]) -> list[Pair]:
    """Joins responses with their examples by content; raises `PosgapError` if the example of any is missing."""
    by_content = dict(zip(content_keys(examples), examples))
    missing = [response.id for response in responses if response.content not in by_content]
    if missing:
        raise PosgapError(
            f"{len(missing)} responses belong to examples that are not in `examples`, the first to {missing[0]}; give "
            "the examples that the teacher answered"
        )
    return [Pair(by_content[response.content], response) for response in responses]


def replace_by_gold(pair: Pair, builder: PromptBuilder) -> Pair:
    """The pair with the gold answer in place of the teacher's response."""
    gold = builder.gold_response(pair.example, pair.response.at)
    return Pair(pair.example, pair.response.model_copy(update={"token_ids": gold}))


def advantageous_positions(pairs: Sequence[Pair]) -> list[Positions]:
    """Returns the positions of each pair's gold documents at which its response was sampled."""
    return [pair.response.at.positions for pair in pairs]


def teacher_prompts(pairs: Sequence[Pair], some: Sequence[int] | None = None) -> list["TrainingPrompt"]:
    """Returns the row of each pair's prompt, or of the pairs `some`, at the placement of its sampled response."""
    indices = range(len(pairs)) if some is None else some
    return [TrainingPrompt(index, pairs[index].response.at.positions) for index in indices]


def drawable_placements(pairs: Sequence[Pair], anchors: Sequence[Positions] | None) -> list[list[Positions]]:
    """Each pair's placements to draw from: all among its prompt's documents, but its anchor, if there is one."""
    kinds = {(pair.response.n_docs, len(pair.response.placement)) for pair in pairs}
    places = {kind: [placement.positions for placement in all_placements(*kind)] for kind in kinds}
    drawable = []
    for index, pair in enumerate(pairs):
        anchor = anchors[index] if anchors else None
        of_pair = places[pair.response.n_docs, len(pair.response.placement)]
        drawable.append([place for place in of_pair if place != anchor])
    return drawable


@dataclass(frozen=True)
class Draw:
    """A pair of a step, by index, and the placements drawn for it."""

    pair: int
    placements: tuple[Positions, ...]


class TrainingPrompt(NamedTuple):
    """One prompt of a step: its pair, by index, and the positions of its gold documents."""

    pair: int
    positions: Positions


def plan_steps(
    placements: Sequence[Sequence[Positions]],
    rows: Callable[[Sequence[Draw]], list[TrainingPrompt]],
    k: int,
    epochs: int,
    batch_size: int,
    seed: int,
) -> list[list[TrainingPrompt]]:
    """The prompts of each step of a training run: every pair once per epoch, at K of its own `placements`.

    `rows` makes prompts of draws, each pair's together. A step has all prompts of its pairs, about `batch_size` in all
    and at least one pair's, so alpha compares placements of the same examples. To spare an epoch a smaller last step,
    all its steps are a little smaller.

    Placements are drawn without replacement, and again in each epoch. This is a pure function of its arguments, so a
    run can be resumed from its config. Raises `PosgapError` if there are fewer than K placements.
    """
    least = min(map(len, placements))
    if k > least:
        raise BadOption(f"k={k}: there are only {least} placements to draw from")
    steps: list[list[TrainingPrompt]] = []
    for epoch in range(epochs):
        rng = np.random.default_rng([seed, epoch])
        draws = []
        for pair in rng.permutation(len(placements)).tolist():
            chosen = sorted(rng.choice(len(placements[pair]), size=k, replace=False))
            draws.append(Draw(pair, tuple(placements[pair][place] for place in chosen)))
        steps += map(rows, _split_evenly(draws, -(-len(rows(draws)) // batch_size)))
    return steps


def _split_evenly(items: Sequence[T], wanted: int) -> list[list[T]]:
    """The items in `wanted` runs of equal length, or one less: a last step of few prompts would be noisy at the full
    learning rate."""
    bounds = np.linspace(0, len(items), min(wanted, len(items)) + 1).round().astype(int)
    return [list(items[start:end]) for start, end in pairwise(bounds)]


@dataclass
class Batch:
    """Prompts followed by their responses, padded on the right.

    `input_ids [R, S]` ends with r_{T-1}. `columns [M]` are indices into the flattened rows whose *next* token is a
    response token, from the prompt's last column on. `targets [M]` holds those next tokens, row after row, and `lengths
    [R]` their number in each row.

    Padding is on the right, so causal attention never reaches it and needs no mask for it.

    If rows share their common tokens, all is read in a single row of S tokens: `positions [1, S]` are the positions in
    the prompts, and `branches` says where each prompt lies.
    """

    rows: list[TrainingPrompt]
    input_ids: Tensor
    columns: Tensor
    targets: Tensor
    lengths: Tensor
    positions: Tensor | None = None
    branches: Branches | None = None

    def to(self, device: torch.device) -> "Batch":
        """The batch with its tensors on `device`; the host does not wait for the copies."""
        moved: dict[str, Any] = {}
        for name, value in vars(self).items():
            if isinstance(value, Tensor):
                moved[name] = value.to(device, non_blocking=True)
        return replace(self, **moved)


class Collator:
    """Makes batches of rows.

    It keeps the token ids of prompts at the placements where responses were sampled, as these are read again and again.
    Prompts of other placements are built when they are needed.
    """

    def __init__(self, pairs: Sequence[Pair], builder: PromptBuilder):
        self.pairs = pairs
        self.builder = builder
        self.pad = builder.tokenizer.pad_token_id
        self._built: dict[TrainingPrompt, list[int]] = {}

    def token_ids(self, row: TrainingPrompt) -> tuple[list[int], list[int]]:
        """The token ids of a row's prompt and of its response."""
        return self._built.get(row) or self._build_prompt(row), self.pairs[row.pair].response.token_ids

    def input_tokens(self, row: TrainingPrompt) -> list[int]:
        """The token ids that are read of a row: all but the response's last, which predicts nothing."""
        return (self._built.get(row) or self._build_prompt(row)) + self.pairs[row.pair].response.token_ids[:-1]

    def build_prompts(self, rows: Sequence[TrainingPrompt]) -> None:
        """Builds the prompts of `rows`, a step's, and keeps them, and no others, until the next call."""
        self._built = {row: self._build_prompt(row) for row in rows}

    def _build_prompt(self, row: TrainingPrompt) -> list[int]:
        response = self.pairs[row.pair].response
        if row.positions == response.at.positions:
            return self._at_best[row.pair].tolist()
        return self._tokenize(row)

    def _tokenize(self, row: TrainingPrompt) -> list[int]:
        pair = self.pairs[row.pair]
        return self.builder(pair.example, Placement(row.positions, pair.response.n_docs))

    @cached_property
    def _at_best(self) -> list[np.ndarray]:
        """Each pair's prompt at the placement where its response was sampled, four bytes a token."""
        return [np.array(self._tokenize(row), dtype=np.int32) for row in teacher_prompts(self.pairs)]

    def digest(self, row: TrainingPrompt) -> str:
        """The sha256 of a row's token ids, prompt and response."""
        return digest_of(self.token_ids(row))

    def __call__(self, rows: Sequence[TrainingPrompt]) -> Batch:
        read = [self.input_tokens(row) for row in rows]
        width = max(map(len, read))
        padded = []
        ends = []
        for number, ids in enumerate(read):
            padded.append(ids + [self.pad] * (width - len(ids)))
            ends.append(number * width + len(ids))
        return self._batch(rows, padded, ends)

    def collate_shared(self, bundles: Sequence[Sequence[TrainingPrompt]]) -> Batch:
        """A batch of all rows of `bundles`, in their order: what a row has in common with the one before it in its
        bundle is read once."""
        rows: list[TrainingPrompt] = []
        prompts = []
        own = []
        for bundle in bundles:
            rows += bundle
            prompts.append([self.input_tokens(row) for row in bundle])
            own.append([len(self.pairs[row.pair].response.token_ids) for row in bundle])
        ids, positions, branches = pack_shared_prefixes(prompts, own)
        batch = self._batch(rows, [ids], [branch.own[1] for branch in branches])
        return replace(batch, positions=torch.tensor([positions]), branches=branches)

    def _batch(self, rows: Sequence[TrainingPrompt], ids: list[list[int]], ends: Sequence[int]) -> Batch:
        """Makes the batch of these token ids; each row ends before its index in `ends`."""
        columns: list[int] = []
        targets: list[int] = []
        lengths = []
        for row, end in zip(rows, ends):
            response = self.pairs[row.pair].response.token_ids
            columns += range(end - len(response), end)
            targets += response
            lengths.append(len(response))
        tensors = torch.tensor(ids), torch.tensor(columns), torch.tensor(targets), torch.tensor(lengths)
        return Batch(list(rows), *tensors)
