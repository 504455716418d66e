"""Choices are learnt from the average over the orders: the model's own opinion of the items, wherever they stand.

A model that chooses among lettered items is asked for every example in every order. What it thinks of an item is the
mean, over the orders, of the probability of the item's letter, among the letters. In each order the teacher's
distribution is the model's own there, but for the letters: what they have together is given to the items in the shares
that they have on average. So a preference for a letter goes, and the opinion stays, with the form of the response.
No label is needed.
"""

import logging
import string
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from posgap.distillation.batches import Batch, Collator, Draw, Pair, Positions, Row
from posgap.distillation.head import Head
from posgap.distillation.objectives import Objective
from posgap.distillation.teacher_states import Teacher, TeacherStates
from posgap.foundation.errors import PosgapError
from posgap.tasks.prompts import PromptBuilder
from posgap.tasks.responses import Response

log = logging.getLogger(__name__)


class Letters(NamedTuple):
    """Where a response names its item: which of its tokens does, and the token ids of all slots' letters there."""

    token: int
    ids: tuple[int, ...]


def letters_of(response: Response, build: PromptBuilder) -> Letters | None:
    """The letters of a response; None where none of its tokens is the letter that it chooses."""
    tokenizer, names = build.tokenizer, build.task.slot_names[: response.n_docs]
    letter = build.task.extract(response.response)
    for at in reversed(range(len(response.token_ids))):
        if letter not in names or str(tokenizer.decode([response.token_ids[at]])).strip(_AROUND) != letter:
            continue
        token = str(tokenizer.convert_ids_to_tokens(response.token_ids[at]))
        read = (tokenizer.convert_tokens_to_ids(token.replace(letter, name)) for name in names)
        ids = [id for id in read if isinstance(id, int) and id != tokenizer.unk_token_id]
        if len(set(ids)) == len(names):
            return Letters(at, tuple(ids))
    return None


_AROUND = string.whitespace + "()[]{}*_.:,'\""


def in_all_orders(pairs: Sequence[Pair], build: PromptBuilder) -> list[Pair]:
    """The pairs of those examples that have, in every order, a response whose letter can be found among its tokens."""
    at: dict[str, set[int]] = {}
    for pair in pairs:
        if letters_of(pair.response, build):
            at.setdefault(pair.response.content, set()).add(pair.response.placement[0])
    n_docs = pairs[0].response.n_docs
    whole = [pair for pair in pairs if len(at.get(pair.response.content, ())) == n_docs]
    if not whole:
        raise PosgapError(
            f"no example has a response with a letter in each of its {n_docs} orders; let the teacher answer at all "
            "placements, and with --keep-incorrect"
        )
    if len(whole) < len(pairs):
        log.info("left out %d responses to examples without a letter in every order", len(pairs) - len(whole))
    return whole


class AverageTeacher(Teacher):
    """The teacher whose letters have the probabilities of their items, averaged over the orders."""

    def __init__(self, states: TeacherStates, head: Head, collate: Collator):
        super().__init__(states, _AverageHead(head), collate)
        self._own = head

    def hidden(self, batch: Batch) -> Tensor:
        """The teacher's states at each response token of `batch` with, behind them, the token ids of the letters and
        their logits, nan where the token is no letter: `[M, D + 2 n]`."""
        parts = []
        for row in batch.rows:
            states = self.states.read(*self.states.where[self.keys[row.pair]]).float()
            (at, ids), logits = self._letters[row.pair], self._logits[row.pair]
            more = torch.full((len(states), 2 * len(ids)), torch.nan)
            more[at] = torch.cat([torch.tensor(ids, dtype=torch.float32), logits])
            parts.append(torch.cat([states, more], 1))
        return torch.cat(parts).to(batch.input_ids.device)

    @cached_property
    def _letters(self) -> list[Letters]:
        of_pairs = [letters_of(pair.response, self.collate.build) for pair in self.collate.pairs]
        return [letters for letters in of_pairs if letters is not None]  # all of them: see `in_all_orders`

    @cached_property
    @torch.no_grad()
    def _logits(self) -> list[Tensor]:
        """The letters' logits `[n]` of each pair, averaged."""
        own: list[Tensor] = []
        by_example: dict[str, list[int]] = {}
        for index, (pair, key, (at, ids)) in enumerate(zip(self.collate.pairs, self.keys, self._letters)):
            shard, start, _ = self.states.where[key]
            state = self.states.read(shard, start + at, start + at + 1).to(self.head.linear.weight.device)
            own.append(self._own(state)[0, list(ids)].float().cpu())
            by_example.setdefault(pair.response.content, []).append(index)
        averaged = list(own)
        for indices in by_example.values():
            turns = [self.collate.pairs[index].response.placement[0] for index in indices]
            # Turned back, every item has its own column.
            items = torch.stack([own[index].softmax(0).roll(-turn) for index, turn in zip(indices, turns)]).mean(0)
            for index, turn in zip(indices, turns):
                averaged[index] = own[index].logsumexp(0) + items.roll(turn).log()
        return averaged


class _AverageHead(Head):
    """A head that takes what `AverageTeacher.hidden` returns."""

    def __init__(self, head: Head):
        super().__init__(head.linear, head.factor, head.soft_cap)

    def __call__(self, hidden: Tensor) -> Tensor:
        width = self.linear.in_features
        states, letters = hidden[:, :width].to(self.linear.weight.dtype), hidden[:, width:]
        logits = super().__call__(states).float()
        ids, values = letters.chunk(2, dim=1)
        at = ~values.isnan().any(1)
        logits[at] = logits[at].scatter(1, ids[at].long(), values[at])
        return logits


class Averaged(Objective):
    """The objective of R1 where items are chosen: the mean KL from the average over the orders to the student, in each
    order. `placements` has that of each pair."""

    def __init__(self, placements: Sequence[Positions]):
        self.placements = placements

    def rows(self, draws: Sequence[Draw]) -> list[Row]:
        return [Row(draw.pair, self.placements[draw.pair]) for draw in draws]

    def figures(self, rows: Sequence[Row], losses: Tensor) -> dict[str, float]:
        return {"order_kl": float(losses.mean())}
