"""A Llama whose RoPE is scaled."""

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

SIZES = {
    "vocab_size": 60,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
}


FACTORS = (1.0, 1.25, 1.75)


# Angles are float32 in every model, and eager attention has a float32 softmax.
CLOSE = {"rtol": 1e-3, "atol": 1e-4}


def tiny(family: str = "llama", seed: int = 0, **more):
    torch.manual_seed(seed)
    if family == "phi":
        more = {"num_key_value_heads": 4, **more}
    config = CONFIG_MAPPING[family](**SIZES | more)
    return AutoModelForCausalLM.from_config(config).double().eval()


@torch.no_grad()
def logits(model, ids, **more):
    return model(input_ids=ids, use_cache=False, **more).logits
