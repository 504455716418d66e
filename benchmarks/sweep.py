"""A sweep against one `generate` call per batch, and vLLM, on the same model and prompts.

    python benchmarks/sweep.py [--quick] [--write] [--n-docs 20] [--document-tokens 24] [--batch-size 4] ...
    python benchmarks/sweep.py --model smollm2 [--quick] [--write] [--n-docs 10] [--positions 1,5,10] ...

All sides answer the same prompts greedily with the same model, `batch_size` prompts at a time: `examples` examples
with their gold document at each of `n_docs` positions among distractors that keep their order. Without `--model` the
model is a Llama with random weights, and documents are random tokens. With it the model is one of real_models.py or
that of a folder. It is asked for one of `n_docs` key-value records of eight digits each, as `posgap sweep --task kv`
asks.

- theirs: `model.generate` for each `batch_size` prompts.
- ours: `posgap.generation.transformers`, as `posgap sweep` uses it.
- vllm: `posgap.generation.vllm`, as `posgap sweep --backend vllm` uses it, with vLLM's own prefix cache, emptied
  before each turn (in an environment with vLLM; left out where it is missing). Its hit rate stands beside that of vLLM
  asked for the same prompts in the order of the file.

The sides take turns batch by batch: the one that has answered the fewest prompts goes on. So other work on the machine
slows all of them. The best time of each over `repeats` counts. At least 57 % of the tokens of 20 positions must be
read, so that sharing them gives a ratio of at most 1.75 where reading takes all the time; the rest is quicker products.

The last line is JSON: `speed_ratio` (prompts per second, ours / theirs), `cpu_ratio` (the same by the processor's time,
which other work changes less), `vllm_ratio` (ours / vllm; null where vLLM is missing), `vllm_agrees` (the share of
prompts to which vLLM and posgap respond alike), and `identical` (all sides give every prompt the same response). Where
responses differ in float32 the exit code is 1. `--write` puts the figures into build/results/.
"""

import argparse
import copy
import importlib
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import date
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import torch
from real_models import MODELS, folder
from report import write_section
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from posgap.data.synthetic import uuid_records
from posgap.foundation.tables import markdown
from posgap.generation.asking import ResponseLimits, Wording
from posgap.generation.generator import Sampling
from posgap.generation.setup import builder_of
from posgap.generation.transformers import TransformersGenerator
from posgap.mitigations.in_force import load_model, scale_model
from posgap.models.loading import load_tokenizer, save_model
from posgap.tasks.examples import KVExample
from posgap.tasks.prompts import Prompt

INSTRUCTION, QUESTION = 24, 16  # tokens before and after the documents
SPECIAL = ("<pad>", "<unk>", "<eos>")
DIGITS = 8  # of keys and values
Answers = Iterator[tuple[int, str]]  # numbers of prompts, and their responses as they come


def words(vocabulary: int) -> PreTrainedTokenizerFast:
    """A tokenizer of as many words, so that prompts are texts and nothing is lost between the two."""
    ids = {word: i for i, word in enumerate([*SPECIAL, *(f"w{i}" for i in range(3, vocabulary))])}
    backend = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", eos_token="<eos>", model_max_length=8192
    )


def llama(options) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
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
    with torch.device(options.device):
        return LlamaForCausalLM(config).to(getattr(torch, options.dtype)).eval()


def groups(options, n_docs: int, tokenizer: PreTrainedTokenizerFast) -> list[list[Prompt]]:
    """Each example's prompts, of random tokens: `[examples][n_docs]`."""
    rng = torch.Generator().manual_seed(1)

    def tokens(n: int) -> list[int]:
        return torch.randint(3, options.vocabulary, (n,), generator=rng).tolist()

    made, instruction = [], tokens(INSTRUCTION)
    for _ in range(options.examples):
        gold, *distractors = (tokens(options.document_tokens) for _ in range(n_docs))
        question, prompts = tokens(QUESTION), []
        for position in range(n_docs):
            documents = [*distractors[:position], gold, *distractors[position:]]
            ids = [*instruction, *chain.from_iterable(documents), *question]
            prompts.append(Prompt(tokenizer.decode(ids), ids))
        made.append(prompts)
    return made


def kv_groups(options, n_docs: int) -> list[list[Prompt]]:
    """Each example's prompts, of key-value records: `[examples][positions]`."""
    builder = builder_of(options.model, Wording("kv"), ResponseLimits(options.new_tokens, stop=()))
    made, positions = [], options.positions.split(",") if options.positions else []
    placements = builder.task.choose_placements(n_docs, positions)
    for number, row in enumerate(uuid_records(options.examples, n_docs, seed=1)):
        records = [(key[:DIGITS], value[:DIGITS]) for key, value in row["ordered_kv_records"]]
        key, value = row["key"][:DIGITS], row["value"][:DIGITS]
        example = KVExample(id=str(number), question=key, answers=[value], key=key, value=value, records=records)
        made.append([builder.prompt(example, placement) for placement in placements])
    return made


