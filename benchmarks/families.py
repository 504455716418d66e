"""Tries families of causal language models of transformers, each built small with random weights: docs/mitigations.md.

    python benchmarks/families.py TABLE [family ...] [--write]
    python benchmarks/families.py --quick

TABLE is one of

- families: what posgap generates, in a batch and alone, with prefixes reused or not, against one `generate` call per
  prompt, token by token; eager attention; scaling by layer.
- mitigations: of each mitigation of a model: do settings that mean nothing change nothing, to the bit, and others
  something; does a prompt with tokens after it, one at a time, give what one pass gives; are settings replaced and
  taken back, to the bit; is a saved and loaded model the one in memory; or is it refused, in one line, and is the model
  as it was?
- rollout: the measured rollout against an independent twin, which asks transformers for all attention matrices at once,
  multiplies them in float64, and takes what the attention adds to the stream from the family's own formula (`SUMS`).
- vllm: a scaled model served by vLLM, whose Python POSGAP_VLLM_PYTHON names: its log-probabilities against those of
  transformers, and where they differ, unscaled too. Models are wider there, as vLLM's attention on CPUs wants, and
  share a process; one that brings it down leaves the others alone.

`--write` writes the table for the page. `--quick` tries a few families by all tables but vLLM's. The last line is JSON:
how many rows were made, and how many `equal` what they are held against or are refused in a line.
"""

import argparse
import dataclasses
import functools
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import torch
import transformers
from report import write_table
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_json, write_json
from posgap.generation.generator import Sampling
from posgap.generation.transformers import TransformersGenerator
from posgap.mitigations.in_force import apply_mitigation, load_model, remove_mitigation, scale_model
from posgap.mitigations.mitigation import ModelMitigation, ProposalInput, Settings
from posgap.mitigations.registry import MITIGATIONS
from posgap.mitigations.state import in_force
from posgap.models.loading import eager_attention, save_model
from posgap.rollout import decoders
from posgap.rollout.attention import last_row
from posgap.rollout.decoders import n_heads, position_encoding
from posgap.rollout.measurement import MeasuredInfluence, measure_influence
from posgap.tasks.prompts import Prompt

# Models

