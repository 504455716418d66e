"""Tries every family of causal language models in transformers that it can build small: a table of docs/families.md.

    python benchmarks/families.py                     prints the table
    python benchmarks/families.py --write             writes it for docs/families.md
    python benchmarks/families.py llama falcon_h1     only these

Each family is a model of a few layers with random weights, made from its configuration. What posgap generates, in a
batch and alone, with prefixes reused or not, is compared with one `generate` call per prompt, token by token.
"""

import argparse
import dataclasses
import inspect
import sys
from collections.abc import Iterable

import torch
import transformers
from report import write_table
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posgap.foundation.errors import PosgapError
from posgap.generation.generator import Sampling
from posgap.generation.transformers import TransformersGenerator
from posgap.mitigations.in_force import scale_model
from posgap.models.loading import eager_attention
from posgap.tasks.prompts import Prompt

NEW_TOKENS = 6
# Of the logits' standard deviation: random weights make much of rounding (up to 0.01, of DeepSeek-V3 and Youtu; in
# float64 Youtu's is 40 times less). Biases that are added twice make 0.45.
ROUNDING = 0.05
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
FAMILIES = _NAMES.split()
ROWS = {**{family: (family, {}) for family in FAMILIES}, **SETTINGS}


@dataclasses.dataclass
class Row:
    """What was seen of a family: whether prefixes were reused, how answers came out, attention, and scaling."""

    family: str
    reused: bool
    answers: str
    eager: str
    scaling: str


def build(family: str, **settings: object) -> PreTrainedModel:
    """A small model of the family with random weights, sharp enough that its greedy tokens differ."""
    made, settings = CONFIG_MAPPING[family], NEEDS.get(family, {}) | settings
    takes = {field.name for field in dataclasses.fields(made)} | set(inspect.signature(made).parameters)
    sizes = {name: value for name, value in SIZES.items() if name in takes}
    config = made(**(sizes | ALWAYS | settings))
    torch.manual_seed(0)
    # As `load_model` asks for it: before 5.21 transformers would have chosen an attention that leaves out the cap.
    capped = getattr(config, "attn_logit_softcapping", None)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager" if capped else None).eval()
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


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


def answered(family: str, settings: dict, budget: int) -> dict[tuple[int, int], list[int]]:
    """What posgap generates with a new model in batches of `budget` tokens."""
    generator = TransformersGenerator(build(family, **settings), Words(), budget)
    return {(group, at): c.token_ids for group, at, c in generator.generate(groups(), Sampling(NEW_TOKENS))}


@torch.inference_mode()
def one_by_one(model: PreTrainedModel) -> dict[tuple[int, int], list[int]]:
    """What transformers generates for each prompt alone, without padding; a dynamic RoPE starts anew each time."""
    model.generation_config = GenerationConfig(pad_token_id=0)
    answers = {}
    for group, prompts in enumerate(groups()):
        for at, prompt in enumerate(prompts):
            for module in model.modules():
                if "dynamic" in str(getattr(module, "rope_type", "")):
                    module.__init__(module.config)
            ids = torch.tensor([prompt.token_ids])
            written = model.generate(
                input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW_TOKENS, do_sample=False
            )
            answers[group, at] = written[0, ids.shape[1] :].tolist()
    return answers


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


def tried(name: str) -> Row:
    """Tries one row of the table."""
    family, settings = ROWS[name]
    wanted = one_by_one(build(family, **settings))
    assert len({tuple(answer) for answer in wanted.values()}) > 6, f"{name}: its answers hardly differ"
    model = build(family, **settings)
    reused = TransformersGenerator(model, Words(), 1).reuse
    wrong = [
        f"{sum(answers[at] != wanted[at] for at in wanted)} of {len(wanted)} differ {how}"
        for budget, how in ((1, "alone"), (10_000, "in a batch"))
        if (answers := answered(family, settings, budget)) != wanted
    ]
    return Row(name, reused, "; ".join(wrong) or "equal", attention(model), scaling(build(family, **settings)))


def table(rows: list[Row]) -> str:
    """The table of docs/families.md."""
    lines = [f"| {r.family} | {'yes' if r.reused else 'no'} | {r.answers} | {r.eager} | {r.scaling} |" for r in rows]
    equal = sum(row.answers == "equal" for row in rows)
    return "\n".join(
        [
            f"Written by `benchmarks/families.py --write` with transformers {transformers.__version__}: {len(rows)} "
            f"rows, {equal} equal.",
            "",
            "| family | prefixes reused | against one `generate` a prompt | eager attention | layers |",
            "|---|---|---|---|---|",
            *lines,
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="family", help="only these")
    parser.add_argument("--write", action="store_true", help="write the table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    rows = []
    for name in arguments.families or ROWS:
        try:
            rows.append(tried(name))
        except Exception as error:
            print(f"{name} FAILED: {error}", file=sys.stderr, flush=True)
            continue
        print(rows[-1], file=sys.stderr, flush=True)
    if arguments.write:
        write_table("families", table(rows))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
