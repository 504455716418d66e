"""Factors of heads (Ms-PoE) against attention computed anew, head by head and token by token, in 64 bits.

Each family's attention is written here once more from its paper or its configuration, and knows nothing of tables: a
head turns queries and keys by its own positions, which are those of the tokens divided by its factor. What stands
around attention (embeddings, norms, feed-forward layers) is the family's own.
"""

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from places import ROOT
from torch import Tensor
from transformers import PreTrainedModel

from posgap.mitigations.in_force import apply_mitigation
from posgap.models.head_scaling import _Heads, factors_by_rank

sys.path.append(str(ROOT / "benchmarks"))
import families

HEADS = families.SIZES["num_attention_heads"]
LOW = 0.8
HIGH = 2.0
IDS = torch.randint(3, families.VOCABULARY - 4, (1, 20), generator=torch.Generator().manual_seed(7))


def halves(x: Tensor, angles: Tensor) -> Tensor:
    """`x [S, D]` turned by `angles [S, D / 2]`, dimension i together with i + D / 2."""
    pairs = torch.complex(*x.chunk(2, dim=-1)) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([pairs.real, pairs.imag], dim=-1)


def neighbours(x: Tensor, angles: Tensor) -> Tensor:
    """The same, dimension 2 i together with 2 i + 1."""
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(pairs).flatten(-2)


_WORDS = {"q": "query", "k": "key", "v": "value"}


