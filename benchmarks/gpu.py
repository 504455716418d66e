"""All that is to be seen on a GPU, in parts of at most ten minutes, the telling ones first.

    python benchmarks/gpu.py [step lora sweep memory vllm search scaled replicates] [--write]
    python benchmarks/gpu.py --quick

| part | minutes | shows |
|---|---|---|
| step | 3 | a step of R1 at 1.24B and 128k words against the authors' way, in time and memory; 20 rows against 2 |
| lora | 8 | the same step at 7B with adapters of rank 16, activations computed again |
| sweep | 4 | a sweep of 0.94B at 20 positions against plain `generate`, and vLLM's where it is installed |
| memory | 2 | the peak of a training beside what `plan distill` counts |
| vllm | 4 | a scaled model by vLLM with the plugin against `posgap.load_model`: speed, and how many responses agree |
| search | 4 | `scale search` by forced answers, by transformers and by vLLM, which find the same |
| scaled | 2 | forward pass and decoding of a scaled model against the unscaled one |
| replicates | 10 | `study.py`'s replicates of the ablation, which go on where they were |

Each is a command of another script, in a process of its own, that ends with its minutes; its last line, JSON, is kept.
`--write` puts all of them with day, card and versions into build/results/gpu.md, from where a person takes them over
into docs/results.md. `--quick` runs every part but the last on tiny models, on whatever is there.

A machine without a network takes wheels. Beside its own torch those of posgap, transformers, click, pydantic,
pydantic_core, annotated_types, typing_inspection, typing_extensions, tenacity, cryptography, cffi, pycparser, bm25s,
httpx2, httpcore2, h11, anyio, idna, truststore, filelock, gguf, hjson and deepspeed are enough (25 MB):
`pip download --no-deps -d wheels ...` here, and `pip install --no-index --no-deps --target site wheels/*.whl` there,
with PYTHONPATH=site. `replicates` wants SmolLM2's GGUF file (real_models.py; 94 MB, which xz makes 87). Without vLLM
its columns stay empty.
"""

import argparse
import json
import subprocess
import sys
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

import distill_step
import torch
from report import ROOT, write_section

from posgap.distillation.footprint import MicroBatchShape, activation_bytes, size_of
from posgap.distillation.planning import Way, standing


class Part(NamedTuple):
    """A command of a script, its minutes, and the same on a tiny model."""

    minutes: int
    command: str
    quick: str


_STEP = (
    "distill_step.py --dtype bfloat16 --prompt-tokens 3000 --response-tokens 60 --width 2048 --feed-forward 8192 "
    "--layers 16 --heads 32 --kv-heads 8 --examples 8 --epochs 1 --batch-size 4 --micro-batch-size 2 "
    "--own-micro-batch-size 20 --small-vocabulary 0"
)
_AS_7B = "--width 4096 --feed-forward 11008 --layers 32 --vocabulary 32000 --lora-rank 16 --gradient-checkpointing"
_SWEEP = (
    "sweep.py --dtype bfloat16 --width 2048 --layers 16 --vocabulary 32000 --document-tokens 150 --new-tokens 16 "
    "--repeats 2 --batch-size 32"
)
_SEARCH = "--layers 16 --width 1024 --prompt 2000 --batch-tokens 65536 --quick"
_TINY_STEP = (
    "distill_step.py --quick --vocabulary 512 --prompt-tokens 128 --own-micro-batch-size 4 --small-vocabulary 0"
)
_TINY_SWEEP = "sweep.py --quick --width 256 --n-docs 5 --document-tokens 8 --vocabulary 500"
PARTS = {
    "step": Part(3, _STEP, _TINY_STEP),
    "lora": Part(8, f"{_STEP} {_AS_7B}", f"{_TINY_STEP} --lora-rank 4"),
    "sweep": Part(4, f"{_SWEEP} --examples 16", _TINY_SWEEP),
    "memory": Part(2, "gpu.py --memory", "gpu.py --memory --quick"),
    "vllm": Part(4, f"{_SWEEP} --examples 8 --scaled", f"{_TINY_SWEEP} --scaled"),
    "search": Part(4, f"scale_search.py {_SEARCH}", "scale_search.py --quick --width 256"),
    "scaled": Part(2, "scaled_inference.py --prompt 4096", "scaled_inference.py --quick --prompt 64"),
    "replicates": Part(10, "study.py --rows replicate-* --hours 0.12", "study.py --quick"),
}


def run(name: str, part: Part, is_quick: bool) -> dict:
    """Runs a part and returns its figures, or why there are none."""
    script, *words = (part.quick if is_quick else part.command).split()
    print(f"== {name}, at most {part.minutes} minutes: {script} {' '.join(words)}", flush=True)
    call = [sys.executable, str(ROOT / "benchmarks" / script), *words]
    try:
        done = subprocess.run(
            call, cwd=ROOT, capture_output=True, text=True, timeout=600 if is_quick else 60 * part.minutes
        )
        print(done.stdout, flush=True)
        if done.returncode:
            print(done.stderr[-3000:], file=sys.stderr)
        return json.loads(done.stdout.strip().rpartition("\n")[2])
    except subprocess.TimeoutExpired:
        return {"ended": f"after {part.minutes} minutes"}
    except json.JSONDecodeError:
        return {"ended": "without figures"}


def measure_memory(is_quick: bool) -> dict:
    """Trains a random model in float32, and returns the peak in GiB beside the planner's."""
    options = distill_step.set_options(
        vocabulary=32000, prompt_tokens=2000, response_tokens=40, width=1024, feed_forward=4096, layers=12, heads=16,
        kv_heads=8, examples=8, epochs=1, batch_size=4, micro_batch_size=4,
    )  # fmt: skip
    if is_quick:
        vars(options).update(vocabulary=500, prompt_tokens=200, width=64, feed_forward=128, layers=2, heads=4)
        vars(options).update(kv_heads=2, examples=2, batch_size=1, micro_batch_size=2)
    config = distill_step.setting(options)[0].config
    seen = distill_step.measure("ours", options)["peak_bytes"]  # of a CPU with all that python has beside it
    width = options.prompt_tokens + options.response_tokens
    shape = MicroBatchShape(options.micro_batch_size, width, options.response_tokens, "float32")
    planned = standing(Way("alone", False, 0), size_of(config, 0), 1) + activation_bytes(config, shape)
    return {"peak_gib": round(seen / 2**30, 3), "planned_gib": round(planned / 2**30, 3)}


def versions() -> str:
    """The card, and the packages that decide how fast it is."""
    found = [torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"]
    for name in ("torch", "transformers", "vllm", "flash-attn"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            found.append(f"no {name}")
    return ", ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="only these; by default all, in this order")
    parser.add_argument("--write", action="store_true", help="write the figures into build/results/gpu.md")
    parser.add_argument("--quick", action="store_true", help="tiny models, and no replicates: a minute")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        print(json.dumps(measure_memory(options.quick)))
        return
    chosen = options.parts or [name for name in PARTS if not options.quick or name != "replicates"]
    figures = {name: run(name, PARTS[name], options.quick) for name in chosen}
    lines = [f"| {name} | `{json.dumps(found)}` |" for name, found in figures.items()]
    text = "\n".join([f"On {date.today()}: {versions()}.", "", "| part | figures |", "|---|---|", *lines])
    write_section("gpu", text) if options.write else print(text)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