def asked(tokenizer, n_docs: int, options) -> list[list[Prompt]]:
    """The prompts of each example."""
    return kv_groups(options, n_docs) if options.model else groups(options, n_docs, tokenizer)


def batches(prompts: list[list[Prompt]], size: int) -> Iterator[list[tuple[int, Prompt]]]:
    """The prompts with their numbers, in the order of the file, `size` at a time."""
    numbered = list(enumerate(chain.from_iterable(prompts)))
    return (numbered[first : first + size] for first in range(0, len(numbered), size))


def theirs(model, tokenizer, prompts: list[list[Prompt]], options) -> Answers:
    for batch in batches(prompts, options.batch_size):
        rows = [prompt.token_ids for _, prompt in batch]
        longest = max(map(len, rows))
        ids = [[tokenizer.pad_token_id] * (longest - len(row)) + list(row) for row in rows]
        mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
        with torch.inference_mode():
            output = model.generate(
                input_ids=torch.tensor(ids, device=model.device),
                attention_mask=torch.tensor(mask, device=model.device),
                max_new_tokens=options.new_tokens,
                do_sample=False,
                pad_token_id=tokenizer.pad_token_id,
            )
        texts = tokenizer.batch_decode(output[:, longest:], skip_special_tokens=True)
        yield from zip((number for number, _ in batch), texts)


def ours(model, tokenizer, prompts: list[list[Prompt]], options) -> Answers:
    longest = max(len(prompt.token_ids) for group in prompts for prompt in group) + options.new_tokens
    generator = TransformersGenerator(model, tokenizer, options.batch_size * longest, pack=True)
    return completions(generator, prompts, options)


def completions(generator, prompts: list[list[Prompt]], options) -> Answers:
    """What posgap's generator answers; groups hold equally many prompts."""
    for group, at, completion in generator.generate(prompts, Sampling(options.new_tokens)):
        yield group * len(prompts[0]) + at, completion.text


class Vllm:
    """vLLM with the model from a folder, as a side; its cache is empty at the beginning of each turn."""

    def __init__(self, model, tokenizer, longest: int, options):
        from posgap.generation.vllm import VLLMGenerator

        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
        with tempfile.TemporaryDirectory() as folder:
            save_model(model, tokenizer, Path(folder))
            self.generator = VLLMGenerator(folder, options.dtype, 0, tokenizer, context=longest)

    def __call__(self, model, tokenizer, prompts: list[list[Prompt]], options) -> Answers:
        self.generator.llm.reset_prefix_cache()
        return completions(self.generator, prompts, options)

    def hit_rates(self, prompts: list[list[Prompt]], options) -> tuple[float, float]:
        """The share of the prompts' tokens that its cache has: as posgap sends them, and in the order of the file."""
        rates = []
        for groups in (prompts, [[prompt] for group in prompts for prompt in group]):
            before = self.generator.count_cached()
            list(self(None, None, groups, options))
            hits, queries = (after - then for after, then in zip(self.generator.count_cached(), before))
            rates.append(hits / queries)
        return rates[0], rates[1]


class Spent(NamedTuple):
    """Seconds by the clock and of the processor."""

    clock: float
    cpu: float

    @classmethod
    def now(cls, device: str) -> "Spent":
        if device == "cuda":
            torch.cuda.synchronize()
        return cls(time.perf_counter(), time.process_time())


def take_turns(sides: Mapping, device: str) -> tuple[dict, dict]:
    """Lets each side answer all prompts, the one that has answered the fewest next: what each spent, and its responses
    by the number of the prompt."""
    spent, answers = {side: Spent(0, 0) for side in sides}, {side: {} for side in sides}
    while sides:
        side = min(sides, key=lambda side: len(answers[side]))
        torch.backends.cuda.enable_cudnn_sdp(side is theirs)  # as it is where nobody loads a model by posgap
        started = Spent.now(device)
        answer = next(sides[side], None)
        ended = Spent.now(device)
        spent[side] = Spent(*(so_far + b - a for so_far, a, b in zip(spent[side], started, ended)))
        if answer:
            answers[side][answer[0]] = answer[1].strip()
        else:
            sides = {other: answered for other, answered in sides.items() if other != side}
    return spent, answers


