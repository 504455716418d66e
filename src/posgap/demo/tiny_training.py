"""The parts common to the tiny models: architecture, word-level tokenizer and training steps."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, OlmoConfig, OlmoForCausalLM, PreTrainedTokenizerFast

CONTEXT = 512
BATCH = 32
IGNORED = -100
TinyModel = LlamaForCausalLM | OlmoForCausalLM
FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "olmo": (OlmoConfig, OlmoForCausalLM)}
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")


def word_tokenizer(
    ids: dict[str, int],
    normalize: Sequence[normalizers.Normalizer],
    pattern: str,
    decode: Sequence[decoders.Decoder] = (),
) -> PreTrainedTokenizerFast:
    """Returns a tokenizer whose tokens are the matches of `pattern` in the normalised text.

    `ids` begins with the `SPECIAL` tokens; an encoded text begins with `<bos>`. `decode` are further decoders, applied
    to a response's concatenated pieces.
    """
    core = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    core.normalizer = normalizers.Sequence(list(normalize))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    core.decoder = decoders.Sequence([decoders.Fuse(), *decode]) if decode else decoders.Fuse()
    core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", ids["<bos>"])])
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=CONTEXT,
        clean_up_tokenization_spaces=False,
    )


def untrained_model(vocab_size: int, seed: int, layers: int = 2, family: str = "llama") -> TinyModel:
    """The model before training: width 64, 4 heads, tied embeddings; `family` is "llama" or "olmo"."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": layers, "num_attention_heads": 4}
    special = {f"{name}_token_id": SPECIAL.index(f"<{name}>") for name in ("pad", "bos", "eos")}
    config, model = FAMILIES[family]
    return model(
        config(
            vocab_size=vocab_size,
            **sizes,
            **special,
            num_key_value_heads=4,
            max_position_embeddings=CONTEXT,
            rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
            tie_word_embeddings=True,
            initializer_range=0.05,
        )
    )


class Updates:
    """Training steps in place: Muon for the blocks' matrices, AdamW for all other parameters.

    With AdamW alone, training stays on the plateau of guessing one of the values in the prompt; with Muon it leaves it.
    """

    def __init__(self, model: TinyModel):
        self.model = model
        matrices = [weight for weight in model.model.layers.parameters() if weight.ndim == 2]
        chosen = set(map(id, matrices))
        others = [weight for weight in model.parameters() if id(weight) not in chosen]
        self.peaks = {
            torch.optim.Muon(matrices, weight_decay=0.0, momentum=0.9, nesterov=True, ns_steps=5): 0.02,
            torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.0): 3e-3,
        }

    def __call__(self, ids: Tensor, labels: Tensor, rate: float) -> tuple[Tensor, Tensor]:
        """One step on `ids, labels [B, T]` at `rate` of the peak learning rates.

        Returns the cross-entropies and the ids of the N labelled tokens, both [N].
        """
        hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
        target = labels[:, 1:]
        answered = target != IGNORED
        logits = self.model.lm_head(hidden[:, :-1][answered])
        losses = F.cross_entropy(logits, target[answered], reduction="none")
        losses.mean().backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, peak in self.peaks.items():
            for group in optimizer.param_groups:
                group["lr"] = peak * rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return losses.detach(), target[answered]
