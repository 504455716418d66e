"""The transformers backend of the Generator interface."""

from collections.abc import Iterator, Sequence

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from posgap.generation.generator import Completion, Sampling


def batches(lengths: Sequence[int], max_tokens: int) -> Iterator[list[int]]:
    """Groups indices of nearly equal lengths so that no padded batch exceeds `max_tokens`.

    Longest first, so that what does not fit in memory fails at once. A prompt longer than
    `max_tokens` is a batch of its own.
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > max_tokens:
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


class TransformersGenerator:
    """Generates with a model in this process, in left-padded batches of a token budget."""

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, batch_tokens: int):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.model, self.tokenizer, self.batch_tokens = model.to(self.device), tokenizer, batch_tokens
        end = model.generation_config.eos_token_id
        self.end_ids = set(end if isinstance(end, list) else [end]) | {tokenizer.eos_token_id}

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Iterator[Completion]:
        torch.manual_seed(sampling.seed)
        finished: dict[int, Completion] = {}
        following = 0
        lengths = [len(p) + sampling.max_new_tokens for p in prompts]
        for batch in batches(lengths, self.batch_tokens):
            finished.update(zip(batch, self._complete([prompts[i] for i in batch], sampling)))
            while following in finished:
                yield finished.pop(following)
                following += 1

    @torch.inference_mode()
    def _complete(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        width = max(map(len, prompts))
        pad = self.tokenizer.pad_token_id
        ids = torch.tensor([[pad] * (width - len(p)) + list(p) for p in prompts], device=self.device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=self.device)
        sampled = {"do_sample": True, "temperature": sampling.temperature, "top_k": 0, "top_p": 1.0}
        output = self.model.generate(
            input_ids=ids,
            attention_mask=mask,
            max_new_tokens=sampling.max_new_tokens,
            pad_token_id=pad,
            **(sampled if sampling.temperature else {"do_sample": False}),
        )
        return [self._completion(row) for row in output[:, width:].tolist()]

    def _completion(self, ids: list[int]) -> Completion:
        end = next((i + 1 for i, token in enumerate(ids) if token in self.end_ids), len(ids))
        ids = ids[:end]
        return Completion(self.tokenizer.decode(ids, skip_special_tokens=True).strip(), ids)
