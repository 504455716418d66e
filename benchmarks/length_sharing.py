"""Sweeps at several lengths, whose depths share what they begin with, against one `generate` call per prompt.

    python benchmarks/length_sharing.py [--quick] [--write] [--lengths 512,1024,2048] [--depths 5] ...

Both sides answer the same prompts greedily with the same random-weight Llama, each prompt filled to its length as
`posgap sweep --lengths` fills it: `examples` examples with the gold document at each of `depths` depths.

- theirs: `model.generate` for each prompt.
- ours: `posgap.generation.transformers`, as the sweep uses it, with one example in a batch.

The sides take turns; the best time of each counts. `read` is the share of the prompts' tokens that ours reads, as
`posgap sweep --estimate` says it: 1 + 1/4 + 2/4 + 3/4 + 1 of 5 prompts' at 5 depths, so that the ratio stays near or
below 1.43.

The last line is JSON: `speed_ratio` (prompts per second, ours / theirs, at the longest length) and `identical` (both
sides give every prompt the same response). `--write` puts the table into build/results/.
"""

import argparse
import json
import random
from datetime import date

import torch
from report import write_section
from sweep import llama, ours, theirs, timed, words

from posgap.foundation.tables import markdown
from posgap.measurement.filling import at_lengths
from posgap.measurement.lengths import prefill_share
from posgap.tasks.examples import Document, Example
from posgap.tasks.prompts import Prompt, PromptBuilder
from posgap.tasks.registry import TASKS


def examples(options) -> list[Example]:
    """Examples of random words, of which each has filler for the longest length."""
    rng = random.Random(1)

    def text(n: int) -> str:
        return " ".join(f"w{rng.randrange(3, options.vocabulary)}" for _ in range(n))

    n_documents = max(map(int, options.lengths.split(","))) // options.document_tokens + 1
    return [
        Example(
            id=str(i),
            question=text(8),
            answers=[text(2)],
            gold=[Document(title=text(1), text=text(options.document_tokens))],
            distractors=[Document(title=text(1), text=text(options.document_tokens)) for _ in range(n_documents)],
        )
        for i in range(options.examples)
    ]


def compare(model, tokenizer, build: PromptBuilder, asked: list[Example], options) -> tuple[dict, list[str]]:
    groups = [[Prompt("", build(example, at)) for at in build.fill.placements] for example in asked]
    seconds: dict = {theirs: [], ours: []}
    results: dict = {}
    for _ in range(options.repeats):
        for side in seconds:
            spent, results[side] = timed(lambda side=side: side(model, tokenizer, groups, options), options.device)
            seconds[side].append(spent)
    n = len(asked) * len(build.fill.placements)
    rates = {side: n / min(spent) for side, spent in seconds.items()}
    figures = {"speed_ratio": round(rates[ours] / rates[theirs], 2), "identical": results[ours] == results[theirs]}
    read = prefill_share([[prompt.token_ids for prompt in group] for group in groups])
    cells = [f"{build.fill.tokens:,}", f"{100 * read:.0f} %", f"{1 / read:.2f}", f"{rates[theirs]:.2f}"]
    return figures, [*cells, f"{rates[ours]:.2f}", str(figures["speed_ratio"])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one short length, once: under a minute on two cores")
    parser.add_argument("--write", action="store_true", help="write the table into build/results/")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--lengths", default="512,1024,2048")
    for name, default in {
        "depths": 5, "document-tokens": 40, "examples": 2, "batch-size": 1, "new-tokens": 4, "width": 768,
        "layers": 2, "vocabulary": 4096, "repeats": 2, "threads": torch.get_num_threads(),
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.quick:
        options.lengths, options.repeats, options.width = "512", 1, 256
    torch.set_num_threads(options.threads)
    model, tokenizer, asked = llama(options), words(options.vocabulary), examples(options)
    build = PromptBuilder(TASKS["qa"], tokenizer, 8192, options.new_tokens)
    at_each = at_lengths(options.lengths.split(","), str(options.depths), 0, build, asked)
    compared = [compare(model, tokenizer, at, asked, options) for at in at_each]
    figures = compared[-1][0] | {"identical": all(of_length["identical"] for of_length, _ in compared)}
    head = ["length", "read", "at best", "generate, prompts/s", "posgap, prompts/s", "posgap / generate"]
    table = markdown(head, [row for _, row in compared])
    if options.write:
        where = torch.cuda.get_device_name() if options.device == "cuda" else f"{options.threads} CPU threads"
        same = "the same" if figures["identical"] else "NOT the same"
        fields = {"table": table, "date": date.today(), "where": where, "same": same}
        write_section("results", f"lengths-{options.device}", TEXT.format(**fields, **vars(options)))
    else:
        print(table)
    print(json.dumps(figures))


TEXT = """\
## Depths of one length, which share what they begin with

Written by `benchmarks/length_sharing.py --write` on {date}, {where}, {dtype}, beside other work. A random-weight Llama
of {layers} layers, width {width}; {examples} examples at {depths} depths, {new_tokens} new tokens, one prompt at a time
on both sides, the best of {repeats} turns. The responses are {same}.

{table}

Read is the share of the prompts' tokens that is read, which `posgap sweep --estimate` says beforehand. Attention to
what is kept is not saved.
"""


if __name__ == "__main__":
    main()
