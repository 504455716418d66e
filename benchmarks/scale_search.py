"""Scoring LPES candidates by teacher forcing against generating under each candidate.

    python benchmarks/scale_search.py [--quick]

Both sides answer the same questions under the same candidates, with the same model and token budget,
and must find the same answers right. What teacher forcing saves is decoding, the overhead of small
batches, and reading again what placements of an example begin with alike; all else is read on both sides.
So the ratio is that of decoding to reading, and three are given:

- `speed_ratio`: a generation, one example at seven positions, 10 records a prompt (a rung of a halving
  search of a tiny model), against one batched `generate` call a candidate;
- `speed_ratio_large`: four examples at seven positions, 20 records, against the same;
- `speed_ratio_per_prompt`: the latter against one `generate` call a prompt, as evaluation scripts do.

Where vLLM is installed, it generates too: `vllm_ratio`, against batched `generate`. `identical`: all agree.
"""

import argparse
import importlib.util
import tempfile
import time
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from report import conclude
from transformers import LlamaConfig, LlamaForCausalLM

from posgap.demo.tiny_model import tokenizer
from posgap.generation.generator import Sampling, complete
from posgap.generation.transformers import TransformersGenerator
from posgap.generation.vllm import VLLMGenerator
from posgap.models.loading import save_model
from posgap.options.scale_search import ScaleSearchConfig
from posgap.scaling.fitness import ForcedEvaluator, GenerationEvaluator
from posgap.scaling.questions import SearchQuestion
from posgap.tasks.prompts import Prompt

ANSWER = 36  # tokens: a UUID, one token a character
END = 2


def model(layers: int, width: int) -> LlamaForCausalLM:
    """A random Llama that never ends a response by itself."""
    torch.manual_seed(0)
    made = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=41,
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=layers,
            num_attention_heads=width // (16 if width < 256 else 64),
            max_position_embeddings=4096,
            initializer_range=0.2,
            eos_token_id=END,
            pad_token_id=0,
        )
    )
    with torch.no_grad():
        made.lm_head.weight[END] = 0
    return made.eval()


def placements(rng: np.random.Generator, tokens: int) -> list[list[int]]:
    """An example's prompts: records of four random tokens, one of which stands at seven places, and a question."""
    *records, gold, question = rng.integers(4, 41, (tokens // 4, 4)).tolist()
    places = [round(i * len(records) / 6) for i in range(7)]
    return [list(chain(*records[:at], gold, *records[at:], question)) for at in places]


def said_so(text: str, answers: list[str]) -> float:
    return float(text == answers[0])


def serve(llama, longest: int) -> VLLMGenerator:
    with tempfile.TemporaryDirectory() as folder:
        save_model(llama, tokenizer(), Path(folder))
        return VLLMGenerator(folder, "float32", 0, tokenizer(), 1, longest, **ScaleSearchConfig.vllm_options)


def compare(sides: dict[str, Callable[[], np.ndarray]], repeats: int) -> tuple[dict[str, float], bool]:
    """Best seconds of each side, taken in turns, and whether all found the same; some right, some wrong."""
    seconds, results = {name: [] for name in sides}, {}
    for repeat in range(repeats + 1):
        for name, side in sides.items():
            started = time.perf_counter()
            results[name] = side()
            if repeat:  # the first warms up
                seconds[name].append(time.perf_counter() - started)
    first, *others = results.values()
    same = all((first == other).all() for other in others) and 0 < first.mean() < 1
    return {name: min(times) for name, times in seconds.items()}, bool(same)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer repetitions: under a minute")
    parser.add_argument("--write", action="store_true", help="write the figures into build/results/")
    # A population; of the large setting examples and tokens; tokens of a batch, more of which leave a core's cache.
    sizes = {"layers": 2, "width": 64, "candidates": 14, "examples": 4, "prompt": 96, "batch-tokens": 2048}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    repeats = 7
    if arguments.quick:
        repeats, arguments.candidates = 1, 6
    llama, rng = model(arguments.layers, arguments.width), np.random.default_rng(0)
    # Close to 1, so that a candidate answers some questions as the unscaled model does and others not.
    candidates = [tuple(1 + rng.uniform(0, 1e-3 * i, arguments.layers)) for i in range(arguments.candidates)]
    figures, identical, lines = {}, True, []
    has_vllm, budget = importlib.util.find_spec("vllm") is not None, arguments.batch_tokens
    served = serve(llama, arguments.prompt + ANSWER) if has_vllm else None
    for suffix, examples, prompt in (("", 1, 48), ("_large", arguments.examples, arguments.prompt)):
        prompts = [placed for _ in range(examples) for placed in placements(rng, prompt)]
        generator = TransformersGenerator(llama, tokenizer(), budget)
        unscaled = complete(generator, [Prompt("", p) for p in prompts], Sampling(ANSWER))
        flat = [SearchQuestion(p, c.token_ids, [c.text]) for p, c in zip(prompts, unscaled)]
        questions = [flat[i : i + 7] for i in range(0, len(flat), 7)]
        sides = {"teacher_forced": ForcedEvaluator(llama, questions, 0, budget)}
        generators = {"per_candidate": TransformersGenerator(llama, tokenizer(), budget, reuse=False)}
        if suffix:
            generators["per_prompt"] = TransformersGenerator(llama, tokenizer(), 1, reuse=False)
            generators |= {"vllm": served} if served else {}
        for name, each in generators.items():
            sides[name] = GenerationEvaluator(each, questions, said_so, Sampling(ANSWER))
        sides = {name: partial(side.correct, candidates) for name, side in sides.items()}
        seconds, same = compare(sides, 1 if suffix and arguments.quick else repeats)
        identical = identical and same
        times = ", ".join(f"{name} {value:.3f} s" for name, value in seconds.items())
        lines.append(f"{len(candidates)} candidates x {len(flat)} questions of {prompt} + {ANSWER} tokens: {times}")
        figures[f"speed_ratio{suffix}"] = round(seconds["per_candidate"] / seconds["teacher_forced"], 2)
    figures["speed_ratio_per_prompt"] = round(seconds["per_prompt"] / seconds["teacher_forced"], 2)
    figures["vllm_ratio"] = round(seconds["per_candidate"] / seconds["vllm"], 2) if served else None
    conclude("scale-search", TEXT, lines, figures | {"identical": identical}, arguments.write)


TEXT = """\
## The LPES search: teacher forcing against generating under each candidate

Written by `benchmarks/scale_search.py --write` on {date}, one CPU thread, a random-weight Llama (2 layers, width 64
unless given otherwise), 36-token answers. `speed_ratio`: a population on one example at seven positions, against one
batched `generate` a candidate; `speed_ratio_large`: four examples of longer prompts; `speed_ratio_per_prompt`: the
latter against one `generate` a prompt. What is saved is decoding, and reading again what placements begin with alike.
Where batches are large and prompts long, a CPU is as busy reading as decoding, and the ratio falls to that of the
tokens.
"""


if __name__ == "__main__":
    main()
