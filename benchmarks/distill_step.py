"""R1's training step against the authors' way, on the same model, prompts and batches.

    python benchmarks/distill_step.py [--quick] [--vocabulary 128256] [--prompt-tokens 2048] ...

Both sides train the same random-weight Llama on the same random prompts with the same loss (mean
KL at the response tokens, anchoring included, every prompt weighing the same), AdamW and
micro-batches, and must end with the same losses. They differ in how they get there:

- theirs (the code released with Pos2Distill, its cost pattern): the frozen teacher in memory runs
  for each of the K + 1 copies of an example in every epoch; logits and log-softmax of teacher and
  student cover the whole prompt.
- ours: `posgap.distillation`: teacher states once per example, logits at the response alone.

Each side runs in a process of its own, so that peak memory is its own. The last line is JSON:
`speed_ratio` (examples per second, ours / theirs; ours includes the pass over the teacher) and
`memory_ratio` (peak, ours / theirs).
"""

import argparse
import copy
import json
import resource
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from report import write_section
from transformers import LlamaConfig, LlamaForCausalLM

from posgap.distillation.batches import Collator, Pair, TrainingPrompt, plan_steps
from posgap.distillation.engine import Schedule, train
from posgap.distillation.lora import add_adapters
from posgap.distillation.objectives import R1
from posgap.distillation.optimizers import MAX_GRAD_NORM
from posgap.distillation.student import Student
from posgap.distillation.teacher_states import Teacher, TeacherStates, frozen_head
from posgap.foundation.tables import markdown
from posgap.models.loading import on_device
from posgap.tasks.responses import Response

N_DOCS, BEST = 20, (1,)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Steps(NamedTuple):
    """What a side did: its losses, and the seconds that it took."""

    losses: list[float]
    seconds: float


def clock(options) -> float:
    """Seconds, when a GPU has done what it was told; of a single thread on a CPU those that it computed, as others may
    be using the machine."""
    if options.device == "cuda":
        torch.cuda.synchronize()
    return time.process_time() if options.device == "cpu" and options.threads == 1 else time.perf_counter()


class RandomPrompts:
    """Builds prompts of random tokens, an example's with its gold document at different places among its others."""

    def __init__(self, options):
        self.tokens, self.vocabulary = options.prompt_tokens, options.vocabulary
        self.tokenizer = SimpleNamespace(pad_token_id=0)

    def __call__(self, example, placement) -> list[int]:
        rng = torch.Generator().manual_seed(1000 * int(example.id))
        ids = torch.randint(1, self.vocabulary, (self.tokens,), generator=rng)
        # The task, the documents, the gold one first, and the question.
        task, gold, *others, question = ids.tensor_split(N_DOCS + 2)
        (before,) = placement.positions
        return torch.cat([task, *others[: before - 1], gold, *others[before - 1 :], question]).tolist()


def setting(options) -> tuple[LlamaForCausalLM, Collator, R1, list]:
    """Model, prompts, objective and steps: the same for both sides."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=options.vocabulary,
        hidden_size=options.width,
        intermediate_size=options.feed_forward or 3 * options.width,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        num_key_value_heads=options.kv_heads,
        max_position_embeddings=2 * options.prompt_tokens,
        tie_word_embeddings=False,
        use_cache=False,
    )
    with torch.device(options.device):
        model = LlamaForCausalLM(config).to(DTYPES[options.dtype])
    if options.lora_rank:
        add_adapters(model, options.lora_rank)
    rng = torch.Generator().manual_seed(1)
    pairs = [
        Pair(
            SimpleNamespace(id=str(i)),
            Response(
                id=str(i),
                content=str(i),
                placement=list(BEST),
                n_docs=N_DOCS,
                response="",
                token_ids=torch.randint(1, options.vocabulary, (options.response_tokens,), generator=rng).tolist(),
                correct=True,
            ),
        )
        for i in range(options.examples)
    ]
    trivial = [(i,) for i in range(1, N_DOCS + 1) if (i,) != BEST]
    objective, prompts = R1([BEST] * len(pairs), "none", 1.0), options.batch_size * (options.k + 1)
    steps = plan_steps([trivial] * len(pairs), objective.draw_prompts, options.k, options.epochs, prompts, seed=0)
    collate = Collator(pairs, RandomPrompts(options))
    return model, collate, objective, steps


def ours(options) -> Steps:
    model, collate, objective, steps = setting(options)
    if options.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    with tempfile.TemporaryDirectory() as folder:
        started = clock(options)
        on_device(model, options.device)
        teacher = Teacher(TeacherStates(Path(folder), {}), frozen_head(model, False, options.device), collate)
        student = Student(model, objective, teacher)
        rows = options.own_micro_batch_size or options.micro_batch_size
        tokens = rows * (options.prompt_tokens + options.response_tokens)
        teacher.read_missing(student, torch.device(options.device), tokens)
        accelerator = Accelerator(cpu=options.device == "cpu")
        _, history = train(student, steps, objective, collate, Schedule(1e-3), accelerator, tokens)
    return Steps([step["loss"] for step in history], clock(options) - started)


def chunks(rows, size):
    """Yields `rows` in runs of `size`."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def theirs(options) -> Steps:
    model, collate, objective, steps = setting(options)
    started = clock(options)
    teacher = copy.deepcopy(model).requires_grad_(False).eval()
    if options.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
    model.train()
    optimization = Schedule(1e-3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    history = []
    for step, rows in enumerate(steps):
        total = 0.0
        weights = objective.weights(rows, torch.zeros(len(rows)))
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * optimization.rate(step, len(steps))
        for part, weight in zip(
            chunks(rows, options.micro_batch_size), weights.split(options.micro_batch_size), strict=True
        ):
            batch = collate(part).to(options.device)
            best = collate([TrainingPrompt(row.pair, BEST) for row in part]).to(options.device)
            with torch.no_grad():
                p = F.log_softmax(teacher(input_ids=best.input_ids).logits.float(), -1)
            q = F.log_softmax(model(input_ids=batch.input_ids).logits.float(), -1)
            # The authors read the response tokens' own columns; these are the ones that predict them.
            q, p = q.flatten(0, 1)[batch.columns], p.flatten(0, 1)[best.columns]
            kl = F.kl_div(q, p, reduction="none", log_target=True).sum(-1)
            losses = kl.view(len(part), -1).mean(1)
            loss = (weight.to(losses.device) * losses).sum()
            loss.backward()
            total += loss.item()
            del p, q
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        history.append(total)
    return Steps(history, clock(options) - started)


SIDES = {"ours": ours, "theirs": theirs}


def measure(side: str, options) -> dict:
    """Runs one side in this process."""
    torch.set_num_threads(options.threads)
    if options.device == "cuda":  # which loads and chooses kernels at the first step
        SIDES[side](argparse.Namespace(**vars(options) | {"examples": 1}))
        torch.cuda.reset_peak_memory_stats()
    steps = SIDES[side](options)
    if options.device == "cuda":
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated()
    else:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"peak_bytes": peak, **steps._asdict()}


