"""How much attention a model pays to the gold documents as it answers, and how much to the first token, the attention
sink (Xiao et al. 2024). The last prompt token decides the answer's first token, and each answer token the next one.

In shapes, L counts the layers with attention, N the prompt's tokens, and R the answer's tokens that are read.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from posgap.diagnosis.swept import Swept
from posgap.errors import PosgapError
from posgap.generation.generator import Sampling, complete_groups
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.diagnoses import AttentionFigures
from posgap.models.loading import eager_attention
from posgap.progress import track
from posgap.tasks.gold_spans import gold_tokens

WEIGHTS_AT_ONCE = 1 << 26  # attention weights held at once, over all layers and heads: 256 MiB in float32


class Shares(NamedTuple):
    """Shares of attention, from 0 to 1, on the gold documents and on the first token: `[1 + R, L]` each, with rows for
    the last prompt token and then for each answer token."""

    gold: Tensor
    sink: Tensor


def attention_shares(
    model: PreTrainedModel, prompt: Sequence[int], gold: Sequence[int], answer: Sequence[int] = ()
) -> Shares:
    """The shares of attention that the last token of `prompt`, and then each token of `answer`, pays to the prompt
    tokens at the indices `gold` and to the first token."""
    rows = [(row[:, list(gold)].sum(1), row[:, 0]) for row in attention_rows(model, prompt, answer)]
    return Shares(*map(torch.stack, zip(*rows)))


@torch.inference_mode()
def attention_rows(model: PreTrainedModel, prompt: Sequence[int], answer: Sequence[int] = ()) -> Iterator[Tensor]:
    """Yields the attention `[L, N]` of the prompt's last token, and then `[L, N + r]` of the r-th answer token,
    averaged over heads, in float32 on the CPU.

    The prompt except its last token fills the key-value cache with the model's own attention implementation. The
    tokens from there on are read a few at a time with eager attention, so an N x N map is never held. Tokens outside
    a sliding window get 0. Raises `PosgapError` if the model returns no attention.
    """
    ids = torch.tensor([[*prompt, *answer]], device=model.device)
    read, cache = len(prompt) - 1, None
    if read:
        cache = model.base_model(input_ids=ids[:, :read], use_cache=True).past_key_values
    config = model.config.get_text_config()
    step = max(1, WEIGHTS_AT_ONCE // (config.num_hidden_layers * config.num_attention_heads * ids.shape[1]))
    while read < ids.shape[1]:
        with eager_attention(model):
            output = model.base_model(
                input_ids=ids[:, read : read + step], past_key_values=cache, use_cache=True, output_attentions=True
            )
        heads = [layer[0].float().mean(0).cpu() for layer in output.attentions or () if layer is not None]
        if not heads:
            raise PosgapError(f"{type(model).__name__}: returns no attention to measure; diagnose with `attention` 0")
        read, cache = min(read + step, ids.shape[1]), output.past_key_values
        n_rows = len(heads[0])
        for row in range(n_rows):
            # A layer with a sliding window has only the last columns.
            columns = read - n_rows + row + 1
            yield torch.stack([_last(layer[row], read)[:columns] for layer in heads])


def _last(row: Tensor, length: int) -> Tensor:
    """The row as the last of `length` columns, with zeros before it."""
    return torch.cat([row.new_zeros(length - len(row)), row])


def diagnose_attention(swept: Swept, generator: TransformersGenerator, most: int) -> AttentionFigures:
    """Lets the model answer the first `most` examples again at every placement of the sweep, and averages its shares
    of attention over them."""
    examples, placements, build = swept.examples[:most], swept.placements, swept.build
    groups = [[build.prompt(example, placement) for placement in placements] for example in examples]
    means = {name: [_Mean() for _ in placements] for name in ("gold", "sink", "even", "answer_gold", "answer_sink")}
    answered = complete_groups(generator, groups, Sampling.of(build))
    for index, answers in track(answered, len(examples), "attention"):
        example = examples[index]
        for at, (placement, answer) in enumerate(zip(placements, answers)):
            prompt, gold = build(example, placement), gold_tokens(build, example, placement)
            # The answer's last token is not read: it decides no further token.
            shares = attention_shares(generator.model, prompt, gold, answer.token_ids[:-1])
            means["even"][at].add(torch.tensor([[len(gold) / len(prompt)]]))
            for name, rows in zip(Shares._fields, shares):
                means[name][at].add(rows[:1])
                means[f"answer_{name}"][at].add(rows[1:])
    percent = {name: [mean.percent() for mean in at_placements] for name, at_placements in means.items()}
    return AttentionFigures(
        n_examples=len(examples),
        gold=percent["gold"],
        sink=percent["sink"],
        even=[share for (share,) in percent["even"]],
        answer_gold=percent["answer_gold"],
        answer_sink=percent["answer_sink"],
    )


class _Mean:
    """Averages each example's rows, and then over the examples that have any rows."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []

    def add(self, rows: Tensor) -> None:
        if len(rows):
            self.rows.append(rows.mean(0))

    def percent(self) -> list[float]:
        return (100 * torch.stack(self.rows).mean(0)).tolist() if self.rows else []
