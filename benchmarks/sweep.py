"""A sweep against one `generate` call per prompt, lm-evaluation-harness and vLLM, on the same model and prompts.

    python benchmarks/sweep.py [--quick] [--write] [--n-docs 20] [--document-tokens 24] [--batch-size 4] ...

All sides answer the same prompts greedily with the same random-weight Llama, `batch_size` prompts at a time:
`examples` examples with their gold document at each of `n_docs` positions among distractors that keep their order.

- theirs: `model.generate` for each `batch_size` prompts.
- lm_eval: `HFLM.generate_until` of lm-evaluation-harness (pip install 'posgap[harness]'; left out where it is missing).
- ours: `posgap.generation.transformers`, as `posgap sweep` uses it.
- vllm: `posgap.generation.vllm`, as `posgap sweep --backend vllm` uses it, with vLLM's own prefix cache, emptied
  before each turn (in an environment with vLLM; left out where it is missing). Its hit rate stands beside that of vLLM
  asked for the same prompts in the order of the file.

The sides take turns; the best time of each counts. At least 57 % of the tokens of 20 positions must be
read, so that the ratio stays below 1.75. It comes near it where reading dominates: attention to what a
row kept is not saved, and weighs more in a narrow model than in a real one.

The last line is JSON: `speed_ratio` (prompts per second, ours / theirs), `lm_eval_ratio` (ours / lm_eval) and
`vllm_ratio` (ours / vllm), each null where its peer is missing, and `identical` (all sides give every prompt the same
response). `--write` puts a table over several numbers of documents into build/results/.
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import json
import os
import tempfile
import time
from collections.abc import Callable
from datetime import date
from itertools import chain
from pathlib import Path

import torch
from report import write_section
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from posgap.foundation.tables import markdown
from posgap.generation.generator import Sampling, complete_groups
from posgap.generation.transformers import TransformersGenerator
from posgap.models.loading import save_model
from posgap.tasks.prompts import Prompt

INSTRUCTION, QUESTION = 24, 16  # tokens before and after the documents
SPECIAL = ("<pad>", "<unk>", "<eos>")
Answers = list[str]


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


def theirs(model, tokenizer, prompts: list[list[Prompt]], options) -> Answers:
    flat, answered = [prompt.token_ids for group in prompts for prompt in group], []
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
        answered += tokenizer.batch_decode(output[:, ids.shape[1] :], skip_special_tokens=True)
    return answered


def lm_eval(model, tokenizer, prompts: list[list[Prompt]], options) -> Answers:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    harness = HFLM(pretrained=model, tokenizer=tokenizer, batch_size=options.batch_size)
    settings = {"until": [], "do_sample": False, "max_gen_toks": options.new_tokens}
    requests = [
        Instance("generate_until", {}, (prompt.text, settings), i)
        for i, prompt in enumerate(chain.from_iterable(prompts))
    ]
    return harness.generate_until(requests, disable_tqdm=True)


def ours(model, tokenizer, prompts: list[list[Prompt]], options) -> Answers:
    longest = len(prompts[0][0].token_ids) + options.new_tokens
    generator = TransformersGenerator(model, tokenizer, options.batch_size * longest)
    answered = dict(complete_groups(generator, prompts, Sampling(options.new_tokens)))
    return [completion.text for i in range(len(prompts)) for completion in answered[i]]


class Vllm:
    """vLLM with the model from a folder, as a side; its cache is empty at the beginning of each turn."""

    def __init__(self, model, tokenizer, longest: int, options):
        from posgap.generation.vllm import VLLMGenerator

        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
        with tempfile.TemporaryDirectory() as folder:
            save_model(model, tokenizer, Path(folder))
            self.generator = VLLMGenerator(folder, options.dtype, longest, 0, tokenizer)

    def __call__(self, model, tokenizer, prompts: list[list[Prompt]], options) -> Answers:
        self.generator.llm.reset_prefix_cache()
        answered = dict(complete_groups(self.generator, prompts, Sampling(options.new_tokens)))
        return [completion.text for i in range(len(prompts)) for completion in answered[i]]

    def hit_rates(self, prompts: list[list[Prompt]], options) -> tuple[float, float]:
        """The share of the prompts' tokens that its cache has: as posgap sends them, and in the order of the file."""
        rates = []
        for groups in (prompts, [[prompt] for group in prompts for prompt in group]):
            before = self.generator.counted()
            self(None, None, groups, options)
            hits, queries = (after - then for after, then in zip(self.generator.counted(), before))
            rates.append(hits / queries)
        return rates[0], rates[1]


