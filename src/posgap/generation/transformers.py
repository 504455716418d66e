"""The transformers backend of the Generator interface."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)

from posgap.foundation.errors import PosgapError
from posgap.generation.batching import Group, group_batches, reading_order
from posgap.generation.endings import ResponseStream
from posgap.generation.generator import Completion, Sampling
from posgap.generation.prefix_cache import PrefixCache, can_reuse_prefixes
from posgap.mitigations.state import needs_document_spans, needs_own_batch
from posgap.models.attention_reading import attention_rows
from posgap.models.layout import Span, during_forward
from posgap.models.loading import on_device
from posgap.models.rope_lengths import RopeLengths, forget_lengths

# Families that answer a prompt otherwise where padding is before it: they heed no mask in some layers, or compress
# keys in blocks of columns.
READS_PADDING = ("deepseek_v4", "recurrent_gemma", "rwkv", "xlstm")


class TransformersGenerator:
    """Generates with a model in this process, in left-padded batches of a token budget.

    A batch holds one prompt of each of several groups at a time. The common beginning of two successive prompts of a
    group is read once, if the model's cache allows that. Prompts that a model would answer otherwise together than
    alone (RoPE that follows the longest row, no mask for padding) are not put into one batch.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        batch_tokens: int,
        reuse: bool = True,
        device: str = "",
    ):
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.model: Any = on_device(model, self.device)  # the type lacks `generate`
        self.tokenizer, self.batch_tokens = tokenizer, batch_tokens
        self.reuse = reuse and can_reuse_prefixes(model)
        self.lengths = RopeLengths.of(model.config)
        self.one_by_one = model.config.model_type in READS_PADDING or needs_own_batch(model)
        end = model.generation_config.eos_token_id
        self.end_ids = (set(end if isinstance(end, list) else [end]) | {tokenizer.eos_token_id}) - {None}
        # Models come with penalties and truncated sampling; without them greedy means the same in every backend.
        model.generation_config = GenerationConfig(
            eos_token_id=sorted(self.end_ids) or None, pad_token_id=tokenizer.pad_token_id
        )

    def generate(self, groups: Iterable[Group], sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        for number, batch in enumerate(group_batches(groups, sampling.limit, self.batch_tokens)):
            for row, at, completion in self.answer(number, [group for _, group in batch], sampling):
                yield batch[row][0], at, completion

    @torch.inference_mode()
    def answer(self, number: int, groups: Sequence[Group], sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        """Yields (which group, which of its prompts, completion) of batch `number`, whose groups are read together.

        Samples depend on the seed and on that number but on no other batch, so that they do not depend on which
        process answers the batch.
        """
        torch.manual_seed(int(np.random.SeedSequence([sampling.seed, number]).generate_state(1)[0]))
        read = [[prompt.token_ids for prompt in group] for group in groups]
        spans = [[prompt.spans for prompt in group] for group in groups]
        orders = [reading_order(prompts) for prompts in read]
        cache, rows = PrefixCache(len(groups), self.device), list(range(len(groups)))
        for turn in range(max(map(len, orders))):
            going_on = [i for i, row in enumerate(rows) if turn < len(orders[row])]
            cache.select(going_on)
            rows = [rows[i] for i in going_on]
            prompts = [read[row][orders[row][turn]] for row in rows]
            places = [spans[row][orders[row][turn]] for row in rows]
            answers = self._answer(prompts, places, cache, sampling)
            yield from ((row, orders[row][turn], answer) for row, answer in zip(rows, answers))

    def attention(self, prompt: Sequence[int], spans: Sequence[Span]) -> list[float]:
        if self.lengths:
            forget_lengths(self.model)
        (by_layer,) = attention_rows(self.model, prompt, instead="take a mitigation that needs none")
        by_token = by_layer.mean(0)
        return [float(by_token[first:end].sum()) for first, end in spans]

    def _answer(
        self,
        prompts: Sequence[Sequence[int]],
        spans: Sequence[Sequence[Span] | None],
        cache: PrefixCache,
        sampling: Sampling,
    ) -> list[Completion]:
        """The answers of prompts, those together that are answered as they are alone."""
        alike: dict[Any, list[int]] = {}
        for row, prompt in enumerate(prompts):
            apart = row if self.one_by_one else self.lengths.regime(len(prompt), sampling.limit)
            alike.setdefault(apart, []).append(row)
        answers: dict[int, Completion] = {}
        for rows in alike.values():
            with self._laid_out(prompts[rows[0]], spans[rows[0]]):
                answers |= zip(rows, self._answer_alike([prompts[row] for row in rows], cache, sampling))
        return [answers[row] for row in range(len(prompts))]

    @contextmanager
    def _laid_out(self, prompt: Sequence[int], spans: Sequence[Span] | None) -> Iterator[None]:
        """Tells the mitigations in force that ask for it where the documents of a prompt stand that is read alone."""
        if not needs_document_spans(self.model):
            yield
            return
        if spans is None:
            raise PosgapError(
                "a mitigation of the model must know where the documents stand, which these prompts do not say: "
                "ask without baselines, or of prompts made here, set `marks_documents` of their builder"
            )
        with during_forward(self.model, spans, len(prompt)):
            yield

    def _answer_alike(
        self, prompts: Sequence[Sequence[int]], cache: PrefixCache, sampling: Sampling
    ) -> list[Completion]:
        if self.lengths:
            forget_lengths(self.model)
        if not self.reuse:
            cache = PrefixCache(len(prompts), self.device)
        ids, mask = cache.read(prompts, self.tokenizer.pad_token_id)
        sampled = {"do_sample": True, "temperature": sampling.temperature, "top_k": 0, "top_p": 1.0}
        streams = [ResponseStream(self.tokenizer, self.end_ids, sampling) for _ in prompts]
        early = StoppingCriteriaList([_Over(streams)] if sampling.ends_early else [])
        output = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=sampling.limit,
            stopping_criteria=early,
            **({"past_key_values": cache.states} if self.reuse else {}),
            **(sampled if sampling.temperature else {"do_sample": False}),
        )
        if self.reuse:
            cache.forget_responses()
        if not early:
            for stream, row in zip(streams, output[:, ids.shape[1] :].tolist()):
                stream.read(row)
        return [stream.completion(len(prompt)) for stream, prompt in zip(streams, prompts)]


@contextmanager
def borrowed(model: PreTrainedModel) -> Iterator[None]:
    """While this lasts somebody's model generates; afterwards it, and the random numbers of its training, are as
    before."""
    config, training = model.generation_config, {module: module.training for module in model.modules()}
    try:
        model.eval()
        with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []):
            yield
    finally:
        model.generation_config = config
        for module, was_training in training.items():
            module.training = was_training


class _Over(StoppingCriteria):
    """Stops the rows of a batch whose responses are over."""

    def __init__(self, streams: Sequence[ResponseStream]):
        self.streams = streams

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        over = [stream.over or stream.add(token) for stream, token in zip(self.streams, input_ids[:, -1].tolist())]
        return torch.tensor(over, device=input_ids.device)
