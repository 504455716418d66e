"""How much attention a model pays to the gold documents as it answers, and how much to the first token, the attention
sink (Xiao et al. 2024). The last prompt token decides the answer's first token, and each answer token the next one.

In shapes, L counts the layers with attention, N the prompt's tokens, and R the answer's tokens that are read.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from posgap.diagnosis.attention_reading import attention_rows
from posgap.diagnosis.diagnosed_sweep import DiagnosedSweep
from posgap.foundation.progress import track
from posgap.generation.generator import Sampling, complete_groups
from posgap.generation.transformers import TransformersGenerator
from posgap.measurement.diagnoses import AttentionFigures
from posgap.tasks.gold_spans import gold_tokens


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
    gold_shares, sink_shares = [], []
    for row in attention_rows(model, prompt, answer):
        gold_shares.append(row[:, list(gold)].sum(1))
        sink_shares.append(row[:, 0])
    return Shares(torch.stack(gold_shares), torch.stack(sink_shares))


def diagnose_attention(swept: DiagnosedSweep, generator: TransformersGenerator, most: int) -> AttentionFigures:
    """Lets the model answer the first `most` examples again at every placement of the sweep, and averages its shares
    of attention over them."""
    examples, placements, builder = swept.examples[:most], swept.placements, swept.builder
    groups = []
    for example in examples:
        groups.append([builder.prompt(example, placement) for placement in placements])
    means = {}
    for name in ("gold", "sink", "even", "answer_gold", "answer_sink"):
        means[name] = [_Mean() for _ in placements]
    answered = complete_groups(generator, groups, Sampling.for_builder(builder))
    for index, answers in track(answered, len(examples), "attention"):
        example = examples[index]
        for at, (placement, answer) in enumerate(zip(placements, answers)):
            prompt, gold = builder(example, placement), gold_tokens(builder, example, placement)
            # The answer's last token is not read: it decides no further token.
            shares = attention_shares(generator.model, prompt, gold, answer.token_ids[:-1])
            means["even"][at].add_example(torch.tensor([[len(gold) / len(prompt)]]))
            for name, rows in zip(Shares._fields, shares):
                means[name][at].add_example(rows[:1])
                means[f"answer_{name}"][at].add_example(rows[1:])
    percent = {}
    for name, at_placements in means.items():
        percent[name] = [mean.percent() for mean in at_placements]
    return AttentionFigures(
        n_examples=len(examples),
        gold=percent["gold"],
        sink=percent["sink"],
        even=[share for (share,) in percent["even"]],
        answer_gold=percent["answer_gold"],
        answer_sink=percent["answer_sink"],
        preamble=swept.preamble,
    )


class _Mean:
    """Averages each example's rows, and then over the examples that have any rows."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []

    def add_example(self, rows: Tensor) -> None:
        if len(rows):
            self.rows.append(rows.mean(0))

    def percent(self) -> list[float]:
        return (100 * torch.stack(self.rows).mean(0)).tolist() if self.rows else []