def timed(side: Callable[[], Answers], device: str) -> tuple[float, Answers]:
    started = time.perf_counter()
    answers = side()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started, [answer.strip() for answer in answers]


def compare(model, tokenizer, n_docs: int, served: Vllm | None, options) -> tuple[dict, list[str]]:
    """All sides on prompts of `n_docs` documents: the figures, and a row of the table."""
    prompts = groups(options, n_docs, tokenizer)
    sides = [theirs, ours, *([lm_eval] if importlib.util.find_spec("lm_eval") else []), *([served] if served else [])]
    timed(lambda: theirs(model, tokenizer, [prompts[0][:2]], options), options.device)  # warms up
    seconds, results = {side: [] for side in sides}, {}
    for _ in range(options.repeats):
        for side in sides:
            spent, results[side] = timed(lambda side=side: side(model, tokenizer, prompts, options), options.device)
            seconds[side].append(spent)
    rates = {side: options.examples * n_docs / min(spent) for side, spent in seconds.items()}
    figures = {
        "speed_ratio": round(rates[ours] / rates[theirs], 2),
        "lm_eval_ratio": round(rates[ours] / rates[lm_eval], 2) if lm_eval in rates else None,
        "vllm_ratio": round(rates[ours] / rates[served], 2) if served else None,
        "identical": all(answers == results[theirs] for answers in results.values()),
    }
    cells = [f"{rates[side]:.2f}" if side in rates else "–" for side in (theirs, lm_eval, served, ours)]
    ratios = [str(figures[name] or "–") for name in ("speed_ratio", "lm_eval_ratio", "vllm_ratio")]
    hits = [f"{100 * rate:.1f}" for rate in served.hit_rates(prompts, options)] if served else ["–", "–"]
    return figures, [str(n_docs), str(len(prompts[0][0].token_ids)), *cells, *ratios, *hits]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one batch, once: under a minute on two cores")
    parser.add_argument("--write", action="store_true", help="write a table over --scale into build/results/")
    parser.add_argument("--scale", default="5,10,20,40", help="numbers of documents of that table")
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
    model, tokenizer = llama(options), words(options.vocabulary)
    scale = sorted({options.n_docs, *map(int, options.scale.split(","))}) if options.write else [options.n_docs]
    longest = INSTRUCTION + max(scale) * options.document_tokens + QUESTION + options.new_tokens
    served = Vllm(model, tokenizer, longest, options) if importlib.util.find_spec("vllm") else None
    compared = {n: compare(model, tokenizer, n, served, options) for n in scale}
    head = ["documents", "tokens", "generate, prompts/s", "lm-eval", "vLLM", "posgap"]
    head += [f"posgap / {peer}" for peer in ("generate", "lm-eval", "vLLM")]
    head += ["vLLM's cache, %", "in the file's order"]
    table, figures = markdown(head, [row for _, row in compared.values()]), compared[options.n_docs][0]
    if options.write:
        where = torch.cuda.get_device_name() if options.device == "cuda" else f"{options.threads} CPU threads"
        harness = importlib.metadata.version("lm_eval") if importlib.util.find_spec("lm_eval") else "not installed"
        same = "the same" if all(f["identical"] for f, _ in compared.values()) else "NOT the same"
        vllm = importlib.import_module("vllm").__version__ if served else "not installed"
        fields = {"table": table, "date": date.today(), "where": where, "harness": harness, "vllm": vllm, "same": same}
        write_section("results", f"sweep-{options.device}", TEXT.format(**fields, **vars(options)))
    else:
        print(table)
    print(json.dumps(figures))


TEXT = """\
## A sweep against one `generate` per prompt, lm-evaluation-harness and vLLM

Written by `benchmarks/sweep.py --write` on {date}, {where}, {dtype}. A random-weight Llama of {layers} layers,
width {width}, is asked {examples} examples at every position, with documents of {document_tokens} tokens, for
{new_tokens} new tokens. There are {batch_size} prompts at a time on every side, and the best of {repeats} turns counts.
lm-evaluation-harness is {harness}; vLLM is {vllm}, with as many prompts at a time as it likes. The responses are
{same}.

{table}

The placements of an example share what they begin with, which posgap reads once, and which vLLM's prefix cache has in
whole blocks (of 32 tokens on a CPU, of 16 on a GPU). The last two columns are the share of the prompts' tokens that
this cache had: as `--backend vllm` sends them, and in the order of the file. They differ only where the cache is too
small for the prompts that wait.
"""


if __name__ == "__main__":
    main()
