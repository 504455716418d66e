"""The transformers backend of the Generator interface."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import (
    DynamicCache,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)

from posgap.generation.batching import BATCH_TOKENS, Group, group_batches, reading_order
from posgap.generation.endings import ResponseStream
from posgap.generation.generator import Completion, Sampling
from posgap.generation.prefix_cache import Pool, PrefixCache, can_go_on, can_reuse_prefixes
from posgap.mitigations.state import needs_own_batch
from posgap.models.layer_scaling import layer_scaling
from posgap.models.loading import on_device
from posgap.models.memory import tokens_that_fit
from posgap.models.packing import pack_weights
from posgap.models.patching import last_logits
from posgap.models.rope_lengths import RopeLengths, forget_lengths
from posgap.tasks.prompts import Prompt

# Tokens that a GPU writes before the host waits for it and looks which responses are over.
LOOK_AFTER = 8
# Families whose answers change with padding before the prompt: they ignore the mask in some layers, or compress keys in
# blocks of columns.
READS_PADDING = ("deepseek_v4", "recurrent_gemma", "rwkv", "xlstm")
# Tokens, responses included, of the first prompts that are answered together: few, so the first answers come soon and
# an interruption loses little. Each next batch has twice as many, up to the batch's token limit.
FIRST_TOKENS = 2048


def is_gpu(device: torch.device) -> bool:
    """Returns whether launches cost more time on the device than arithmetic."""
    return device.type != "cpu"


class TransformersGenerator:
    """Generates with a model in this process, in left-padded batches of a token budget.

    A batch holds prompts of several groups. The common beginning of two successive prompts of a group is read once, if
    the model's cache allows that, and the responses to as many prompts as fit are written together. Each is yielded
    when it is over, while others go on. Prompts whose answers would change in a batch (RoPE that follows the longest
    row, no mask for padding) are not batched.

    On a GPU prompts are read whole, beside those of their length, with no mask if all have the same length. Batches are
    written to their end in one piece. Sharing beginnings took longer there than reading them: cached rows have gaps, so
    each pass had a mask and no flash kernel, and launched twice as many operations.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        batch_tokens: int,
        reuse: bool = True,
        device: str = "",
        pack: bool = False,
    ):
        """`pack`: copy weights into a quicker order; only for a model that is not trained."""
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model: Any = on_device(model, self.device)  # the type lacks `generate`
        if pack:
            pack_weights(model)
        self.tokenizer = tokenizer
        self.on_gpu = is_gpu(self.device)
        self.batch_tokens = batch_tokens or (tokens_that_fit(model, self.device) if self.on_gpu else BATCH_TOKENS)
        self.lengths = RopeLengths.from_config(model.config)
        self.one_by_one = model.config.model_type in READS_PADDING or needs_own_batch(model)
        self.reuse = reuse and not self.on_gpu and not self.one_by_one and can_reuse_prefixes(model)
        self.goes_on = self.reuse or (not self.on_gpu and can_go_on(model))
        self._last_logits = last_logits(model, 1)  # the outputs after a prompt's other tokens are not needed
        end = model.generation_config.eos_token_id
        self.end_ids = (set(end if isinstance(end, list) else [end]) | {tokenizer.eos_token_id}) - {None}
        # Models come with penalties and truncated sampling; without them greedy means the same in every backend.
        model.generation_config = GenerationConfig(
            eos_token_id=sorted(self.end_ids) or None, pad_token_id=tokenizer.pad_token_id
        )

    def scale_layers(self, factors: Sequence[float]) -> None:
        """Applies RoPE factors `[L]`."""
        layer_scaling(self.model).set(factors)

    def generate(self, groups: Iterable[Group], sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        for number, batch in enumerate(group_batches(groups, sampling.limit, self.batch_tokens)):
            indices, together = zip(*batch)
            for row, at, completion in self.answer_batch(number, together, sampling):
                yield indices[row], at, completion

    @torch.inference_mode()
    def answer_batch(
        self, number: int, groups: Sequence[Group], sampling: Sampling
    ) -> Iterator[tuple[int, int, Completion]]:
        """Yields (group, prompt within it, completion) for batch `number`, whose groups are read together.

        Samples depend on the seed and this number but on no other batch, so a resumed run draws the same.
        """
        torch.manual_seed(int(np.random.SeedSequence([sampling.seed, number]).generate_state(1)[0]))
        left = [_PendingPrompt(row, at, prompt) for row, group in enumerate(groups) for at, prompt in enumerate(group)]
        lengths = list(map(_PendingPrompt.__len__, left))
        longest = max(lengths, default=0) + sampling.limit
        begins_small = number == 0 and not self.on_gpu
        room = _Room(self.batch_tokens // longest, FIRST_TOKENS // longest if begins_small else self.batch_tokens)
        if not self.reuse or min(lengths, default=0) < 2:  # a kept prompt lacks its last token
            if self.on_gpu:
                left.sort(key=_PendingPrompt.__len__, reverse=True)  # rows of one length need no mask
            while left:
                together = left[: room.n_rows]
                left = left[room.n_rows :]
                yield from self._read_whole(together, sampling)
                room.answered += len(together)
            return
        several = any(len(group) > 1 for group in groups)
        following = 0
        while following < len(groups):
            # With few groups at a time, more prompts can wait to be answered together.
            count = room.n_rows // 4 if several and room.n_rows >= 8 else room.n_rows
            first = following
            following = min(following + count, len(groups))
            yield from self._read_shared(dict(list(enumerate(groups))[first:following]), room, sampling)

    def _read_shared(
        self, groups: Mapping[int, Group], room: "_Room", sampling: Sampling
    ) -> Iterator[tuple[int, int, Completion]]:
        """Answers groups by their numbers: one prompt of each at a time, read from the first token that differs from
        the last prompt.
        """
        orders = {row: reading_order([prompt.token_ids for prompt in group]) for row, group in groups.items()}
        cache = PrefixCache(len(groups), self.device)
        rows = list(groups)
        waiting: list[_PendingPrompt] = []
        pool = Pool()
        turns = max(map(len, orders.values()))
        for turn in range(turns):
            going_on = [place for place, row in enumerate(rows) if turn < len(orders[row])]
            cache.select(going_on)
            rows = [rows[at] for at in going_on]
            pending = []
            for row in rows:
                at = orders[row][turn]
                pending.append(_PendingPrompt(row, at, groups[row][at]))
            ids, mask = cache.advance([each.prompt.token_ids for each in pending], self.tokenizer.pad_token_id)
            last = turn + 1 == turns
            beside = room.n_rows - len(rows)  # rows that fit in memory beside the cache's
            if not waiting and (last or beside < 2 * len(rows)):
                yield from self._write_responses(_Batch(pending, ids, mask, cache.states), sampling, droppable=last)
                if not last:
                    cache.forget_responses()
                room.answered += len(pending)
                continue
            self._compute_states(ids[:, :-1], mask[:, :-1], cache.states)
            cache.forget_last()
            pool.take_rows(cache)
            waiting += pending
            if last or len(waiting) + len(rows) > beside:
                columns = pool.lay_out([each.prompt.token_ids for each in waiting], *self._padding())
                yield from self._write_responses(_Batch(waiting, *columns), sampling)
                room.answered += len(waiting)
                waiting = []
                pool = Pool()

    def _padding(self) -> tuple[int, int]:
        """Returns the id of padding, and the columns of padding before the longest row of a batch.

        On a CPU that is one column. With a mask, queries that share keys read those once; without one transformers has
        torch repeat them, which takes half as long again from ten rows on (SmolLM2-135M, transformers 5.23).
        """
        return self.tokenizer.pad_token_id, int(self.device.type == "cpu")

    def _compute_states(self, ids: torch.Tensor, mask: torch.Tensor, states: Any) -> None:
        """Computes the keys and values of the columns of `ids [rows, columns]` that `states` lacks."""
        known = states.get_seq_length()
        if known < ids.shape[1]:
            positions = (mask.cumsum(1) - 1).clamp(min=0)[:, known:]
            self.model(
                input_ids=ids[:, known:],
                attention_mask=mask,
                position_ids=positions,
                past_key_values=states,
                use_cache=True,
                **self._last_logits,
            )

    def _read_whole(
        self, pending: Sequence["_PendingPrompt"], sampling: Sampling
    ) -> Iterator[tuple[int, int, Completion]]:
        """Answers prompts, each read from its beginning; batches only prompts whose answers that does not change."""
        alike: dict[Any, list[_PendingPrompt]] = {}
        for number, each in enumerate(pending):
            apart = number if self.one_by_one else self.lengths.regime(len(each.prompt.token_ids), sampling.limit)
            alike.setdefault(apart, []).append(each)
        for together in alike.values():
            if self.lengths:
                forget_lengths(self.model)
            prompts = [each.prompt.token_ids for each in together]
            ids, mask = PrefixCache(len(together), self.device).advance(prompts, self.tokenizer.pad_token_id)
            states = DynamicCache(config=self.model.config.get_text_config()) if self.goes_on else None
            yield from self._write_responses(_Batch(together, ids, mask, states), sampling)

    def _write_responses(
        self, batch: "_Batch", sampling: Sampling, droppable: bool = True
    ) -> Iterator[tuple[int, int, Completion]]:
        """Yields the responses to the prompts of a batch, each when it is over.

        Rows that are over leave the batch if they are `droppable`. Without states all are written in one piece.
        """
        sampled = {"do_sample": True, "temperature": sampling.temperature, "top_k": 0, "top_p": 1.0}
        ids = batch.ids
        mask = batch.mask
        states = batch.states
        rows = [(each, ResponseStream(self.tokenizer, self.end_ids, sampling)) for each in batch.prompts]
        left = rows
        written = 0
        look_after = LOOK_AFTER if self.on_gpu else 1
        while True:
            streams = [stream for _, stream in rows]
            enough = len(left) if states is None else -(-len(left) // 8)
            over = _Over(streams, enough, ids.shape[1], look_after)
            output = self.model.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=sampling.limit - written,
                stopping_criteria=StoppingCriteriaList([over]),
                **({} if states is None else {"past_key_values": states}),
                **(sampled if sampling.temperature else {"do_sample": False}),
            )
            over.read_new(output)
            new = output.shape[1] - ids.shape[1]
            written += new
            ended = written >= sampling.limit
            for each, stream in left:
                if stream.over or ended:
                    yield each.group, each.at, stream.completion(len(each.prompt.token_ids))
            left = [] if ended else [(each, stream) for each, stream in left if not stream.over]
            if not left or states is None:
                return
            ids = output
            mask = torch.cat([mask, mask.new_ones(len(mask), new)], dim=1)
            if droppable:
                going_on = torch.tensor(
                    [row for row, (_, stream) in enumerate(rows) if not stream.over], device=ids.device
                )
                ids = ids[going_on]
                mask = mask[going_on]
                rows = left
                states.batch_select_indices(going_on)


@dataclass(frozen=True)
class _PendingPrompt:
    """A prompt of a group, by both numbers."""

    group: int
    at: int
    prompt: Prompt

    def __len__(self) -> int:
        """The number of the prompt's tokens."""
        return len(self.prompt.token_ids)


class _Batch(NamedTuple):
    """Prompts that are answered together: their tokens and mask `[rows, columns]`, and the keys and values of their
    beginnings, if any."""

    prompts: Sequence[_PendingPrompt]
    ids: torch.Tensor
    mask: torch.Tensor
    states: DynamicCache | None


class _Room:
    """The number of rows that are answered together: few at first, then twice as many each time, up to the most that
    fit; at least one.
    """

    def __init__(self, most: int, first: int):
        self.most = most
        self.first = first
        self.answered = 0

    @property
    def n_rows(self) -> int:
        return max(1, min(self.most, max(self.first, 2 * self.answered)))


@contextmanager
def borrow_model(model: PreTrainedModel) -> Iterator[None]:
    """Within the block another's model generates; afterwards it, and the random numbers of its training, are
    restored."""
    config = model.generation_config
    training = {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
            yield
    finally:
        model.generation_config = config
        for module, was_training in training.items():
            module.training = was_training


class _Over(StoppingCriteria):
    """Stops the rows of a batch whose responses are over, and all rows once `enough` more are over than before.

    The host reads the new tokens from column `seen` on, once every `after` tokens.
    """

    def __init__(self, streams: Sequence[ResponseStream], enough: int, seen: int, after: int):
        self.streams = streams
        self.seen = seen
        self.after = after
        self.at_most = self._count() + enough
        self.stopped = False  # a GPU runs some more steps, which are then undone
        self.rows: Any = None  # which are over, as was last seen

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        if self.rows is None or (not self.stopped and input_ids.shape[1] - self.seen >= self.after):
            if input_ids.shape[1] - self.seen >= self.after:
                self.read_new(input_ids)
            self.stopped = self._count() >= self.at_most
            over = [self.stopped or stream.over for stream in self.streams]
            self.rows = torch.tensor(over).to(input_ids.device, non_blocking=True)
        return self.rows

    def read_new(self, input_ids: Any) -> None:
        """Hands the streams the columns that they have not seen."""
        if not self.stopped:
            for stream, tokens in zip(self.streams, input_ids[:, self.seen :].tolist()):
                if not stream.over:
                    stream.take_all(tokens)
        self.seen = input_ids.shape[1]

    def _count(self) -> int:
        return sum(stream.over for stream in self.streams)
