"""How much of what distillation reads is padding, by step and by settings: from prompts alone, without a model.

    python benchmarks/padding.py --examples nq.jsonl.gz --model ~/.cache/posgap/models/smollm2

Responses are taken to be the first answer of each example.
"""

import argparse

from posgap.distillation.batch_layout import without_sharing
from posgap.distillation.batches import Collator, Pair, advantageous, plan
from posgap.distillation.objectives import R1
from posgap.generation.setup import prompt_builder
from posgap.tasks.content import content
from posgap.tasks.placements import all_placements
from posgap.tasks.reading import read_examples
from posgap.tasks.responses import Response


def shares(collate: Collator, processes: int, tokens: int, batch_size: int, mix: str) -> tuple[float, float, float]:
    """Of the tokens that are read, the shares that are padding and that are in copies, with which processes that have a
    row less fill up; and the number of calls of the model in a step."""
    pairs = collate.pairs
    places = [placement.positions for placement in all_placements(pairs[0].response.n_docs, 1)]
    objective = R1(advantageous(pairs), "paper", 1.0)
    steps = plan(len(pairs), places, objective.rows, 4, 1, batch_size, 0, mix, mix == "prompts", advantageous(pairs))
    read = taken = needed = calls = 0
    for rows in steps:
        lengths = [len(collate.read(row)) for row in rows]
        layout = without_sharing(objective.together(rows), lengths, processes, tokens)
        for part in layout.parts:
            for rank in range(processes):
                for call in part.calls(rank, processes):
                    read += len(call) * max(lengths[row] for row in call)
                    taken += sum(lengths[row] for row in call)
                    calls += rank == 0
        needed += sum(lengths)
    return 1 - taken / read, (taken - needed) / read, calls / len(steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", required=True)
    parser.add_argument("--model", required=True, help="for its tokenizer")
    parser.add_argument("--task", default="qa")
    parser.add_argument("--limit", type=int, default=300)
    options = parser.parse_args()
    examples = read_examples(options.examples)[: options.limit]
    build = prompt_builder(options.task, options.model, 40)
    pairs = []
    for example in examples:
        ids = build.tokenizer(example.answers[0], add_special_tokens=False).input_ids
        fields = {
            "id": example.id,
            "content": content(example),
            "placement": [1],
            "n_docs": len(example.gold) + len(example.distractors),
        }
        pairs.append(Pair(example, Response(**fields, response=example.answers[0], token_ids=ids, correct=True)))
    collate = Collator(pairs, build)
    for mix in ("examples", "prompts"):
        for processes in (1, 8):
            for tokens in (8192, 16384, 65536):
                padding, copies, calls = shares(collate, processes, tokens, 32, mix)
                print(
                    f"mix {mix}, {processes} processes, {tokens} tokens at once: {100 * padding:.1f} % padding, "
                    f"{100 * copies:.1f} % copies, {calls:.1f} calls a step"
                )


if __name__ == "__main__":
    main()
