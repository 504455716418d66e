"""Loading Hugging Face models and tokenizers the one way posgap does: safetensors, no remote code."""

from pathlib import Path

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from posgap.errors import PosgapError
from posgap.scaling.application import scale_model

transformers_logging.disable_progress_bar()


def _loaded(loader, path: str, what: str, **options):
    try:
        return loader.from_pretrained(path, trust_remote_code=False, **options)
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise PosgapError(f"{path}: no {what} to load here: {reason}") from None


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """The model's tokenizer. One without a padding token pads with its end token."""
    tokenizer = _loaded(AutoTokenizer, path, "tokenizer")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def load_config(path: str) -> PretrainedConfig:
    """The model's configuration."""
    return _loaded(AutoConfig, path, "model")


def load_model(path: str, dtype: str = "auto") -> PreTrainedModel:
    """A causal language model from safetensors, in evaluation mode, on the CPU; scaled where its
    config names RoPE factors.

    `dtype` "auto" is bfloat16 where there is a GPU and float32 elsewhere.
    """
    model = _loaded(AutoModelForCausalLM, path, "model", dtype=resolve_dtype(dtype), use_safetensors=True)
    return scale_model(model.eval())


def save_model(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, out: Path, state: dict | None = None
) -> None:
    """Writes a Hugging Face folder in safetensors; `state` stands in for parameters kept elsewhere."""
    if state is not None:
        tied = getattr(model, "all_tied_weights_keys", {})
        state = {name: tensor for name, tensor in state.items() if name not in tied}
    model.save_pretrained(out, state_dict=state)
    tokenizer.save_pretrained(out)


def resolve_dtype(name: str) -> torch.dtype:
    if name == "auto":
        return torch.bfloat16 if torch.cuda.is_available() else torch.float32
    return getattr(torch, name)


def context_length(config: PretrainedConfig, tokenizer: PreTrainedTokenizerBase) -> int:
    """Tokens the model can read: the smaller of what model and tokenizer declare."""
    declared = getattr(config.get_text_config(), "max_position_embeddings", None)
    return min(declared or tokenizer.model_max_length, tokenizer.model_max_length)
