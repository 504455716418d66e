"""The transformers backend of the Generator interface."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from posgap.generation.batching import Group, group_batches, reading_order
from posgap.generation.generator import Completion, Sampling
from posgap.generation.prefix_cache import PrefixCache, can_reuse_prefixes
from posgap.models.loading import on_device


class TransformersGenerator:
    """Generates with a model in this process, in left-padded batches of a token budget.

    A batch holds one prompt of each of several groups at a time. The common beginning of two successive prompts of a
    group is read once, if the model's cache allows that.
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
        end = model.generation_config.eos_token_id
        self.end_ids = (set(end if isinstance(end, list) else [end]) | {tokenizer.eos_token_id}) - {None}
        # Models come with penalties and truncated sampling; without them greedy means the same in every backend.
        model.generation_config = GenerationConfig(
            eos_token_id=sorted(self.end_ids) or None, pad_token_id=tokenizer.pad_token_id
        )

    def generate(self, groups: Iterable[Group], sampling: Sampling) -> Iterator[tuple[int, int, Completion]]:
        for number, batch in enumerate(group_batches(groups, sampling.max_new_tokens, self.batch_tokens)):
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
        orders = [reading_order(prompts) for prompts in read]
        cache, rows = PrefixCache(len(groups), self.device), list(range(len(groups)))
        for turn in range(max(map(len, orders))):
            going_on = [i for i, row in enumerate(rows) if turn < len(orders[row])]
            cache.select(going_on)
            rows = [rows[i] for i in going_on]
            answers = self._answer([read[row][orders[row][turn]] for row in rows], cache, sampling)
            yield from ((row, orders[row][turn], answer) for row, answer in zip(rows, answers))

    def _answer(self, prompts: Sequence[Sequence[int]], cache: PrefixCache, sampling: Sampling) -> list[Completion]:
        if not self.reuse:
            cache = PrefixCache(len(prompts), self.device)
        ids, mask = cache.read(prompts, self.tokenizer.pad_token_id)
        sampled = {"do_sample": True, "temperature": sampling.temperature, "top_k": 0, "top_p": 1.0}
        output = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=sampling.max_new_tokens,
            **({"past_key_values": cache.states} if self.reuse else {}),
            **(sampled if sampling.temperature else {"do_sample": False}),
        )
        if self.reuse:
            cache.forget_responses()
        return [self._completion(row) for row in output[:, ids.shape[1] :].tolist()]

    def _completion(self, ids: list[int]) -> Completion:
        end = next((i + 1 for i, token in enumerate(ids) if token in self.end_ids), 0)
        ids = ids[:end] if end else ids
        return Completion.ended(str(self.tokenizer.decode(ids, skip_special_tokens=True)), ids, cut=not end)