def compare(model, tokenizer, n_docs: int, served: Vllm | None, options) -> tuple[dict, list[str]]:
    """All sides on prompts of `n_docs` documents: the figures, and a row of the table."""
    prompts = asked(tokenizer, n_docs, options)
    sides = [theirs, ours, *([served] if served else [])]
    list(theirs(model, tokenizer, [prompts[0][:2]], options))  # warms up
    spent, own = {side: [] for side in sides}, copy.deepcopy(model)  # ours packs the weights
    for _ in range(options.repeats):
        began = {side: side(own if side is ours else model, tokenizer, prompts, options) for side in sides}
        once, answers = take_turns(began, options.device)
        for side in sides:
            spent[side].append(once[side])
    least = {side: Spent(*map(min, zip(*spent[side]))) for side in sides}
    ratio = lambda peer, kind=0: round(least[peer][kind] / least[ours][kind], 2) if peer in least else None  # noqa: E731
    by_vllm = answers.get(served, {})
    equal = [by_vllm[number] == answer for number, answer in answers[ours].items() if number in by_vllm]
    figures = {
        "speed_ratio": ratio(theirs),
        "cpu_ratio": ratio(theirs, 1),
        "vllm_ratio": ratio(served),
        "vllm_agrees": round(sum(equal) / len(equal), 3) if equal else None,
        "identical": all(answers[side] == answers[theirs] for side in sides),
    }
    lengths = [len(prompt.token_ids) for group in prompts for prompt in group]
    cells = [f"{len(lengths) / least[side].clock:.2f}" if side in least else "–" for side in (theirs, served, ours)]
    ratios = [str(figures[name] or "–") for name in ("speed_ratio", "cpu_ratio", "vllm_ratio")]
    hits = [f"{100 * rate:.1f}" for rate in served.hit_rates(prompts, options)] if served else ["–", "–"]
    return figures, [str(n_docs), str(max(lengths)), *cells, *ratios, *hits]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one batch, once: under a minute on two cores")
    parser.add_argument("--write", action="store_true", help="write the figures into build/results/")
    parser.add_argument("--model", default="", help="name in real_models.py, or folder; else random weights")
    parser.add_argument("--positions", default="", help="of --model: which, like 1,5,10; all where it is left out")
    parser.add_argument("--scaled", action="store_true", help="RoPE factors from 1 to 1.5 over the layers")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    for name, default in {
        "n-docs": 20, "document-tokens": 24, "examples": 8, "batch-size": 4, "new-tokens": 4, "width": 768,
        "layers": 2, "vocabulary": 4096, "repeats": 3, "threads": torch.get_num_threads(),
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    if options.model:
        parser.set_defaults(n_docs=10, new_tokens=40, batch_size=10, repeats=1)
        options = parser.parse_args()
    if options.quick:
        options.examples, options.repeats = 2 if options.model else options.batch_size, 1
    torch.set_num_threads(options.threads)
    name = Path(options.model).name or options.device
    if options.model in MODELS:
        options.model = str(folder(options.model))
    if options.model:
        model = load_model(options.model, options.dtype).to(options.device).eval()
        tokenizer = load_tokenizer(options.model)
    else:
        model, tokenizer = llama(options), words(options.vocabulary)
    if options.scaled:
        count = model.config.num_hidden_layers
        scale_model(model, [1 + number / (2 * count) for number in range(count)])
    most = max(len(prompt.token_ids) for prompt in asked(tokenizer, options.n_docs, options)[0])
    served = Vllm(model, tokenizer, most + options.new_tokens, options) if importlib.util.find_spec("vllm") else None
    figures, row = compare(model, tokenizer, options.n_docs, served, options)
    head = ["documents", "tokens", "generate, prompts/s", "vLLM", "posgap"]
    head += [f"posgap / {peer}" for peer in ("generate", "generate, CPU time", "vLLM")]
    head += ["vLLM's cache, %", "in the file's order"]
    table = markdown(head, [row])
    if options.write:
        where = torch.cuda.get_device_name() if options.device == "cuda" else f"{options.threads} CPU threads"
        same = "the same" if figures["identical"] else "NOT the same"
        vllm = importlib.import_module("vllm").__version__ if served else "not installed"
        fields = {"table": table, "date": date.today(), "where": where, "vllm": vllm, "same": same}
        fields["asked"] = (KV if options.model else RANDOM).format(**vars(options) | {"model": name})
        write_section(f"sweep-{name}", TEXT.format(**fields, **vars(options)))
    else:
        print(table)
    print(json.dumps(figures))
    if options.dtype == "float32" and not figures["identical"]:
        sys.exit("the sides do not give every prompt the same response")


RANDOM = "A random-weight Llama of {layers} layers, width {width}, with documents of {document_tokens} tokens,"
KV = "{model}, with key-value records of eight digits each,"

TEXT = """\
## A sweep against one `generate` per batch, and vLLM

Written by `benchmarks/sweep.py --write` on {date}, {where}, {dtype}. {asked}
is asked {examples} examples at every position, for {new_tokens} new tokens. There are {batch_size} prompts at a time on
every side; the sides take turns batch by batch, and the best of {repeats} times counts.
vLLM is {vllm}, with as many prompts at a time as it likes. The responses are {same}.

{table}

The placements of an example share what they begin with, which posgap reads once, and which vLLM's prefix cache has in
whole blocks (of 32 tokens on a CPU, of 16 on a GPU). The last two columns are the share of the prompts' tokens that
this cache had: as `--backend vllm` sends them, and in the order of the file. They differ only where the cache is too
small for the prompts that wait.
"""


if __name__ == "__main__":
    main()
