"""A tiny Llama with a byte-level tokenizer, and the GGUF file that llama.cpp's converter would make of it."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.convert_slow_tokenizer import bytes_to_unicode

WIDTH, HEADS, KEY_HEADS, LAYERS, INNER, CONTEXT = 64, 4, 2, 2, 96, 512
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<pad>"]
BYTES = list(bytes_to_unicode().values())
MERGES = ["t h", "th e", "Ġ the"]
TOKENS = [*SPECIAL, *BYTES, "th", "the", "Ġthe"]
END = SPECIAL.index("<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}


def llama(seed: int = 0) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(TOKENS),
            hidden_size=WIDTH,
            intermediate_size=INNER,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KEY_HEADS,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            initializer_range=0.2,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=END,
            pad_token_id=3,
        )
    ).eval()


def write(
    file: Path,
    model: LlamaForCausalLM,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    architecture: str = "llama",
    without: tuple[str, ...] = (),
    **metadata: Any,
) -> Path:
    """The file, with matrices stored as `kind`. `metadata` are more fields, with `__` for a dot; the tensors of
    `without` are left out."""
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(metadata.pop("eos", END))
    writer.add_pad_token_id(3)
    writer.add_add_bos_token(False)
    writer.add_chat_template(TEMPLATE)
    for name, value in metadata.items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)]
        add(name.replace("__", "."), value)
    for name, weight in model.state_dict().items():
        if (ours := _name(name)) and ours not in without:
            array = _turned(ours, weight.float().numpy())
            stored = kind if array.ndim == 2 else gguf.GGMLQuantizationType.F32
            writer.add_tensor(ours, gguf.quants.quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def rounded(model: LlamaForCausalLM, kind: gguf.GGMLQuantizationType) -> LlamaForCausalLM:
    """The model with matrices as `kind` keeps them."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                kept = gguf.quants.dequantize(gguf.quants.quantize(weight.numpy(), kind), kind)
                weight.copy_(torch.from_numpy(np.array(kept)))
    return model


def _name(name: str) -> str:
    """What llama.cpp calls a weight; empty for one that is tied to another."""
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    if name == "lm_head.weight":
        return ""
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def _turned(name: str, weight: np.ndarray) -> np.ndarray:
    """The rows of queries and keys in llama.cpp's order, which turns neighbours where transformers turns halves."""
    heads = {"attn_q": HEADS, "attn_k": KEY_HEADS}.get(name.split(".")[-2])
    if not heads:
        return weight
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)
