"""The attention that a prompt's last token pays to each token, read without holding any map of all pairs.

In shapes, L counts the layers with attention, N the prompt's tokens, and R the answer's tokens that are read.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from posgap.foundation.errors import PosgapError
from posgap.models.loading import eager_attention

WEIGHTS_AT_ONCE = 1 << 26  # attention weights held at once, over all layers and heads: 256 MiB in float32


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
            yield torch.stack([F.pad(layer[row], (read - layer.shape[1], 0))[:columns] for layer in heads])
