"""What a sweep costs in memory and time as examples grow in number and documents in a prompt.

    python benchmarks/sweep_scaling.py [--quick] [--write] [--data ../shared/data]

`posgap sweep` in processes of its own, on a random-weight Llama with a tokenizer made from the examples' own text:
question answering over NQ (`posgap data make qa` draws the distractors) at all of 20 positions, and key-value
retrieval over 140 keys, in prompts of some thousand tokens. The examples quadruple; the peak must not.

The last line is JSON: `examples_ratio` (4), `peak_growth` (peak memory of four times the examples over that of the
fewest, the largest of all files) and `seconds_growth`. `--quick` makes key-value records of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

import torch
from report import write_section
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from posgap.data.config import ImportConfig, MakeConfig
from posgap.data.verbs import import_examples, make
from posgap.foundation.tables import markdown
from posgap.models.loading import save_model
from posgap.tasks.placements import all_placements
from posgap.tasks.reading import read_examples
from posgap.tasks.registry import TASKS

SPREAD = {20: "", 140: "1,35,70,105,140", 10: "1,5,10"}  # positions by number of documents; empty: all


def sweep(*words: object) -> tuple[float, float]:
    """Runs `posgap sweep` in a process of its own: seconds and peak MiB."""
    started = time.perf_counter()
    quiet = os.environ | {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"}  # no tracking
    # Else oneDNN compiles up to 1,024 products, one for each number of rows: 100 MB that grow at first, and then stay.
    quiet |= {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "LRU_CACHE_CAPACITY": "16"}
    code = "from posgap.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "sweep", *map(str, words)], env=quiet, stderr=subprocess.PIPE
    )
    said = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"posgap sweep {' '.join(map(str, words))} failed:\n{said}")
    return time.perf_counter() - started, usage.ru_maxrss / 1024


def write_model(task: str, examples: Path, n_docs: int, folder: Path, options) -> None:
    """A random-weight Llama whose byte-level tokenizer has learnt the words of the examples' prompts."""
    texts = [TASKS[task].prompt(e, all_placements(n_docs, 1)[0]) for e in read_examples(examples)]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<pad>", "<bos>", "<eos>"]
    backend.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=options.vocabulary, special_tokens=special, show_progress=False)
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>", model_max_length=16384
    )
    longest = max(len(tokenizer(text)["input_ids"]) for text in texts)
    print(f"{examples.name}: up to {longest} tokens a prompt", flush=True)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=backend.get_vocab_size(),
        hidden_size=options.width,
        intermediate_size=3 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16384,
        initializer_range=0.1,
        **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    )
    save_model(LlamaForCausalLM(config), tokenizer, folder)


def sources(work: Path, options) -> list[tuple[str, str, int, Path, list[int]]]:
    """Name, task, documents, file and numbers of examples of each series; the fewest fill several batches."""
    if options.quick:
        options.batch_tokens, options.width = 1024, 256
        made = make(MakeConfig(kind="kv", out=work / "made.jsonl", n_examples=32, n_docs=10))
        return [("made", "kv", 10, import_examples(ImportConfig(input=made, out=work / "kv.jsonl")), [8, 32])]
    oracle = ImportConfig(
        input=options.data / "nq-open-oracle.jsonl.gz", out=work / "oracle.jsonl", format="litm-qa", last=400
    )
    questions = MakeConfig(kind="qa", examples=import_examples(oracle), out=work / "nq.jsonl", n_docs=20)
    keys = ImportConfig(input=options.data / "kv-retrieval-140_keys.jsonl.gz", out=work / "kv.jsonl")
    return [
        ("NQ", "qa", 20, make(questions), [50, 100, 200] if options.long else [12, 25, 50]),
        ("keys", "kv", 140, import_examples(keys), [75, 150, 300] if options.long else [8, 16, 32]),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small prompts, made here: under a minute on two cores")
    parser.add_argument("--long", action="store_true", help="200 questions, and all 300 lines of the 140-key file")
    parser.add_argument("--write", action="store_true", help="write the figures into build/results/")
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parents[2] / "shared" / "data")
    for name, default in {
        "width": 64, "layers": 2, "vocabulary": 2048, "new-tokens": 8, "batch-tokens": 8192,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    rows, growth = [], {"peak": [], "seconds": []}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for name, task, n_docs, file, numbers in sources(work, options):
            write_model(task, file, n_docs, work / name, options)
            positions = SPREAD[n_docs]
            n_positions = len(positions.split(",")) if positions else n_docs
            costs = {}
            for number in numbers:
                costs[number] = sweep(
                    *(f"--task={task}", f"--model={work / name}", f"--examples={file}"),
                    *(f"--limit={number}", f"--n-docs={n_docs}", f"--positions={positions}", "--dtype=float32"),
                    *(f"--max-new-tokens={options.new_tokens}", f"--batch-tokens={options.batch_tokens}"),
                    f"--out={work / f'{name}-{number}'}",
                )
                seconds, peak = costs[number]
                rate = number * n_positions / seconds
                cells = [name, n_docs, n_positions, number, f"{seconds:.0f}", f"{rate:.1f}", f"{peak:.0f}"]
                rows.append(list(map(str, cells)))
                print(" | ".join(rows[-1]), flush=True)
            (least, small), (most, large) = costs[numbers[0]], costs[numbers[-1]]
            growth["peak"].append(large / small)
            growth["seconds"].append(most / least)
    head = ["file", "documents", "positions", "examples", "seconds", "prompts/s", "peak MiB"]
    table = markdown(head, rows)
    if options.write:
        fields = {"table": table, "date": date.today(), "threads": torch.get_num_threads()}
        write_section("results", "sweep-scaling", TEXT.format(**fields, **vars(options)))
    else:
        print(table)
    figures = {f"{name}_growth": round(max(values), 3) for name, values in growth.items()}
    print(json.dumps({"examples_ratio": numbers[-1] / numbers[0], **figures}))


TEXT = """\
## What a sweep costs as the examples grow in number

Written by `benchmarks/sweep_scaling.py --write` on {date}, {threads} CPU threads, float32. `posgap sweep`, each in a
process of its own, of a random-weight Llama of {layers} layers, width {width}; {new_tokens} new tokens, batches of
{batch_tokens} tokens. Seconds and peak memory are the whole process's, imports and report included; memory is what is
measured here, and seconds are those of a machine that may have had other work.

{table}
"""


if __name__ == "__main__":
    main()
