"""Promotion of a large model within little memory, all in one cgroup: sweep and gate are made before.

    python benchmarks/promote_memory.py --demo runs/demo [--gigabytes 2] [--limit 1] [--out runs/promote-memory]

The model is the demo's own, trained one with a vocabulary so long that its folder has as many gigabytes in bfloat16:
the rows beyond its own are zeros, which no greedy answer takes. `posgap promote` then runs in a cgroup that has `limit`
GiB for memory and page cache together (root, cgroups of version 1), against an MLflow server outside of it. The last
line is JSON: `seconds`, `exit_code`, and `peak_mib`, the most that the process itself held (`ru_maxrss`).
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from posgap.foundation.files import read_json
from posgap.mitigations.in_force import load_model
from posgap.models.loading import load_tokenizer, save_model

CGROUPS = Path("/sys/fs/cgroup/memory")
POSGAP = Path(sys.executable).with_name("posgap")


def folder_of(demo: Path, stage: str) -> Path:
    """The demo's last output of a stage."""
    made = [file.parent for file in demo.glob("*/pipeline/**/manifest.json") if read_json(file).get("stage") == stage]
    return max(made, key=lambda folder: (folder / "manifest.json").stat().st_mtime)


def enlarged(model: Path, gigabytes: float, out: Path) -> Path:
    """A copy of a model in bfloat16 with as many gigabytes of rows of zeros in its vocabulary."""
    small = load_model(str(model), "bfloat16")
    rows = int(gigabytes * 1e9 / 2 / small.config.hidden_size)
    before = small.get_input_embeddings().weight.detach()
    after = torch.zeros(rows, before.shape[1], dtype=torch.bfloat16)
    after[: len(before)] = before
    small.resize_token_embeddings(rows, mean_resizing=False)
    small.get_input_embeddings().weight.data = after
    small.tie_weights()
    save_model(small, load_tokenizer(str(model)), out)
    return out


def posgap(*words: object, **more) -> subprocess.CompletedProcess:
    return subprocess.run([POSGAP, *map(str, words)], check=True, **more)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--demo", type=Path, required=True, help="folder of `posgap demo`")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="of the model's folder")
    parser.add_argument("--limit", type=float, default=1.0, help="GiB of memory for the promotion")
    parser.add_argument("--out", type=Path, default=Path("runs/promote-memory"))
    options = parser.parse_args()
    base, learnt = folder_of(options.demo, "sweep"), folder_of(options.demo, "distill")
    examples = next(options.demo.rglob("eval-*.jsonl.gz"))
    large = options.out / "model"
    if not large.is_dir():
        enlarged(learnt, options.gigabytes, large)
        # What it learnt is told from what it is asked.
        (large / "training_examples.json").write_bytes((learnt / "training_examples.json").read_bytes())
    asked = {"--examples": examples, "--n-docs": 20, "--positions": "1,10,20", "--dtype": "bfloat16"}
    words = [word for pair in asked.items() for word in pair]
    original = read_json(base / "manifest.json")["config"]["model"]
    posgap("sweep", "--model", original, "--label", "base", "--out", options.out / "base", *words)
    posgap("sweep", "--model", large, "--batch-tokens", 2000, "--out", options.out / "sweep", *words)
    judged = ["--candidate", options.out / "sweep", "--base", options.out / "base", "--out", options.out / "gate"]
    posgap("gate", *judged)
    group = CGROUPS / f"posgap-{os.getpid()}"
    group.mkdir()
    try:
        (group / "memory.limit_in_bytes").write_text(str(int(options.limit * 2**30)))
        words = ["--model", large, "--gate", options.out / "gate", "--sweep", options.out / "sweep", "--name", "large"]
        started = time.monotonic()
        process = subprocess.Popen(
            [POSGAP, "promote", *map(str, words), "--force", "--out", str(options.out / "promoted")],
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())),
        )
        _, status, used = os.wait4(process.pid, 0)
        seconds = time.monotonic() - started
    finally:
        group.rmdir()
    code = os.waitstatus_to_exitcode(status)
    print(json.dumps({"seconds": round(seconds, 1), "exit_code": code, "peak_mib": used.ru_maxrss // 1024}))


if __name__ == "__main__":
    main()