VOCABULARY = 64
# What a family's configuration takes of these: sizes, a window shorter than the prompts, few experts, no end token.
SIZES = {
    **dict.fromkeys(("hidden_size", "n_embd"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "num_key_value_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 128),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **{"vocab_size": VOCABULARY, "intermediate_size": 48, "moe_intermediate_size": 16, "head_dim": 8, "rotary_dim": 4},
    **{"sliding_window": 8, "num_experts_per_tok": 2},
}
ALWAYS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": None}
LONG = {
    **{"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 30},
    **{"short_factor": [1.0] * 4, "long_factor": [4.0, 3.0, 2.0, 6.0]},
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
# What some families need to be small, and whole in so few layers.
NEEDS = {
    "deepseek_v3": {"n_routed_experts": 4, "n_group": 1, "topk_group": 1},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 4},
}
# A family under other settings than its configuration's own, by the name that the table gives it.
SETTINGS = {
    "phi3, long RoPE": ("phi3", {"rope_parameters": LONG, "original_max_position_embeddings": 30}),
    "llama, dynamic RoPE": ("llama", {"rope_parameters": DYNAMIC, "max_position_embeddings": 30}),
    "falcon, ALiBi": ("falcon", {"alibi": True}),
    "mistral, no window": ("mistral", {"sliding_window": None}),
}
_NAMES = (
    "afmoe apertus arcee aria_text axk2 biogpt bitnet bloom codegen cohere cohere2 cohere2_moe ctrl cwm "
    "deepseek_v2 deepseek_v3 deepseek_v4 diffllama doge ernie4_5 ernie4_5_moe exaone4 exaone_moe falcon "
    "falcon_h1 falcon_mamba flex_olmo gemma gemma2 gemma3_text gemma4_unified_text glm glm4 glm4_moe "
    "glm4_moe_lite gpt2 gpt_bigcode gpt_neox gpt_neox_japanese gpt_oss gptj granite granite_swa "
    "granitemoe granitemoe_swa granitemoeshared helium hrm_text hunyuan_v1_dense hy_v3 jais2 jamba jetmoe "
    "laguna lfm2 lfm3 llama llama4_text mamba mellum minimax minimax_m2 ministral ministral3 mistral "
    "mixtral modernbert-decoder moshi mpt nanochat nemotron nemotron_h olmo olmo2 olmo3 olmo_hybrid olmoe "
    "opt persimmon phi phi3 phimoe qwen2 qwen2_moe qwen3 qwen3_5_text qwen3_moe qwen3_next "
    "recurrent_gemma rwkv seed_oss smollm3 solar_open stablelm starcoder2 vaultgemma youtu "
)
ROWS: dict[str, tuple[str, dict]] = {**{family: (family, {}) for family in _NAMES.split()}, **SETTINGS}


class MatrixAttention:
    """Attention given as a row-stochastic matrix A [N, N], to hold rollouts by sums against."""

    def __init__(self, matrix: np.ndarray):
        self.matrix = matrix

    def carry(self, row: np.ndarray) -> np.ndarray:
        return row @ self.matrix


def build_family(family: str, **settings: object) -> PreTrainedModel:
    """A small model of the family with random weights, sharp enough that its greedy tokens differ."""
    return _built(family, SIZES, 0.3, settings)


def _built(family: str, sizes: dict[str, Any], std: float, settings: dict[str, Any]) -> PreTrainedModel:
    made, settings = CONFIG_MAPPING[family], NEEDS.get(family, {}) | settings
    takes = {field.name for field in dataclasses.fields(made)} | set(inspect.signature(made).parameters)
    config = made(**({name: value for name, value in sizes.items() if name in takes} | ALWAYS | settings))
    torch.manual_seed(0)
    # As `load_model` asks for it: before 5.21 transformers would have chosen an attention that leaves out the cap.
    capped = getattr(config, "attn_logit_softcapping", None)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager" if capped else None).eval()
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            torch.nn.init.normal_(parameter, std=std)
    return model


# Generation

NEW_TOKENS = 6
# Of the logits' standard deviation: random weights make much of rounding (up to 0.01, of DeepSeek-V3 and Youtu; in
# float64 Youtu's is 40 times less). Biases that are added twice make 0.45.
ROUNDING = 0.05


def groups() -> list[list[Prompt]]:
    """Three groups of four prompts of 14 to 52 tokens, which begin alike."""
    draw = torch.Generator().manual_seed(3)

    def some(n: int) -> list[int]:
        return torch.randint(3, VOCABULARY - 4, (n,), generator=draw).tolist()

    made = []
    for n in (23, 17, 31):
        first, middle, last = some(n), some(9), some(12)
        prompts = (first + middle + last, first[: n // 2] + last + middle, first + last, first[:5] + middle)
        made.append([Prompt("", prompt) for prompt in prompts])
    return made


class Words:
    """A stand-in for a tokenizer: token ids are the words."""

    pad_token_id, eos_token_id = 0, None

    def decode(self, ids: Iterable[int], **_: object) -> str:
        return " ".join(map(str, ids))


def answers(family: str, settings: dict, budget: int) -> dict[tuple[int, int], list[int]]:
    """What posgap generates with a new model in batches of `budget` tokens."""
    generator = TransformersGenerator(build_family(family, **settings), Words(), budget)
    return {(group, at): c.token_ids for group, at, c in generator.generate(groups(), Sampling(NEW_TOKENS))}


@torch.inference_mode()
def answers_one_by_one(model: PreTrainedModel) -> dict[tuple[int, int], list[int]]:
    """What transformers generates for each prompt alone, without padding; a dynamic RoPE starts anew each time."""
    model.generation_config = GenerationConfig(pad_token_id=0)
    found = {}
    for group, prompts in enumerate(groups()):
        for at, prompt in enumerate(prompts):
            for module in model.modules():
                if "dynamic" in str(getattr(module, "rope_type", "")):
                    module.__init__(module.config)
            ids = torch.tensor([prompt.token_ids])
            written = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False
            )
            found[group, at] = written[0, ids.shape[1] :].tolist()
    return found


@torch.inference_mode()
def attention(model: PreTrainedModel) -> str:
    """How far eager attention is from the one that transformers chooses, in standard deviations of the logits."""
    ids = torch.tensor([groups()[0][0].token_ids])
    chosen, own = model.config._attn_implementation, model(input_ids=ids, use_cache=False).logits
    if chosen == "eager":
        return "has eager alone"
    with eager_attention(model):
        difference = float((model(input_ids=ids, use_cache=False).logits - own).abs().max() / own.std())
    return "equal" if difference < ROUNDING else f"differs by {difference:.2f}"


@torch.inference_mode()
def scaling(model: PreTrainedModel) -> str:
    """Whether the family's layers can be scaled, or why not."""
    ids = torch.tensor([groups()[0][0].token_ids])
    own = model(input_ids=ids, use_cache=False).logits
    n_layers = model.config.get_text_config().num_hidden_layers
    try:
        ones = model(input_ids=ids, use_cache=False).logits if scale_model(model, [1.0] * n_layers) else own
    except PosgapError as error:
        return str(error).partition(": ")[2].partition(";")[0]
    scale_model(model, [2.0] * n_layers)
    assert torch.equal(ones, own) and not torch.allclose(model(input_ids=ids, use_cache=False).logits, own)
    return "scaled"


def generation_row(name: str) -> list[str]:
    """A family, whether prefixes are reused, how its answers come out, its eager attention, and scaling."""
    family, settings = ROWS[name]
    wanted = answers_one_by_one(build_family(family, **settings))
    assert len({tuple(answer) for answer in wanted.values()}) > 6, f"{name}: its answers hardly differ"
    model, wrong = build_family(family, **settings), []
    reused = TransformersGenerator(model, Words(), 1).reuse
    for budget, how in ((1, "alone"), (10_000, "in a batch")):
        found = answers(family, settings, budget)
        if found != wanted:
            wrong.append(f"{sum(found[at] != wanted[at] for at in wanted)} of {len(wanted)} differ {how}")
    cells = "; ".join(wrong) or "equal", attention(model), scaling(build_family(family, **settings))
    return [name, "yes" if reused else "no", *cells]


# Mitigations

# A prompt, and a response of five tokens; with a window of 8 some of it lies outside.
LENGTH, RESPONSE = 20, 5
IDS = torch.randint(3, VOCABULARY - 4, (1, LENGTH + RESPONSE), generator=torch.Generator().manual_seed(5))
PROMPTS = [IDS[0, :LENGTH].tolist(), IDS[0, :LENGTH].flip(0).tolist()]
# Of the standard deviation of the logits: what rounding may make between one pass and several, unless the model without
# a mitigation has more (random weights make much of it: DeepSeek-V3 under YaRN has 2e-3, and 3e-8 in 64 bits), and
# what is no change at all.
APART, NO_CHANGE = 1e-2, 1e-5
# What a cell of the table says where all is well, and where something failed.
EQUAL, FAILED = "✓", "✗"
# So that there are layers of all kinds, and more than one frequency, in models so small.
SHAPES = {
    "gemma3_text": {"layer_types": ["sliding_attention", "full_attention"] * 2},
    "gpt_neox": {"hidden_size": 64},
    "stablelm": {"hidden_size": 64},
    "qwen3_next": {"head_dim": 16},
    "qwen3_5_text": {"head_dim": 16},
    "deepseek_v4": {"head_dim": 64},
}


class NoTokenizer:
    """A stand-in: a model's folder is looked at without its tokenizer."""

    def save_pretrained(self, out: Path) -> None:
        pass


@dataclasses.dataclass
class Cell:
    """What was seen of a mitigation in a family: what failed, or why it was refused; neither where all is well."""

    mitigation: str
    failed: list[str] = dataclasses.field(default_factory=list)
    refused: str = ""

    def reason(self) -> str:
        """Why it was refused, without what only this family or this mitigation is called."""
        reason = re.sub(r"^\S+: ", "", self.refused).removeprefix(f"{self.mitigation}: ")
        reason = re.sub(r" \([a-z0-9_, ]+\)", "", reason)
        reason = re.sub(r"\b[A-Z]\w+(?=Attention |Layer |Block )", "", reason)
        return re.sub(r"^(Attention|DecoderLayer|Block|EncoderLayer|Layer) ", "its layer ", reason)

    @property
    def text(self) -> str:
        """What the table says."""
        if self.failed:
            return f"{FAILED} {'; '.join(self.failed)}"
        return self.reason() or EQUAL


@torch.inference_mode()
def logits(model: PreTrainedModel, ids: Tensor = IDS) -> Tensor:
    uncached = {} if "rwkv" in type(model).__name__.lower() else {"use_cache": False}
    return model(input_ids=ids, **uncached).logits


@torch.inference_mode()
def step_by_step(model: PreTrainedModel) -> Tensor:
    """The logits of the response's tokens: the prompt is read, then one token after the other, as `generate` does."""
    seen: dict = {}
    rows = []
    for end in range(LENGTH, LENGTH + RESPONSE):
        given = model.prepare_inputs_for_generation(
            IDS[:, :end],
            next_sequence_length=None if not seen else 1,
            is_first_iteration=not seen,
            attention_mask=torch.ones(1, end, dtype=torch.long),
            use_cache=True,
            **seen,
        )
        out = model(**given, return_dict=True)
        seen = {name: out[name] for name in ("past_key_values", "cache_params", "state") if name in out}
        rows.append(out.logits[:, -1:])
    return torch.cat(rows, dim=1)


def away(one: Tensor, other: Tensor) -> float:
    """The largest difference, in standard deviations of the second."""
    return float((one - other).abs().max() / other.std())


def from_disk(model: PreTrainedModel) -> PreTrainedModel:
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, NoTokenizer(), Path(folder))
        return load_model(folder, "float32")


class Family:
    """A family's model, and what it computes without any mitigation."""

    def __init__(self, name: str):
        family, settings = ROWS[name]
        self.build: Callable[[], PreTrainedModel] = lambda: build_family(family, **(settings | SHAPES.get(name, {})))
        model = self.build()
        self.own = logits(model)
        self.config = model.config.to_dict()

    @functools.cached_property
    def rounding(self) -> float:
        """What may lie between one pass and several."""
        return max(APART, 5 * away(step_by_step(self.build()), self.own[:, LENGTH - 1 : -1]))

    @functools.cached_property
    def is_kept(self) -> bool:
        """Whether the model without a mitigation is itself after it was saved and loaded."""
        return torch.equal(logits(from_disk(self.build())), self.own)

    def cell(self, mitigation: ModelMitigation) -> Cell:
        cell = Cell(mitigation.name)
        model = self.build()
        try:
            settings = self.settings(model, mitigation)
            apply_mitigation(model, mitigation.name, settings[-1])
        except PosgapError as refused:
            cell.refused = str(refused)
            cell.failed = [*self.untouched(model, "refused, but "), *(["refused in lines"] * ("\n" in cell.refused))]
            return cell
        remove_mitigation(model, mitigation.name)
        cell.failed = list(self.untouched(model, "removed, but "))
        cell.failed += self.wrong(model, mitigation, settings)
        return cell

    def settings(self, model: PreTrainedModel, mitigation: ModelMitigation) -> list[Settings]:
        n_layers = getattr(model.config, "num_hidden_layers", 2)
        rising = [1.1 + 0.8 * layer / n_layers for layer in range(n_layers)]
        found = ProposalInput(model, PROMPTS, search_factors=lambda: [rising[::-1], rising])
        return list(mitigation.propose_settings(found))

    def untouched(self, model: PreTrainedModel, when: str) -> Iterator[str]:
        if not torch.equal(logits(model), self.own):
            yield f"{when}other logits"
        if model.config.to_dict() != self.config or in_force(model):
            yield f"{when}another config"

    def wrong(self, model: PreTrainedModel, mitigation: ModelMitigation, settings: list[Settings]) -> Iterator[str]:
        name = mitigation.name
        if (neutral := mitigation.neutral_settings(model.config)) is not None:
            apply_mitigation(model, name, neutral)
            if not torch.equal(logits(model), self.own):
                yield f"neutral settings change logits by {away(logits(model), self.own):.1e}"
            remove_mitigation(model, name)
        apply_mitigation(model, name, settings[-1])
        changed = logits(model)
        if away(changed, self.own) < NO_CHANGE:
            yield "changes nothing"
        got, wanted = step_by_step(model), changed[:, LENGTH - 1 : -1]
        if mitigation.needs_own_batch:  # what follows the prompt would have a part in what it makes of the prompt
            got, wanted = got[:, :1], logits(model, IDS[:, :LENGTH])[:, -1:]
        if (apart := away(got, wanted)) > self.rounding:
            yield f"prefill and decoding differ from one pass by {apart:.1e}"
        apply_mitigation(model, name, settings[0])
        apply_mitigation(model, name, settings[-1])
        if not torch.equal(logits(model), changed):
            yield "not replaced"
        remove_mitigation(model, name)
        yield from self.untouched(model, "removed after that, but ")
        apply_mitigation(model, name, settings[-1])
        if self.is_kept and not torch.equal(logits(from_disk(model)), changed):
            yield f"the saved model differs by {away(logits(from_disk(model)), changed):.1e}"


OF_MODELS = [each for each in MITIGATIONS if isinstance(each, ModelMitigation)]


def mitigations_row(name: str) -> list[str]:
    """A family, and what its cell says of each mitigation."""
    family, row = Family(name), [name]
    for mitigation in OF_MODELS:
        try:
            row.append(family.cell(mitigation).text)
        except Exception as error:
            row.append(f"{FAILED} {type(error).__name__}: {str(error).partition(chr(10))[0]}")
    return row


def numbered(rows: list[list[str]]) -> tuple[list[list[str]], list[str]]:
    """The rows with the numbers of refusals in place of their reasons, and the reasons, the most frequent first."""
    words = [cell for row in rows for cell in row[1:] if cell != EQUAL]
    reasons = [reason for reason, _ in Counter(words).most_common() if not reason.startswith(FAILED)]
    short = {reason: str(number) for number, reason in enumerate(reasons, 1)}
    shown = [[row[0], *(short.get(cell, cell) for cell in row[1:])] for row in rows]
    return shown, [f"{number}. {reason}" for reason, number in short.items()]


# Rollouts

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
MEASURED = {**ROWS, **MORE}

# What keeps value norms from a family, in short.
REFUSED = {
    "its values cannot be read": "no: its attention cannot be replaced",
    "a gate or an inner normalisation": "no: a gate or a normalisation behind the heads",
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


def rollout_row(name: str) -> list[str]:
    """A family; equal to the twin, or what the measurement refuses with; windows; RoPE; value norms."""
    family, settings = MEASURED[name]
    model = build_family(family, **settings)
    if name == "doge, stream scaled":
        for layer in model.model.layers:
            torch.nn.init.uniform_(layer.input_residual, 0.2, 2.0)
    ids = torch.randint(3, VOCABULARY - 4, (TEXTS, N), generator=torch.Generator().manual_seed(1))
    try:
        heads = n_heads(model.config)
        slopes = np.array(position_encoding(model.config).get("slopes", np.zeros(heads)))
        with mock.patch.object(decoders, "WEIGHTS_AT_ONCE", TEXTS * heads * N * 7):  # blocks of seven queries
            measured = measure_influence(model, [ids], N, slopes, 0.2)
    except PosgapError as error:
        return [name, f"refused: {error}", "", "", ""]
    apart = differences(measured, *twin(model, name, ids))
    wrong = {what: by for what, by in apart.items() if not by < CLOSE}
    said = "; ".join(f"{what} differ by {by:.2g}" for what, by in wrong.items()) or "equal"
    if lost := measured.unattended["rollout_without_residuals"]:
        said += f", {100 * lost:.0f} % to sinks' logits" if lost > 1e-3 else ""
    if len(measured.layers) < (n_all := model.config.get_text_config().num_hidden_layers):
        said += f", by {', '.join(map(str, measured.layers))} of {n_all} layers"
    return [name, said, windows(measured.windows), angles(measured.frequencies), value_norms(name)]


def value_norms(name: str) -> str:
    """Whether value norms can be measured too, or why not."""
    family, settings = MEASURED[name]
    model = build_family(family, **settings)
    ids = torch.randint(3, VOCABULARY - 4, (1, N), generator=torch.Generator().manual_seed(1))
    reason = measure_influence(model, [ids], N, np.zeros(n_heads(model.config)), 0.2).no_value_norm
    return next((short for said, short in REFUSED.items() if said in reason), reason or "yes")


def differences(measured: MeasuredInfluence, matrices: np.ndarray, strengths: np.ndarray) -> dict[str, float]:
    """How far the measurement is from the twin, by what was measured."""
    found = {
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
        found[what] = far(measured.influence[what], np.array([row / row.sum() for row in rows]))
    return found


def windows(widths: list[int | None]) -> str:
    """The tokens that layers see, in words."""
    words = [("no window" if width is None else "all" if width == N else str(width)) for width in widths]
    return words[0] if len(set(words)) == 1 else ", ".join(words)


def angles(frequencies: list[list[float] | None]) -> str:
    """What layers turn by, in words: the greatest and the least angle."""
    words = [
        "unknown" if each is None else f"{each[0]:.3g} to {each[-1]:.3g}" if each else "nothing" for each in frequencies
    ]
    return words[0] if len(set(words)) == 1 else ", ".join(words)


# vLLM

FACTORS = [1.0, 1.3, 1.7, 1.5]
TOLERANCE = 2e-3  # of log-probabilities; a model whose factors were forgotten is farther off by a hundred times
WIDER = SIZES | {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), 128),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4),
    **{"num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 96, "sliding_window": 16},
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx"), 256),
}
QUIET = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "OMP_NUM_THREADS": "1"}
QUIET |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"}
# Runs in vLLM's environment: the served class, the factors that it applies, and log-probabilities after each prompt.
PROBE = """
import gc, json, sys
from vllm import LLM, SamplingParams
from vllm.distributed import cleanup_dist_env_and_memory
from posgap.scaling.vllm_plugin import read_factors

prompts, *folders = sys.argv[1:]
prompts = [{"prompt_token_ids": ids} for ids in json.load(open(prompts))]

for folder in folders:
    said = {}
    try:
        llm = LLM(folder, dtype="float32", enforce_eager=True, block_size=32, max_model_len=128, max_logprobs=64,
                  skip_tokenizer_init=True)
        greedy = SamplingParams(max_tokens=1, temperature=0, logprobs=64, detokenize=False)
        said["class"], = llm.apply_model(lambda model: type(model).__name__)
        if folder.endswith("scaled"):
            said["factors"], = llm.apply_model(read_factors)
        said["rows"] = [
            {int(token): found.logprob for token, found in answer.outputs[0].logprobs[0].items()}
            for answer in llm.generate(prompts, greedy, use_tqdm=False)
        ]
    except BaseException as error:
        said["error"] = str(error) or type(error).__name__
    json.dump(said, open(folder + ".json", "w"))
    print(folder, said.get("error", "answers"), file=sys.stderr, flush=True)
    llm = None
    gc.collect()
    cleanup_dist_env_and_memory()
"""


def served_prompts() -> list[list[int]]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(3, 60, (length,), generator=draw).tolist() for length in (5, 40, 80)]


@torch.inference_mode()
def log_probabilities(model: PreTrainedModel) -> list[list[float]]:
    """Log-probabilities of the token after each prompt."""
    rows = [model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1] for ids in served_prompts()]
    return [row.float().log_softmax(-1).tolist() for row in rows]


