"""The memory that `posgap plan distill` expects, against the peaks that training reaches, in six configurations.

    python benchmarks/distill_memory.py [--quick] [--write]

Each configuration trains for two steps of two micro-batches on the CPU, in a process of its own, with the code that
`distill` runs: gradients are there already when the second micro-batch is read, as the plan takes it. The peak is the
largest resident set (VmHWM) less what the process had before there was a model, and less the pages of libraries that
were read in the meantime (RssFile): code is no part of what training takes. The last line is JSON:
`worst`, the largest relative difference between expected and measured, and `ratios`, expected over measured.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from report import conclude

from posgap.foundation.tables import markdown

MODEL = {"layers": 4, "width": 512, "vocabulary": 32_000, "heads": 8, "kv_heads": 4, "response_tokens": 32}
CONFIGURATIONS = [
    {"rows": 2, "prompt_tokens": 2048, "arithmetic": "float32"},
    {"rows": 4, "prompt_tokens": 1024, "arithmetic": "float32", "checkpointing": True},
    {"rows": 2, "prompt_tokens": 2048, "arithmetic": "bfloat16"},
    {"rows": 4, "prompt_tokens": 2048, "arithmetic": "bfloat16", "checkpointing": True},
    {"rows": 2, "prompt_tokens": 2048, "arithmetic": "float32", "lora_rank": 16},
    {"rows": 2, "prompt_tokens": 2048, "arithmetic": "bfloat16", "lora_rank": 16, "checkpointing": True},
]
QUICK = [{"rows": 1, "prompt_tokens": 512, "arithmetic": "float32"}]


def expected(of: dict) -> float:
    """The bytes that the plan expects."""
    from posgap.distillation.footprint import MicroBatchShape, activation_bytes, size_of
    from posgap.distillation.planning import Way, standing

    micro = MicroBatchShape(
        of["rows"], of["prompt_tokens"] + MODEL["response_tokens"], MODEL["response_tokens"], of["arithmetic"],
        of.get("checkpointing", False), of.get("lora_rank", 0),
    )  # fmt: skip
    way = Way("alone", micro.checkpointing, micro.lora_rank)
    config = _model_config(of)
    # On a CPU torch's AdamW takes one parameter after the other, and holds no number for each of them beside its means.
    return standing(way, size_of(config, micro.lora_rank), 1) + activation_bytes(config, micro)


def _model_config(of: dict):
    from distill_step import setting

    return setting(_options(of))[0].config


def _options(of: dict) -> argparse.Namespace:
    return argparse.Namespace(
        **MODEL, prompt_tokens=of["prompt_tokens"], spread=0, examples=of["rows"], batch_size=of["rows"], k=1,
        epochs=2, feed_forward=0, dtype="float32", device="cpu", wide=False, micro_batch_size=of["rows"],
    )  # fmt: skip


def measured(of: dict) -> float:
    """The bytes that two steps took; for a process of its own."""
    import tempfile

    import torch
    from accelerate import Accelerator
    from distill_step import setting, with_teacher

    from posgap.distillation.engine import Schedule, train
    from posgap.distillation.lora import add_adapters
    from posgap.models.checkpointing import checkpoint_activations

    if of.get("lora_rank"):
        import peft  # noqa: F401  a library is no part of what training takes
    torch.set_num_threads(1)
    torch.randn(64, 64) @ torch.randn(64, 64)
    mixed = of["arithmetic"] == "bfloat16"
    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if mixed else "no")
    before = _of_process("VmRSS") - _of_process("RssFile")
    options = _options(of)
    model, collate, objective, steps = setting(options)
    if of.get("lora_rank"):
        add_adapters(model, of["lora_rank"])
    if of.get("checkpointing"):
        checkpoint_activations(model)
    with tempfile.TemporaryDirectory() as folder:
        student, tokens = with_teacher(model, objective, collate, folder, options)
        train(student, steps, objective, collate, Schedule(1e-3), accelerator, tokens)
    return _of_process("VmHWM") - _of_process("RssFile") - before


def _of_process(figure: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{figure}:"))


def in_a_process(work: str, of: dict) -> float:
    """The same, in a process whose allocator gives back what it does not need."""
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, "--child", json.dumps({"work": work, "of": of})],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--write", action="store_true", help="put the figures into build/results/")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        asked = json.loads(options.child)
        print(json.dumps({"expected": expected, "measured": measured}[asked["work"]](asked["of"])))
        return
    rows, ratios = [], []
    for of in QUICK if options.quick else CONFIGURATIONS:
        wanted, seen = in_a_process("expected", of), in_a_process("measured", of)
        ratios.append(round(wanted / seen, 3))
        how = [
            of["arithmetic"],
            *([f"LoRA of rank {of['lora_rank']}"] if of.get("lora_rank") else ["all parameters"]),
            *(["checkpointing"] if of.get("checkpointing") else []),
        ]
        tokens = f"{of['rows']} x {of['prompt_tokens']}"
        rows.append([", ".join(how), tokens, f"{wanted / 1e6:,.0f}", f"{seen / 1e6:,.0f}", f"{ratios[-1]:.2f}"])
    table = markdown(["", "prompts x tokens", "expected MB", "measured MB", "ratio"], rows)
    figures = {"worst": round(max(abs(ratio - 1) for ratio in ratios), 3), "ratios": ratios}
    conclude("distill-memory", TEXT, table.splitlines(), figures, options.write)


TEXT = """
## What training takes of memory: planned and measured

`python benchmarks/distill_memory.py`, {date}, two CPU cores. A Llama of four layers, width 512 and a vocabulary of
32,000, with responses of 32 tokens, makes two steps of R1 of two micro-batches, each run in a process of its own. What
`posgap plan distill` expects, from fake tensors, stands against the largest resident set without the libraries' code.
"""

if __name__ == "__main__":
    main()