def separate(attention: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values `[H, S, D]` of three projections, normed by head or all together where they are."""
    made = []
    for letter in "qkv":
        x = getattr(attention, f"{letter}_proj")(hidden)
        names = (f"{letter}_norm", f"{letter}_layernorm", f"{_WORDS[letter]}_layernorm")
        norm = next((getattr(attention, name) for name in names if getattr(attention, name, None) is not None), None)
        if norm is not None and norm.weight.shape[-1] == x.shape[-1]:
            x, norm = norm(x), None
        x = x.unflatten(-1, (-1, attention.head_dim))
        made.append((norm(x) if norm is not None else x).transpose(0, 1))
    return tuple(made)


def by_head(attention: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of GPT-NeoX's projection, in which the query, key and value of a head stand together."""
    made = attention.query_key_value(hidden).unflatten(-1, (-1, 3, attention.head_size))
    return tuple(made[:, :, i].transpose(0, 1) for i in range(3))


def in_turn(attention: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of Phi-3's projection: all queries, then all keys, then all values."""
    made = attention.qkv_proj(hidden).unflatten(-1, (-1, attention.head_dim)).transpose(0, 1)
    n = attention.config.num_attention_heads
    keys = attention.config.num_key_value_heads
    return made[:n], made[n : n + keys], made[n + keys :]


def latent(attention: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of DeepSeek's compressed projections; the dimensions that are turned are put first, which leaves scores alone."""
    still, turned = attention.qk_nope_head_dim, attention.qk_rope_head_dim
    query = attention.q_b_proj(attention.q_a_layernorm(attention.q_a_proj(hidden)))
    query = query.unflatten(-1, (-1, still + turned)).transpose(0, 1).roll(turned, -1)
    compressed, common = attention.kv_a_proj_with_mqa(hidden).split([attention.kv_lora_rank, turned], dim=-1)
    made = attention.kv_b_proj(attention.kv_a_layernorm(compressed)).unflatten(-1, (len(query), -1)).transpose(0, 1)
    return query, torch.cat([common.expand(len(query), -1, -1), made[..., :still]], -1), made[..., still:]


# What a family's attention does: how it makes queries, keys and values, which dimensions it turns together, and in
# which layers it turns nothing.
Kind = tuple[Callable[..., Any], Callable[..., Tensor], Callable[[Any, int], bool]]
never, windowless = (lambda config, layer: False), (lambda config, layer: config.layer_types[layer] == "full_attention")
_HALVES = (
    "llama qwen2 qwen3 qwen3_moe gemma gemma2 gemma3_text olmo2 olmo3 phi stablelm starcoder2 granite mistral "
    "ministral3 mixtral gpt_oss seed_oss apertus"
)
KINDS: dict[str, Kind] = {
    **dict.fromkeys(_HALVES.split(), (separate, halves, never)),
    **dict.fromkeys(("glm", "glm4", "cohere", "ernie4_5"), (separate, neighbours, never)),
    "cohere2": (separate, neighbours, windowless),
    "exaone4": (separate, halves, windowless),
    "smollm3": (separate, halves, lambda config, layer: not config.no_rope_layers[layer]),
    "gpt_neox": (by_head, halves, never),
    "phi3": (in_turn, halves, never),
    "deepseek_v3": (latent, neighbours, never),
}


def angles_of(model: PreTrainedModel, layer: int) -> tuple[Tensor, float]:
    """The frequencies of a layer's rotary positions, and what its tables are multiplied by."""
    rotary = model.get_decoder().rotary_emb
    kinds = getattr(model.config, "layer_types", None)
    of = f"{kinds[layer]}_" if kinds and hasattr(rotary, f"{kinds[layer]}_inv_freq") else ""
    return getattr(rotary, f"{of}inv_freq").double(), float(getattr(rotary, f"{of}attention_scaling", 1.0))


def brute_force(model: PreTrainedModel, family: str, factors: list[list[float]]) -> Tensor:
    """The logits of a model in 64 bits whose head h of layer l divides positions by `factors[l][h]`."""
    made, turn, unturned = KINDS[family]
    config = model.config

    def forward(attention: Any, layer: int, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        (hidden,) = args[0] if args else kwargs["hidden_states"]
        query, key, value = made(attention, hidden)
        frequencies, gain = angles_of(model, layer)
        window = getattr(config, "sliding_window", None)
        if getattr(config, "layer_types", None) and config.layer_types[layer] == "full_attention":
            window = None
        if not getattr(config, "use_sliding_window", True):
            window = None
        cap, sinks = getattr(config, "attn_logit_softcapping", None), getattr(attention, "sinks", None)
        out = torch.zeros(len(hidden), len(query), value.shape[-1], dtype=torch.float64)
        for head in range(len(query)):
            shared = head * len(key) // len(query)
            positions = torch.arange(len(hidden), dtype=torch.float64) / factors[layer][head]
            angles, wide = positions[:, None] * frequencies, 2 * len(frequencies)
            q, k = query[head].double(), key[shared].double()
            if not unturned(config, layer):
                q, k = (torch.cat([gain * turn(x[:, :wide], angles), x[:, wide:]], -1) for x in (q, k))
            for row in range(len(hidden)):
                first = max(0, row - window + 1) if window else 0
                scores = [float(q[row] @ k[column]) * attention.scaling for column in range(first, row + 1)]
                if cap:
                    scores = [cap * math.tanh(score / cap) for score in scores]
                total = sum(map(math.exp, scores)) + (math.exp(float(sinks[head])) if sinks is not None else 0)
                for column, score in zip(range(first, row + 1), scores):
                    out[row, head] += math.exp(score) / total * value[shared, column]
        last = next(getattr(attention, n) for n in ("o_proj", "dense", "out_proj") if hasattr(attention, n))
        return last(out.flatten(1))[None], None

    attentions = [each for each in model.modules() if type(each).__name__.endswith("Attention")]
    for layer, attention in enumerate(attentions):
        attention.forward = partial(forward, attention, layer)
    with torch.inference_mode():
        return model(input_ids=IDS, use_cache=False).logits


def factors_of(model: PreTrainedModel, low: float = LOW, high: float = HIGH) -> list[list[float]]:
    """The factors that the heads of a model's layers have by their ranks in the last prompt."""
    rows = []
    for each in model.modules():
        state = each.forward.args[0] if isinstance(each.forward, partial) else None
        if isinstance(state, _Heads):
            rungs = [1.0, *factors_by_rank(low, high, state.n_keys)]
            rungs_of_heads = state.chosen[0].expand(state.n_keys).repeat_interleave(HEADS // state.n_keys)
            rows.append([rungs[rung] for rung in rungs_of_heads.tolist()])
    return rows


def apart(family: str, keys: int = HEADS) -> tuple[float, float]:
    """How far the logits of ranked heads are from those computed here, and from those without factors, in standard
    deviations. The model has so many keys a layer, for four heads."""
    settings = {"num_key_value_heads": keys} if keys != HEADS else {}
    model, twin = (families.build_family(family, **settings).double() for _ in range(2))
    for each in (model, twin):
        if hasattr(each, "set_experts_implementation"):
            each.set_experts_implementation("eager")  # others compute in 32 bits at most
    with torch.inference_mode():
        without = model(input_ids=IDS, use_cache=False).logits
        apply_mitigation(model, "ms-poe", {"low": LOW, "high": HIGH, "first_layer": 0})
        seen = model(input_ids=IDS, use_cache=False).logits
    wanted = brute_force(twin, family, factors_of(model))
    return tuple(float((each - wanted).abs().max() / wanted.std()) for each in (seen, without))