def saved(name: str, folder: Path) -> str:
    """Writes the model as it is and scaled, with what transformers expects of each; or why it cannot be scaled."""
    family, settings = ROWS[name]
    try:
        model = _built(family, WIDER, 0.15, settings)
        plain = log_probabilities(model)
    except Exception as error:
        return f"is not made so wide: {str(error).splitlines()[0]}"
    write_json(folder / "plain.expected", plain)
    model.save_pretrained(folder / "plain")
    try:
        scale_model(model, FACTORS)
    except PosgapError as error:
        return str(error).partition(": ")[2].partition(";")[0]
    write_json(folder / "scaled.expected", log_probabilities(model))
    model.save_pretrained(folder / "scaled")
    return ""


def serve(python: str, folders: list[Path], where: Path) -> None:
    """Has vLLM answer for each folder, in one process as long as it lives."""
    write_json(where / "prompts.json", served_prompts())
    left = [folder for folder in folders if not folder.with_name(f"{folder.name}.json").exists()]
    while left:
        words = [python, "-c", PROBE, where / "prompts.json", *left]
        done = subprocess.run(words, env=os.environ | QUIET, stdout=subprocess.DEVNULL)
        rest = [folder for folder in left if not folder.with_name(f"{folder.name}.json").exists()]
        if rest == left or (rest and done.returncode):  # it went down with the first of these
            write_json(rest[0].with_name(f"{rest[0].name}.json"), {"error": f"went down, exit code {done.returncode}"})
            rest = rest[1:]
        left = rest


