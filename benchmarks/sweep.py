"""A sweep against one `generate` call per prompt, on the same model, prompts and batch size.

    python benchmarks/sweep.py [--quick] [--n-docs 20] [--document-tokens 24] [--batch-size 4] ...

Both sides answer the same prompts greedily with the same random-weight Llama: `examples` examples
with their gold document at each of `n_docs` positions among distractors that keep their order.

- theirs: `model.generate` for each prompt, or for each `batch_size` prompts of the same length.
- ours: `posgap.generation.transformers`, as `posgap sweep` uses it, `batch_size` prompts at a time.

The sides take turns; the best time of each counts. At least 57 % of the tokens of 20 positions must be
read, so that the ratio stays below 1.75. It comes near it where reading dominates: attention to what a
row kept is not saved, and weighs more in a narrow model than in a real one.

The last line is JSON: `speed_ratio` (prompts per second, ours / theirs) and `identical` (every token of
every response is the same).
"""

import argparse
import json
import time
from collections.abc import Callable
from itertools import chain

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from posgap.demo.tiny_model import tokenizer
from posgap.generation.generator import Sampling
from posgap.generation.transformers import TransformersGenerator
from posgap.tasks.prompts import Prompt

INSTRUCTION, QUESTION = 24, 16  # tokens before and after the documents
Answers = list[list[list[int]]]


def llama(options) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=options.vocabulary,
            hidden_size=options.width,
            intermediate_size=3 * options.width,
            num_hidden_layers=options.layers,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=8192,
            initializer_range=0.2,
            eos_token_id=2,
            pad_token_id=0,
        )
    ).to(options.device, getattr(torch, options.dtype)).eval()  # fmt: skip


def groups(options) -> list[list[Prompt]]:
    """Each example's prompts, of random tokens: `[examples][n_docs]`."""
    rng = torch.Generator().manual_seed(1)

    def tokens(n: int) -> list[int]:
        return torch.randint(3, options.vocabulary, (n,), generator=rng).tolist()

    made, instruction = [], tokens(INSTRUCTION)
    for _ in range(options.examples):
        gold, *distractors = (tokens(options.document_tokens) for _ in range(options.n_docs))
        question, prompts = tokens(QUESTION), []
        for position in range(options.n_docs):
            documents = [*distractors[:position], gold, *distractors[position:]]
            prompts.append(Prompt("", [*instruction, *chain.from_iterable(documents), *question]))
        made.append(prompts)
    return made


def theirs(model: LlamaForCausalLM, asked: list[list[Prompt]], options) -> Answers:
    flat, answered = [prompt.token_ids for group in asked for prompt in group], []
    for start in range(0, len(flat), options.batch_size):
        ids = torch.tensor(flat[start : start + options.batch_size], device=model.device)
        with torch.inference_mode():
            output = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=options.new_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        for row in output[:, ids.shape[1] :].tolist():
            answered.append(row[: row.index(2) + 1] if 2 in row else row)
    return [answered[i : i + options.n_docs] for i in range(0, len(answered), options.n_docs)]


def ours(model: LlamaForCausalLM, asked: list[list[Prompt]], options) -> Answers:
    longest = len(asked[0][0].token_ids) + options.new_tokens
    generator = TransformersGenerator(model, tokenizer(), options.batch_size * longest)
    answered = dict(generator.generate(asked, Sampling(options.new_tokens)))
    return [[completion.token_ids for completion in answered[i]] for i in range(len(asked))]


def timed(side: Callable[[], Answers], device: str) -> tuple[float, Answers]:
    started = time.perf_counter()
    found = side()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one batch, once: under a minute on two cores")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    for name, default in {
        "n-docs": 20, "document-tokens": 24, "examples": 8, "batch-size": 4, "new-tokens": 4, "width": 768,
        "layers": 2, "vocabulary": 4096, "repeats": 3, "threads": torch.get_num_threads(),
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.quick:
        options.examples, options.repeats = options.batch_size, 1
    torch.set_num_threads(options.threads)
    model, asked = llama(options), groups(options)
    sides = {"theirs": lambda: theirs(model, asked, options), "ours": lambda: ours(model, asked, options)}
    timed(lambda: theirs(model, [asked[0][:2]], options), options.device)  # warms up
    seconds, found = {name: [] for name in sides}, {}
    for _ in range(options.repeats):
        for name, side in sides.items():
            spent, found[name] = timed(side, options.device)
            seconds[name].append(spent)
    for name, spent in seconds.items():
        rate = options.examples * options.n_docs / min(spent)
        print(f"{name:>6}: {rate:8.2f} prompts/s of {len(asked[0][0].token_ids)} tokens, {min(spent):.2f} s")
    ratio = min(seconds["theirs"]) / min(seconds["ours"])
    print(json.dumps({"speed_ratio": round(ratio, 2), "identical": found["theirs"] == found["ours"]}))


if __name__ == "__main__":
    main()
