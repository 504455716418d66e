"""Measures the rollout of every family of causal language models that can be built small, against an independent twin.

    python benchmarks/rollout_families.py                     prints the table
    python benchmarks/rollout_families.py --write             writes it for docs/families.md
    python benchmarks/rollout_families.py llama bloom         only these

The twin asks transformers for all attention matrices at once (`output_attentions`), multiplies them in float64, and
takes what the attention adds to the stream from the family's own formula (`SUMS`), of the layer's input and the
attention module's output. The measurement calls layers again, with the attention by blocks of queries.
"""

import argparse
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from families import ROWS, VOCABULARY, build
from report import write_table
from torch import Tensor, nn
from transformers import PreTrainedModel

from posgap.foundation.errors import PosgapError
from posgap.models.loading import eager_attention
from posgap.rollout import decoders
from posgap.rollout.attention import MatrixAttention, last_row
from posgap.rollout.decoders import n_heads, position_encoding
from posgap.rollout.measurement import Measured, measure

N, TEXTS = 24, 2
CLOSE = 2e-3  # the greatest relative difference of a share or a strength, where float32 has rounded layer upon layer

_PLAIN = "gpt_neo hunyuan_v1_moe internlm3 minicpm3 openai-gpt xglm gemma4_text hyperclovax glm_moe_dsa "
MORE: dict[str, tuple[str, dict]] = {
    **{name: (name, {}) for name in _PLAIN.split()},
    "dots1": ("dots1", {"n_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}),
    "minimax, no linear attention": ("minimax", {
        "layer_types": ["full_attention"] * 4, "full_attn_alpha_factor": 1.7, "full_attn_beta_factor": 0.6}),
    "doge, stream scaled": ("doge", {}),
    "lfm2_moe": ("lfm2_moe", {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1}),
    "bamba": ("bamba", {"attn_layer_indices": [1, 3], "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8}),
    "granitemoehybrid": ("granitemoehybrid", {
        "layer_types": ["linear_attention", "full_attention"] * 2, "mamba_n_heads": 4, "mamba_d_head": 16,
        "mamba_d_state": 8}),
    "kimi_linear": ("kimi_linear", {
        "layer_types": ["linear_attention", "full_attention"] * 2, "linear_num_heads": 4, "linear_head_dim": 8}),
    "bailing_hybrid": ("bailing_hybrid", {
        "layer_types": ["linear_attention", "full_attention"] * 2, "n_group": 1, "topk_group": 1}),
    "zamba2": ("zamba2", {"layers_block_type": ["linear_attention", "hybrid"] * 2, "attention_head_dim": 16}),
    "mimo_v2_flash": ("mimo_v2_flash", {"num_key_value_heads": 2, "v_head_dim": 8}),
    "bloom, post-norm": ("bloom", {"apply_residual_connection_post_layernorm": True}),
    "opt, post-norm": ("opt", {"do_layer_norm_before": False}),
    "granite, branches scaled": ("granite", {"residual_multiplier": 0.22}),
    "gpt_neox, in series": ("gpt_neox", {"use_parallel_residual": False}),
    "falcon, in series": ("falcon", {"parallel_attn": False, "new_decoder_architecture": False}),
    "falcon, ALiBi": ("falcon", {"alibi": True, "parallel_attn": False, "new_decoder_architecture": False}),
    "llama, llama3 RoPE": ("llama", {"rope_parameters": {
        "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}}),
    "qwen2, YaRN": ("qwen2", {"rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}}),
    "qwen2, window": ("qwen2", {"use_sliding_window": True, "max_window_layers": 2}),
    "smollm3, no positions": ("smollm3", {"no_rope_layer_interval": 2}),
    "llama, grouped heads": ("llama", {"num_key_value_heads": 2}),
    "phi, in parallel": ("phi", {"partial_rotary_factor": 0.5}),
}  # fmt: skip
TABLE = {**ROWS, **MORE}

# What keeps value norms from a family, in short.
REFUSED = {
    "its values cannot be read": "no: its attention cannot be replaced",
    "a gate, or a normalisation within": "no: a gate or a normalisation behind the heads",
}

# What the attention adds (second), and to what (first), from a layer's input x and its attention's output a: as the
# family's code has it. Families that are not named add a to x.
Sum = Callable[[Any, Tensor, Tensor], tuple[Tensor, Tensor]]
_NORMALISED = "gemma2 gemma3_text gemma4_text gemma4_unified_text afmoe exaone4 flex_olmo olmo2 olmo3 olmo_hybrid "
SUMS: dict[str, Sum] = {
    **dict.fromkeys(_NORMALISED.split(), lambda layer, x, a: (x, layer.post_attention_layernorm(a))),
    "glm4": lambda layer, x, a: (x, layer.post_self_attn_layernorm(a)),
    "hyperclovax": lambda layer, x, a: (x, layer.residual_multiplier * layer.post_norm1(a)),
    "granite, branches scaled": lambda layer, x, a: (x, 0.22 * a),
    "minicpm3": lambda layer, x, a: (x, layer.residual_scale * a),
    "lfm3": lambda layer, x, a: (x, layer.post_operator_norm(a)),
    **dict.fromkeys(
        ("minimax", "minimax, no linear attention"),
        lambda layer, x, a: (layer.attn_alpha_factor * layer.input_layernorm(x), layer.attn_beta_factor * a),
    ),
    "doge, stream scaled": lambda layer, x, a: (layer.input_residual * x, a),
    "bloom": lambda layer, x, a: (x, a - x),
    "bloom, post-norm": lambda layer, x, a: (layer.input_layernorm(x), a - layer.input_layernorm(x)),
}


def twin(model: PreTrainedModel, name: str, ids: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Matrices [L, E, H, N, N] as transformers reports them, and strengths [L, E, N] by the family's formula."""
    decoder = decoders.Decoder(model)
    inputs: dict[int, Tensor] = {}
    outputs: dict[int, Tensor] = {}
    handles = []

    def streams(index: int) -> tuple[Callable, Callable]:
        def entered(module: nn.Module, args: tuple, kwargs: dict) -> None:
            inputs[index] = (args[0] if args else kwargs["hidden_states"]).clone()

        def left(module: nn.Module, args: tuple, output: Any) -> None:
            outputs[index] = (output[0] if isinstance(output, tuple | list) else output).clone()

        return entered, left

    for index, (layer, attention) in enumerate(zip(decoder.layers, decoder.attentions)):
        entered, left = streams(index)
        handles.append(layer.register_forward_pre_hook(entered, with_kwargs=True))
        handles.append(attention.register_forward_hook(left))
    family = sys.modules[type(decoder.attentions[0]).__module__]
    patched = mock.patch.object(family, "eager_attention_forward", _with_sinks)
    with eager_attention(model), patched if name.endswith("_swa") else nullcontext(), torch.no_grad():
        matrices = model(input_ids=ids, output_attentions=True, use_cache=False).attentions
        if len(matrices) == decoder.n_all:  # hybrids report those of all layers, or of the ones with attention alone
            matrices = [matrices[number - 1] for number in decoder.numbers]
        for handle in handles:
            handle.remove()
        strengths = []
        for index, layer in enumerate(decoder.layers):
            x, a = SUMS.get(name, _plain)(layer, inputs[index], outputs[index].reshape(inputs[index].shape))
            strengths.append((a.norm(dim=-1) / (x.norm(dim=-1) + a.norm(dim=-1))).double().numpy())
    return torch.stack(list(matrices)).double().numpy(), np.array(strengths)


def _plain(layer: Any, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    return x, a


def _with_sinks(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **_: Any
) -> tuple[Tensor, Tensor]:
    """Attention with a sink's logit beside the tokens', whose weight is then dropped: Granite's code scales the output
    instead, and returns weights that know nothing of it."""
    key, value = (each.repeat_interleave(query.shape[1] // each.shape[1], dim=1) for each in (key, value))
    scores = query @ key.transpose(2, 3) * scaling + mask
    beside = module.sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    weights = torch.cat([scores, beside], dim=-1).softmax(dim=-1)[..., :-1]
    return (weights @ value).transpose(1, 2).contiguous(), weights


def far(one: np.ndarray, other: np.ndarray) -> float:
    """The greatest difference, relative to the greatest value."""
    return float(np.abs(one - other).max() / np.abs(other).max())


def tried(name: str) -> list[str]:
    """A row of the table: the family; equal to the twin, or what the measurement refuses with; windows; RoPE."""
    family, settings = TABLE[name]
    model = build(family, **settings)
    if name == "doge, stream scaled":
        for layer in model.model.layers:
            torch.nn.init.uniform_(layer.input_residual, 0.2, 2.0)
    ids = torch.randint(3, VOCABULARY - 4, (TEXTS, N), generator=torch.Generator().manual_seed(1))
    try:
        heads = n_heads(model.config)
        slopes = np.array(position_encoding(model.config).get("slopes", np.zeros(heads)))
        with mock.patch.object(decoders, "WEIGHTS_AT_ONCE", TEXTS * heads * N * 7):  # blocks of seven queries
            measured = measure(model, [ids], N, slopes, 0.2)
    except PosgapError as error:
        return [name, f"refused: {error}", "", ""]
    differences = compared(measured, *twin(model, name, ids))
    wrong = {what: by for what, by in differences.items() if not by < CLOSE}
    said = "; ".join(f"{what} differ by {by:.2g}" for what, by in wrong.items()) or "equal"
    if lost := measured.unattended["rollout_without_residuals"]:
        said += f", {100 * lost:.0f} % to sinks' logits" if lost > 1e-3 else ""
    if len(measured.layers) < (n_all := model.config.get_text_config().num_hidden_layers):
        said += f", by {', '.join(map(str, measured.layers))} of {n_all} layers"
    return [name, said, seen(measured.windows), turned(measured.frequencies)]


def attributed(name: str) -> str:
    """Whether value norms can be measured too, or why not."""
    family, settings = TABLE[name]
    model = build(family, **settings)
    ids = torch.randint(3, VOCABULARY - 4, (1, N), generator=torch.Generator().manual_seed(1))
    reason = measure(model, [ids], N, np.zeros(n_heads(model.config)), 0.2).no_value_norm
    return next((short for said, short in REFUSED.items() if said in reason), reason or "yes")


def compared(measured: Measured, matrices: np.ndarray, strengths: np.ndarray) -> dict[str, float]:
    """How far the measurement is from the twin, by what was measured."""
    differences = {
        "first tokens' masses": far(measured.statistics["first_mass"], matrices[:, :, :, 1:, 0].mean((1, 3))),
        "strengths": far(measured.statistics["lambdas"], strengths.mean((1, 2))),
    }
    for what, lambdas in {
        "rollout": strengths.mean(2),
        "rollout_without_residuals": np.ones(strengths.shape[:2]),
    }.items():
        rows = [
            last_row(N, [MatrixAttention(layer[text].mean(0)) for layer in matrices], lambdas[:, text])
            for text in range(TEXTS)
        ]
        differences[what] = far(measured.influence[what], np.array([row / row.sum() for row in rows]))
    return differences


def seen(windows: list[int | None]) -> str:
    """The tokens that layers see, in words."""
    words = [("no window" if width is None else "all" if width == N else str(width)) for width in windows]
    return words[0] if len(set(words)) == 1 else ", ".join(words)


def turned(frequencies: list[list[float] | None]) -> str:
    """What layers turn by, in words: the greatest and the least angle."""
    words = [
        "unknown" if each is None else f"{each[0]:.3g} to {each[-1]:.3g}" if each else "nothing" for each in frequencies
    ]
    return words[0] if len(set(words)) == 1 else ", ".join(words)


def table(rows: list[list[str]]) -> str:
    """The table of docs/families.md."""
    refused = sum(row[1].startswith("refused") for row in rows)
    equal = sum(row[1].startswith("equal") for row in rows)
    intro = (
        f"Written by `benchmarks/rollout_families.py --write` with transformers {transformers.__version__}: "
        f"{len(rows)} configurations with random weights, {equal} equal to an independent twin, {refused} refused. "
        f"Windows are in tokens, of {N}; RoPE's angles in radians a token, the greatest and the least."
    )
    head = ["| configuration | against its twin | sees | turns by | value norms |", "|---|---|---|---|---|"]
    return "\n".join(["## Which models", "", intro, "", *head, *(f"| {' | '.join(row)} |" for row in rows)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="family", help="only these")
    parser.add_argument("--write", action="store_true", help="write the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = []
    for name in arguments.families or TABLE:
        try:
            row = tried(name)
            rows.append([*row, "" if row[1].startswith("refused") else attributed(name)])
        except Exception as error:
            print(f"{name} FAILED: {type(error).__name__} {error}"[:300], file=sys.stderr, flush=True)
            continue
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    if arguments.write:
        write_table("rollout-families", table(rows))


if __name__ == "__main__":
    main()