def compared_to_expected(folder: Path, kind: str) -> str:
    seen = read_json(folder / f"{kind}.json")
    if "error" in seen:
        lines = [line.strip() for line in seen["error"].splitlines() if line.strip()]
        told = next((line for line in lines if "posgap:" in line or "Value error" in line), lines[0])
        return f"refused: {told[told.find('posgap:') :].strip()}" if "posgap:" in told else f"vLLM: {told}"
    rows = read_json(folder / f"{kind}.expected")
    off = max(abs(value - row[int(token)]) for row, got in zip(rows, seen["rows"]) for token, value in got.items())
    if off > TOLERANCE:
        return f"differs by {off:.2g}"
    if kind == "scaled" and [round(each, 3) for each in seen["factors"]] != FACTORS:
        return f"factors {seen['factors']}"
    return "equal"


def vllm_rows(names: Iterable[str]) -> Iterator[list[str]]:
    """A row for each family that can be scaled: by what vLLM serves it, and whether it answers as transformers does."""
    python = os.environ.get("POSGAP_VLLM_PYTHON") or sys.exit("POSGAP_VLLM_PYTHON names no Python with vLLM")
    with tempfile.TemporaryDirectory() as place:
        where, folders = Path(place), dict[str, Path]()
        for name in names:
            folder = where / name.replace(", ", "-").replace(" ", "-")
            folder.mkdir()
            if reason := saved(name, folder):
                print(f"{name}: {reason}", file=sys.stderr, flush=True)
            else:
                folders[name] = folder
        serve(python, [folder / "scaled" for folder in folders.values()], where)
        scaled = {name: compared_to_expected(folder, "scaled") for name, folder in folders.items()}
        unequal = [name for name, said in scaled.items() if said != "equal"]
        serve(python, [folders[name] / "plain" for name in unequal], where)
        for name, folder in folders.items():
            kinds = ("scaled", "plain") if name in unequal else ("scaled",)
            classes = [read_json(folder / f"{kind}.json").get("class", "") for kind in kinds]
            plain = compared_to_expected(folder, "plain") if name in unequal else ""
            yield [name, next(filter(None, classes), ""), scaled[name][:200], plain[:100]]


