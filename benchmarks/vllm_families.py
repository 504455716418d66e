"""Serves a scaled model of each family in vLLM, and compares its log-probabilities with transformers'.

It writes a table of docs/families.md.

    POSGAP_VLLM_PYTHON=.../bin/python python benchmarks/vllm_families.py [--write] [FAMILY ...]

The models are those of benchmarks/families.py, wider, since vLLM's attention on CPUs wants heads of 32 dimensions. Each
is served scaled, with float32, and asked for one token after each of some prompts; where its answers are not those of
transformers, unscaled too, since vLLM may differ there as well. vLLM runs in its own environment, whose Python the
variable names; models share one process of it, and one that brings it down leaves the others alone.
"""

import argparse
import dataclasses
import inspect
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from families import ALWAYS, NEEDS, ROWS, SIZES
from report import write_table
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import read_json, write_json
from posgap.mitigations.in_force import scale_model

FACTORS = [1.0, 1.3, 1.7, 1.5]
TOLERANCE = 2e-3  # of log-probabilities; a model whose factors were forgotten is farther off by a hundred times
WIDER = {
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
from posgap.scaling.vllm_plugin import applied

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
            said["factors"], = llm.apply_model(applied)
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


@dataclasses.dataclass
class Row:
    """A family, by what vLLM serves it, and whether it answers as transformers does, scaled, and else unscaled."""

    family: str
    served_by: str
    scaled: str
    unscaled: str = ""


def build(family: str, **settings: Any) -> PreTrainedModel:
    """A model of the family with random weights, of which vLLM on a CPU can serve those that it knows."""
    made = CONFIG_MAPPING[family]
    takes = {field.name for field in dataclasses.fields(made)} | set(inspect.signature(made).parameters)
    sizes = {name: value for name, value in (SIZES | WIDER).items() if name in takes}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(made(**(sizes | ALWAYS | settings))).eval()
    for parameter in model.parameters():
        if parameter.ndim >= 2:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def prompts() -> list[list[int]]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randint(3, 60, (length,), generator=draw).tolist() for length in (5, 40, 80)]


@torch.inference_mode()
def expected(model: PreTrainedModel) -> list[list[float]]:
    """Log-probabilities of the token after each prompt."""
    rows = [model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1] for ids in prompts()]
    return [row.float().log_softmax(-1).tolist() for row in rows]


def saved(name: str, folder: Path) -> str:
    """Writes the model as it is and scaled, with what transformers expects of each; or why it cannot be scaled."""
    family, settings = ROWS[name]
    try:
        model = build(family, **(NEEDS.get(family, {}) | settings))
        plain = expected(model)
    except Exception as error:
        return f"is not made so wide: {str(error).splitlines()[0]}"
    write_json(folder / "plain.expected", plain)
    model.save_pretrained(folder / "plain")
    try:
        scale_model(model, FACTORS)
    except PosgapError as error:
        return str(error).partition(": ")[2].partition(";")[0]
    write_json(folder / "scaled.expected", expected(model))
    model.save_pretrained(folder / "scaled")
    return ""


def served(python: str, folders: list[Path], where: Path) -> None:
    """Has vLLM answer for each folder, in one process as long as it lives."""
    write_json(where / "prompts.json", prompts())
    left = [folder for folder in folders if not folder.with_name(f"{folder.name}.json").exists()]
    while left:
        words = [python, "-c", PROBE, where / "prompts.json", *left]
        done = subprocess.run(words, env=os.environ | QUIET, stdout=subprocess.DEVNULL)
        rest = [folder for folder in left if not folder.with_name(f"{folder.name}.json").exists()]
        if rest == left or (rest and done.returncode):  # it went down with the first of these
            write_json(rest[0].with_name(f"{rest[0].name}.json"), {"error": f"went down, exit code {done.returncode}"})
            rest = rest[1:]
        left = rest


def compared(folder: Path, kind: str) -> str:
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


def said(folder: Path) -> str:
    """The class of the model that vLLM made of a folder, if it did."""
    return read_json(folder.with_name(f"{folder.name}.json")).get("class", "")


def table(rows: list[Row]) -> str:
    equal = sum(row.scaled == "equal" for row in rows)
    lines = [f"| {row.family} | {row.served_by} | {row.scaled[:200]} | {row.unscaled[:100]} |" for row in rows]
    head = (
        f"Written by `benchmarks/vllm_families.py --write` with vLLM 0.32 (its build for CPUs) and transformers "
        f"{transformers.__version__}: {len(rows)} families, {equal} served scaled."
    )
    return "\n".join([head, "", "| family | served by | scaled | else, as it is |", "|---|---|---|---|", *lines])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", metavar="family", help="only these")
    parser.add_argument("--write", action="store_true", help="write the table")
    arguments = parser.parse_args()
    python = os.environ.get("POSGAP_VLLM_PYTHON") or sys.exit("POSGAP_VLLM_PYTHON names no Python with vLLM")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as place:
        where, names = Path(place), {}
        for name in arguments.families or ROWS:
            folder = where / name.replace(", ", "-").replace(" ", "-")
            folder.mkdir()
            if reason := saved(name, folder):
                print(f"{name}: {reason}", file=sys.stderr, flush=True)
            else:
                names[name] = folder
        served(python, [folder / "scaled" for folder in names.values()], where)
        rows = [Row(name, said(folder / "scaled"), compared(folder, "scaled")) for name, folder in names.items()]
        unequal = [row for row in rows if row.scaled != "equal"]
        served(python, [names[row.family] / "plain" for row in unequal], where)
        for row in unequal:
            row.unscaled = compared(names[row.family], "plain")
            row.served_by = row.served_by or said(names[row.family] / "plain")
    if arguments.write:
        write_table("vllm", table(rows))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
