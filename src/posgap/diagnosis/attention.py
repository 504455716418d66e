"""Where a model looks as it answers: at the gold documents, or at the attention sink (Xiao et al. 2024), the
first token. The last prompt token decides on the answer's first token, each answer token on the next.

L layers with attention, N prompt tokens, R answer tokens that are read.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from posgap.diagnosis.swept import Swept
from posgap.errors import PosgapError
from posgap.generation.generator import Sampling
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.diagnoses import AttentionFigures
from posgap.models.loading import eager_attention
from posgap.progress import track
from posgap.tasks.spans import gold_tokens

WEIGHTS_AT_ONCE = 1 << 26  # of all layers and heads, in numbers: 256 MiB in float32


class Shares(NamedTuple):
    """Attention mass `[1 + R, L]` on the gold documents and on the first token, from 0 to 1: from the
    last prompt token, then from each answer token."""

    gold: Tensor
    sink: Tensor


def attention_shares(
    model: PreTrainedModel, prompt: Sequence[int], gold: Sequence[int], answer: Sequence[int] = ()
) -> Shares:
    """What the last token of `prompt`, and the tokens of `answer`, give to the tokens whose indices are
    `gold`, and to the first."""
    rows = [(row[:, list(gold)].sum(1), row[:, 0]) for row in attention_rows(model, prompt, answer)]
    return Shares(*map(torch.stack, zip(*rows)))


@torch.inference_mode()
def attention_rows(model: PreTrainedModel, prompt: Sequence[int], answer: Sequence[int] = ()) -> Iterator[Tensor]:
    """Yields the attention `[L, N]` of the prompt's last token, then `[L, N + r]` of the r-th answer
    token, averaged over heads, in float32 on the CPU.

    All but the last prompt token fill the key-value cache under the model's own attention; from then on
    a few tokens at a time attend eagerly, so that no N x N map ever exists. What lies before a sliding
    window has 0.
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
            raise PosgapError(f"{type(model).__name__}: shows no attention; diagnose with attention 0")
        read, cache = min(read + step, ids.shape[1]), output.past_key_values
        n_rows = len(heads[0])
        for row in range(n_rows):
            # A layer with a window keeps the last columns alone.
            columns = read - n_rows + row + 1
            yield torch.stack([_last(layer[row], read)[:columns] for layer in heads])


def _last(row: Tensor, length: int) -> Tensor:
    """The row as the last of `length` columns, the others 0."""
    return torch.cat([row.new_zeros(length - len(row)), row])


def diagnose_attention(swept: Swept, generator: TransformersGenerator, most: int) -> AttentionFigures:
    """Mean shares over the first `most` examples at every placement of the sweep, as the model answers them again."""
    examples, placements, build = swept.examples[:most], swept.placements, swept.build
    groups = ([build.prompt(example, placement) for placement in placements] for example in examples)
    means = {name: [_Mean() for _ in placements] for name in ("gold", "sink", "even", "answer_gold", "answer_sink")}
    for index, answers in track(generator.generate(groups, Sampling(build.max_new_tokens)), len(examples), "attention"):
        example = examples[index]
        for at, (placement, answer) in enumerate(zip(placements, answers)):
            prompt, gold = build(example, placement), gold_tokens(build, example, placement)
            # The last token is never read: nothing follows it.
            shares = attention_shares(generator.model, prompt, gold, answer.token_ids[:-1])
            means["even"][at].add(torch.tensor([[len(gold) / len(prompt)]]))
            for name, rows in zip(Shares._fields, shares):
                means[name][at].add(rows[:1])
                means[f"answer_{name}"][at].add(rows[1:])
    found = {name: [mean.percent() for mean in at_placements] for name, at_placements in means.items()}
    return AttentionFigures(
        n_examples=len(examples),
        gold=found["gold"],
        sink=found["sink"],
        even=[share for (share,) in found["even"]],
        answer_gold=found["answer_gold"],
        answer_sink=found["answer_sink"],
    )


class _Mean:
    """The mean over examples of each example's mean over its rows, if it has any."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []

    def add(self, rows: Tensor) -> None:
        if len(rows):
            self.rows.append(rows.mean(0))

    def percent(self) -> list[float]:
        return (100 * torch.stack(self.rows).mean(0)).tolist() if self.rows else []