# Tables


class Table(NamedTuple):
    """A table of docs/mitigations.md: its file, the rows that it has, how each is made, its columns, and which of them
    says whether a row is right."""

    file: str
    names: Sequence[str]
    row: Callable[[str], list[str]] | None
    columns: Sequence[str]
    judged: slice
    about: str


TABLES = {
    "families": Table(
        "families",
        list(ROWS),
        generation_row,
        ["family", "prefixes reused", "against one `generate` a prompt", "eager attention", "layers"],
        slice(2, 3),
        "{n} rows, {equal} equal.",
    ),
    "mitigations": Table(
        "mitigation-families",
        list(ROWS),
        mitigations_row,
        ["family", *(f"`{mitigation.name}`" for mitigation in OF_MODELS)],
        slice(1, None),
        f"{{n}} families and {len(OF_MODELS)} mitigations; {{equal}} families without a fault.\n\n"
        f"- {EQUAL}: neutral settings change nothing to the bit, and others do. Prefill and single tokens equal one "
        "pass. It is replaced, and taken back to the bit. Saved and loaded it is the same.\n"
        "- A number: refused by the line of this number below, and the model is as it was.\n"
        f"- {FAILED}: something failed.",
    ),
    "rollout": Table(
        "rollout-families",
        list(MEASURED),
        rollout_row,
        ["configuration", "against its twin", "sees", "turns by", "value norms"],
        slice(1, 2),
        f"{{n}} configurations, {{equal}} equal to an independent twin or refused. Windows are in tokens, of {N}; "
        "RoPE's angles in radians a token, the greatest and the least.",
    ),
    "vllm": Table(
        "vllm",
        list(ROWS),
        None,
        ["family", "served by", "scaled", "else, as it is"],
        slice(2, 3),
        "With vLLM 0.32 (its build for CPUs): {n} families, {equal} served scaled.",
    ),
}
QUICK = {
    "families": ["llama", "mamba"],
    "mitigations": ["gpt_neox", "gpt2"],
    "rollout": ["gemma2", "bloom"],
}