def require_alike(ours: list[float], theirs: list[float], dtype: str) -> None:
    """Fails where the losses of the two sides differ by more than rounding."""
    tolerance = 1e-3 if dtype == "float32" else 5e-2
    for a, b in zip(ours, theirs, strict=True):
        # Of two float32 programs a KL this small differs by its rounding, some 1e-7.
        assert abs(a - b) <= tolerance * abs(b) + 1e-6, (ours, theirs)


def compare(options) -> tuple[dict, list[list[str]]]:
    """Both sides, each in a process of its own: the ratios, and a row of figures for each."""
    measured, rows = {}, []
    for side in ("theirs", "ours"):
        arguments = [
            f"--{name.replace('_', '-')}={value}" for name, value in vars(options).items() if name not in FLAGS
        ]
        flags = ["--gradient-checkpointing"] * options.gradient_checkpointing
        command = [sys.executable, __file__, "--side", side, *arguments, *flags]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        measured[side] = json.loads(output.splitlines()[-1])
        seconds, peak = measured[side]["seconds"], measured[side]["peak_bytes"]
        rate = options.examples * options.epochs / seconds
        rows.append([f"{options.vocabulary}, {side}", f"{rate:.3f}", f"{seconds:.1f}", f"{peak / 2**30:.2f}"])
    require_alike(measured["ours"]["losses"], measured["theirs"]["losses"], options.dtype)
    ratios = {
        "speed_ratio": round(measured["theirs"]["seconds"] / measured["ours"]["seconds"], 2),
        "memory_ratio": round(measured["ours"]["peak_bytes"] / measured["theirs"]["peak_bytes"], 3),
    }
    return ratios, rows


FLAGS = ("gradient_checkpointing", "quick", "write", "side", "small_vocabulary")
QUICK = {"examples": 1, "epochs": 1, "batch_size": 1, "k": 2}


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one step of one example: under a minute on two cores")
    parser.add_argument("--write", action="store_true", help="write the figures into build/results/")
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--gradient-checkpointing", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--small-vocabulary", type=int, default=4096, help="compared too; 0: not")
    for name, default in {
        "vocabulary": 128256, "prompt-tokens": 2048, "response-tokens": 8, "width": 64, "feed-forward": 0, "layers": 2,
        "heads": 4, "kv-heads": 2, "examples": 2, "k": 4, "epochs": 2, "batch-size": 1, "micro-batch-size": 1,
        "own-micro-batch-size": 0,  # of posgap, where it is another
        "threads": 1, "lora-rank": 0,
    }.items():  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser


def set_options(**given) -> argparse.Namespace:
    """The options of this script, for another: its defaults, but for what is given."""
    parser = make_parser()
    parser.set_defaults(**given)
    return parser.parse_args([])


def main() -> None:
    parser = make_parser()
    chosen, _ = parser.parse_known_args()
    if chosen.quick:
        parser.set_defaults(**QUICK)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(measure(options.side, options)))
        return
    figures, rows = compare(options)
    if options.small_vocabulary:
        small = argparse.Namespace(**vars(options) | {"vocabulary": options.small_vocabulary})
        figures["small_vocabulary"], more = compare(small)
        rows += more
    table = markdown(["vocabulary, side", "examples/s", "seconds", "peak GiB"], rows)
    if options.write:
        device = torch.cuda.get_device_name() if options.device == "cuda" else f"{options.threads} CPU threads"
        text = TEXT.format(table=table, date=date.today(), where=device, json=json.dumps(figures), **vars(options))
        write_section(f"distill-step-{options.device}", text)
    else:
        print(table)
    print(json.dumps(figures))


TEXT = """\
## A training step of R1 against the authors' way

Written by `benchmarks/distill_step.py --write` on {date}, {where}, {dtype}. A random-weight Llama of {layers} layers,
width {width}; prompts of {prompt_tokens} tokens, responses of {response_tokens}; {examples} examples, K = {k},
{epochs} epochs, {batch_size} examples a step, prompts read {micro_batch_size} at a time. Both sides end with the same
losses. "Theirs" is the cost pattern of the code released with Pos2Distill: the teacher in memory, run for every copy
of an example in every epoch, logits and log-softmax over whole prompts. "Ours" includes the pass over the teacher.

{table}

`{json}`
"""

if __name__ == "__main__":
    main()
