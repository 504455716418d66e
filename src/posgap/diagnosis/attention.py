"""Where the last prompt token, which decides on the answer's first, looks: at the gold documents,
or at the attention sink (Xiao et al. 2024), the first token.

L layers with attention, N prompt tokens.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel

from posgap.diagnosis.swept import Swept
from posgap.errors import PosgapError
from posgap.measurement.diagnoses import AttentionFigures
from posgap.progress import track
from posgap.tasks.spans import gold_tokens


class Shares(NamedTuple):
    """Attention mass `[L]` on the gold documents and on the first token, from 0 to 1."""

    gold: Tensor
    sink: Tensor


def attention_shares(model: PreTrainedModel, prompt: Sequence[int], gold: Sequence[int]) -> Shares:
    """What the last token of `prompt` gives to the tokens whose indices are `gold`, and to the first."""
    row = last_token_attention(model, prompt)
    return Shares(row[:, list(gold)].sum(1), row[:, 0])


@torch.inference_mode()
def last_token_attention(model: PreTrainedModel, prompt: Sequence[int]) -> Tensor:
    """Attention `[L, N]` of the prompt's last token, averaged over heads, in float32 on the CPU.

    All but the last token fill the key-value cache under the model's own attention; the last one
    alone attends eagerly, so that no N x N map ever exists. What lies before a sliding window has 0.
    """
    ids = torch.tensor([prompt], device=model.device)
    cache = model.base_model(input_ids=ids[:, :-1], use_cache=True).past_key_values if len(prompt) > 1 else None
    own = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        output = model.base_model(input_ids=ids[:, -1:], past_key_values=cache, use_cache=True, output_attentions=True)
    finally:
        model.set_attn_implementation(own)
    heads = [layer[0, :, 0] for layer in output.attentions or () if layer is not None]  # [heads, at most N]
    if not heads:
        raise PosgapError(f"{type(model).__name__}: shows no attention; diagnose with attention 0")
    rows = [layer.float().mean(0).cpu() for layer in heads]
    return torch.stack([torch.cat([row.new_zeros(len(prompt) - len(row)), row]) for row in rows])


def diagnose_attention(swept: Swept, model: PreTrainedModel, most: int) -> AttentionFigures:
    """Mean shares over the first `most` examples at every placement of the sweep."""
    examples, build = swept.examples[:most], swept.build
    gold, sink, even = [], [], []
    for placement in track(swept.placements, len(swept.placements), "attention"):
        shares, parts = [], []
        for example in examples:
            prompt, tokens = build(example, placement), gold_tokens(build, example, placement)
            shares.append(attention_shares(model, prompt, tokens))
            parts.append(len(tokens) / len(prompt))
        gold.append(_mean_percent(torch.stack([share.gold for share in shares])).tolist())
        sink.append(_mean_percent(torch.stack([share.sink for share in shares])).tolist())
        even.append(float(_mean_percent(torch.tensor(parts))))
    return AttentionFigures(n_examples=len(examples), gold=gold, sink=sink, even=even)


def _mean_percent(values: Tensor) -> Tensor:
    return 100 * values.mean(0)