def rows_of(kind: str, names: Sequence[str]) -> Iterator[list[str]]:
    """The rows of a table; a family that fails is told, and has none."""
    made = TABLES[kind].row
    if made is None:
        yield from vllm_rows(names)
        return
    for name in names:
        try:
            row = made(name)
        except Exception as error:
            print(f"{name} FAILED: {type(error).__name__}: {error}"[:300], file=sys.stderr, flush=True)
            continue
        print(" | ".join(row), file=sys.stderr, flush=True)
        yield row


def is_right(kind: str, row: list[str]) -> bool:
    """Whether all that a row is judged by is equal, or refused in a line."""
    cells = row[TABLES[kind].judged]
    if kind == "mitigations":
        return not any(cell.startswith(FAILED) for cell in cells)
    return all(cell.split(",")[0] == "equal" or cell.startswith("refused: ") for cell in cells)


def table(kind: str, rows: list[list[str]]) -> str:
    """What docs/mitigations.md shows."""
    chosen, after = TABLES[kind], list[str]()
    equal = sum(is_right(kind, row) for row in rows)
    shown, after = numbered(rows) if kind == "mitigations" else (rows, after)
    about = f"Written by `benchmarks/families.py {kind} --write` with transformers {transformers.__version__}: "
    lines = [about + chosen.about.format(n=len(rows), equal=equal), ""]
    lines += [f"| {' | '.join(cells)} |" for cells in (chosen.columns, ["---"] * len(chosen.columns), *shown)]
    return "\n".join([*lines, *([""] if after else []), *after]).replace("| --- ", "|---").replace("|--- |", "|---|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", nargs="?", choices=TABLES, default="families")
    parser.add_argument("families", nargs="*", metavar="family", help="only these")
    parser.add_argument("--write", action="store_true", help="write the table")
    parser.add_argument("--quick", action="store_true", help="a few families by all tables but vLLM's: under a minute")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    asked = QUICK if options.quick else {options.table: options.families or TABLES[options.table].names}
    counts = Counter[str]()
    for kind, names in asked.items():
        rows = list(rows_of(kind, names))
        counts += Counter(rows=len(rows), equal=sum(is_right(kind, row) for row in rows))
        if options.write:
            write_table(TABLES[kind].file, table(kind, rows))
        else:
            print(table(kind, rows))
    print(json.dumps(counts))
    if options.quick and not counts["equal"] == counts["rows"] == sum(map(len, asked.values())):
        sys.exit("a row is missing, or wrong")


if __name__ == "__main__":
    main()
