"""Keeps the keys and values that the rows of a batch have computed, from one prompt to the next."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from posgap.mitigations.state import needs_own_batch
from posgap.models.rope_lengths import RopeLengths


def can_reuse_prefixes(model: PreTrainedModel) -> bool:
    """Whether the keys and values of a prompt's beginning can be reused for another prompt that begins alike.

    They cannot if a layer forgets (sliding windows, recurrent states), if RoPE's frequencies follow the length, if the
    model derives positions from columns instead of taking `position_ids`, since cached rows have gaps, or if an applied
    mitigation needs each prompt read whole.
    """
    config = model.config.get_text_config()
    return (
        "position_ids" in inspect.signature(model.forward).parameters
        and not RopeLengths.from_config(config)
        and not needs_own_batch(model)
        and all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)
    )


def can_go_on(model: PreTrainedModel) -> bool:
    """Whether a response can be written in pieces, with other rows in the batch from one piece to the next.

    It can if all that the model remembers are keys and values by row, and it takes their positions.
    """
    layers = DynamicCache(config=model.config.get_text_config()).layers
    return (
        "position_ids" in inspect.signature(model.forward).parameters
        and bool(layers)
        and all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
    )


class PrefixCache:
    """The prompt that each row of a batch read last, with its keys and values.

    `mask [rows, columns]` is 0 if a column holds no token of the row: in the padding on the left, and in gaps between
    the kept part of a prompt and the rest of the next one.
    """

    def __init__(self, rows: int, device: torch.device):
        self.states = DynamicCache()
        self.mask = torch.zeros(rows, 0, dtype=torch.long, device=device)
        self.prompts: list[Sequence[int]] = [[]] * rows

    def select(self, rows: Sequence[int]) -> None:
        """Drops all rows but these."""
        if len(rows) == len(self.prompts):
            return
        self.states.batch_select_indices(torch.tensor(rows, device=self.mask.device))
        self.mask = self.mask[rows]
        self.prompts = [self.prompts[row] for row in rows]

    def advance(self, prompts: Sequence[Sequence[int]], pad: int, outputs: int = 1) -> tuple[Tensor, Tensor]:
        """Prepares the cache for each row's next prompt; returns `input_ids` and mask, `[rows, columns]` each.

        A row keeps the common beginning of its last prompt and the next one. It never keeps the next one's last
        `outputs` tokens, as their outputs are needed. In kept columns `input_ids` holds padding, since they are not
        read again.
        """
        kept = []
        rest = []
        for old, new in zip(self.prompts, prompts):
            kept.append(min(shared_length(old, new), max(0, len(new) - outputs)))
            rest.append(list(new[kept[-1] :]))
        width = self._cut(torch.tensor(kept, device=self.mask.device))
        longest = max(map(len, rest))
        ids, fresh = _pad_prompts(rest, longest, pad, self.mask.device)
        self.mask = torch.cat([self.mask, fresh], dim=1)
        self.prompts = list(prompts)
        return torch.nn.functional.pad(ids, (width, 0), value=pad), self.mask

    def forget_responses(self) -> None:
        """Drops the columns that generation has appended."""
        self.states.crop(self.mask.shape[1] - self.states.get_seq_length())

    def forget_last(self) -> None:
        """Ends each row's prompt before its last token, so that `states` lacks this token's keys and values."""
        self.mask = self.mask[:, :-1]
        self.prompts = [prompt[:-1] for prompt in self.prompts]

    def _cut(self, kept: Tensor) -> int:
        """Keeps the first `kept [rows]` tokens of each row, and returns the number of columns that are left."""
        columns = self.mask.shape[1]
        ends = torch.zeros_like(kept)
        if columns:
            ends = torch.where(kept > 0, (self.mask.cumsum(1) >= kept[:, None]).int().argmax(1) + 1, 0)
        width = int(ends.max())
        if width:
            self.states.crop(width - columns)
        else:
            self.states = DynamicCache()
        self.mask = self.mask[:, :width] * (torch.arange(width, device=self.mask.device) < ends[:, None])
        return width


class Pool:
    """Keys and values of prompts without their last tokens, taken from a `PrefixCache` that continues with others."""

    def __init__(self) -> None:
        self._layers: dict[int, list[tuple[Tensor, Tensor]]] = {}

    def take_rows(self, cache: PrefixCache) -> None:
        """Copies the values of each row, without padding and gaps."""
        columns = [mask.nonzero()[:, 0] for mask in cache.mask]
        layers: list[Any] = cache.states.layers  # of keys and values, as `can_reuse_prefixes` has seen
        for number, layer in enumerate(layers):
            if layer.is_initialized:
                rows = self._layers.setdefault(number, [])
                for row, held in enumerate(columns):
                    rows.append((layer.keys[row][:, held], layer.values[row][:, held]))

    def lay_out(
        self, prompts: Sequence[Sequence[int]], pad: int, before: int = 0
    ) -> tuple[Tensor, Tensor, DynamicCache]:
        """Returns `input_ids` and mask of the rows' prompts, `[rows, columns]` each, with `before` columns of padding
        besides what the lengths need, and their states, which lack the last column. The pool is empty afterwards."""
        width = before + max(map(len, prompts))
        states = DynamicCache()
        for number in sorted(self._layers):
            rows = self._layers.pop(number)
            keys, values = zip(*rows)
            states.update(_pad_left(keys, width - 1), _pad_left(values, width - 1), number)
        return *_pad_prompts(prompts, width, pad, keys[0].device), states


def _pad_prompts(prompts: Sequence[Sequence[int]], width: int, pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """`input_ids` and mask of prompts, `[rows, width]` each, padded on the left."""
    ids = []
    mask = []
    for prompt in prompts:
        before = width - len(prompt)
        ids.append([pad] * before + list(prompt))
        mask.append([0] * before + [1] * len(prompt))
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


def _pad_left(rows: Sequence[Tensor], width: int) -> Tensor:
    """Rows `[heads, tokens, size]` of different lengths as one tensor `[rows, heads, width, size]`, zeros before."""
    together = rows[0].new_zeros(len(rows), rows[0].shape[0], width, rows[0].shape[2])
    for each, row in zip(together, rows):
        if row.shape[1]:
            each[:, -row.shape[1] :] = row
    return together


def shared_length(old: Sequence[int], new: Sequence[int]) -> int:
    """Returns the length of the common beginning."""
    longest = min(len(old), len(new))
    return next((i for i in range(longest) if old[i] != new[i]), longest)
