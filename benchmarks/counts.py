"""What a sweep and a step of R1 hand to a GPU, counted without one, and the seconds that a card would take for it.

    python benchmarks/counts.py [--quick]

Both sides of sweep.py (plain `generate` against posgap) and of distill_step.py (the authors' way against posgap) run on
small models in bfloat16, as on a GPU: shared prefixes are left out, batches have no mask, and the host does not look at
a factor. Counted are

- forward passes of the model, their rows and tokens, those with a mask, and those that write one token;
- operations that a GPU is told to do (views are none), and the bytes that such copy (`cat`, `index`, `copy_`, ...);
- reads, of a number or of places that are not zero, for which the host waits until the GPU is done. What works on the
  host before anything is copied (`ON_HOST`) is not counted.

From these seconds are predicted for a model that is larger: passes that write take the time to read the weights, the
others that of their arithmetic, or either the time to launch their operations where that is longer. The H100's own
figures (27 November 2026, before these counts were brought down) stand beside the prediction. The last line is JSON.
"""

import argparse
import copy
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import distill_step
import sweep
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from posgap.distillation import gradients
from posgap.foundation.tables import markdown
from posgap.generation import transformers as transformers_backend

COPIES = ("cat", "index", "index_select", "copy_", "_to_copy", "clone", "repeat_interleave", "index_put_", "stack")
READS = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "unique")
# What reads a file, or makes batches of lists, before they are copied to the GPU; and figures of losses that were read.
ON_HOST = ("teacher_states.py", "batches.py", "objectives.py", "resumption.py")


@dataclass(frozen=True)
class Card:
    """Operations a second that a GPU reaches in bfloat16, bytes a second, and seconds of a launch and of a wait."""

    rate: float
    bandwidth: float
    launch: float = 2e-5  # by transformers' modules, one operation after the other
    wait: float = 3e-5


@dataclass(frozen=True)
class Model:
    """A model that seconds are predicted for: parameters, layers, and tokens of its prompts."""

    parameters: float
    layers: int
    tokens: int


CARDS = {"H100": Card(4e14, 2.5e12), "A100": Card(1.5e14, 1.6e12)}
SWEPT, TRAINED = Model(0.94e9, 24, 3040), Model(1.24e9, 16, 3060)
# Seconds of the H100: of 16 examples at 20 positions, 32 rows; and of a step of 20 rows, two at a time, of which the
# 15 s that making the model took are taken off.
SEEN = {"sweep": {"theirs": 8.3, "ours": 21.2}, "step": {"theirs": 4.1, "ours": 2.9}}
# What is no look of posgap's within a step: transformers' at positions, what is checked once, and the other side's.
NOT_OWN = ("student.py", "head.py", "distill_step.py", "sweep.py", "transformers.py")


@dataclass
class Counts(TorchDispatchMode):
    """Counts what is dispatched within the block, and what `watch`ed models are given."""

    operations: int = 0
    copied_bytes: int = 0
    reads: Counter = field(default_factory=Counter)
    passes: list[tuple[int, int, bool, bool]] = field(default_factory=list)  # rows, columns, has a mask, has a gradient

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = operation(*args, **(kwargs or {}))
        name = operation.overloadpacket.__name__
        if not operation.is_view:
            self.operations += 1
        if name in COPIES and isinstance(out, torch.Tensor):
            self.copied_bytes += out.nbytes
        if name in READS:
            place = _caller()
            if place and not place.startswith(ON_HOST):
                self.reads[place] += 1
        return out

    def watch(self, model: torch.nn.Module) -> None:
        """Notes each call of a model from now on."""

        def note(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
            ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
            has_mask = isinstance(kwargs.get("attention_mask"), torch.Tensor)
            self.passes.append((*ids.shape, has_mask, torch.is_grad_enabled()))

        model.register_forward_pre_hook(note, with_kwargs=True)

    def figures(self) -> dict[str, int]:
        """The counts by name."""
        return {
            "passes": len(self.passes),
            "masked": sum(has_mask for _, _, has_mask, _ in self.passes),
            "writing": sum(columns == 1 for _, columns, _, _ in self.passes),
            "rows": sum(rows for rows, *_ in self.passes),
            "tokens": sum(rows * columns for rows, columns, *_ in self.passes),
            "operations": self.operations,
            "reads": sum(self.reads.values()),
            "own_reads": sum(count for place, count in self.reads.items() if not place.startswith(NOT_OWN)),
            "copied_mb": round(self.copied_bytes / 1e6),
        }


def _caller() -> str:
    """The line of posgap or of these scripts that an operation comes from."""
    frame = sys._getframe()
    while frame:
        code = frame.f_code
        if ("/posgap/" in code.co_filename or "/benchmarks/" in code.co_filename) and code.co_filename != __file__:
            return f"{code.co_filename.rpartition('/')[2]}:{code.co_name}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """Within the block posgap works on this CPU as on a GPU."""
    is_gpu, init = transformers_backend.is_gpu, gradients.Gradient.__init__

    def init_unread(self: Any, *arguments: Any) -> None:
        init(self, *arguments)
        self.reads_factors = False

    transformers_backend.is_gpu = lambda device: True
    gradients.Gradient.__init__ = init_unread
    try:
        yield
    finally:
        transformers_backend.is_gpu, gradients.Gradient.__init__ = is_gpu, init


def count_sweep(
    examples: int, positions: int, rows: int, new_tokens: int = 16, dtype: str = "bfloat16"
) -> dict[str, dict[str, int]]:
    """Both sides of a sweep, `rows` prompts at a time, which must give the same responses in float32."""
    options = SimpleNamespace(
        device="cpu", dtype=dtype, width=64, layers=4, vocabulary=500, document_tokens=8, examples=examples,
        batch_size=rows, new_tokens=new_tokens, model="", positions="",
    )  # fmt: skip
    tokenizer, found, answers = sweep.words(options.vocabulary), {}, {}
    prompts = sweep.asked(tokenizer, positions, options)
    for name, side in (("theirs", sweep.theirs), ("ours", sweep.ours)):
        model, counts = sweep.llama(options), Counts()
        counts.watch(model)
        with as_on_a_gpu(), counts:
            answers[name] = dict(side(model, tokenizer, prompts, options))
        assert len(answers[name]) == examples * positions
        found[name] = counts.figures()
    assert dtype != "float32" or answers["ours"] == answers["theirs"]
    return found


def count_step(
    rows: int, examples: int = 8, prompt_tokens: int = 300, layers: int = 4, dtype: str = "bfloat16"
) -> dict[str, dict[str, int]]:
    """Both sides of steps of R1, `rows` prompts at a time, as counts of one step; the teacher's pass is in it. Both
    must have the same losses."""
    options = SimpleNamespace(
        device="cpu", dtype=dtype, vocabulary=2000, prompt_tokens=prompt_tokens, response_tokens=20, width=64,
        feed_forward=128, layers=layers, heads=4, kv_heads=2, examples=examples, k=4, epochs=1, batch_size=4,
        micro_batch_size=rows, own_micro_batch_size=0, threads=1, gradient_checkpointing=False,
    )  # fmt: skip
    found, losses, setting = {}, {}, distill_step.setting
    for name, side in (("theirs", distill_step.theirs), ("ours", distill_step.ours)):
        counts = Counts()

        def watched(options: Any, counts: Counts = counts) -> Any:
            model, *others = setting(options)
            counts.watch(model.model)
            return model, *others

        distill_step.setting = watched
        try:
            with as_on_a_gpu(), counts:
                losses[name] = side(copy.copy(options)).losses
        finally:
            distill_step.setting = setting
        steps = -(-examples // options.batch_size)
        found[name] = {key: -(-value // steps) for key, value in counts.figures().items()}
    distill_step.require_alike(losses["ours"], losses["theirs"], dtype)
    return found


def predict(counted: dict[str, int], card: Card, model: Model, layers: int, tokens: int, backwards: bool) -> float:
    """Seconds of what was counted on a model of so many `layers` and prompts of so many `tokens`, if the model and
    prompts were `model`."""
    share = counted["writing"] / counted["passes"]
    read = counted["tokens"] - share * counted["rows"]
    arithmetic = (6 if backwards else 2) * model.parameters * read * model.tokens / tokens / card.rate
    launches = counted["operations"] * model.layers / layers * card.launch
    weights = 2 * model.parameters * counted["writing"] / card.bandwidth
    reading, writing = max(arithmetic, (1 - share) * launches), max(weights, share * launches)
    return reading + writing + counted["reads"] * card.wait


SWEEPS = {"16 x 20, 32 rows": (16, 20, 32), "8 x 20, 16 rows": (8, 20, 16), "32 x 5, 32 rows": (32, 5, 32)}
STEPS = {"2 rows": 2, "20 rows": 20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one shape of each: under a minute")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    rows, columns = [], ["what", "shape", "side"]
    shapes: list[tuple[str, str, Callable[[], dict[str, dict[str, int]]], Model, int, bool]] = []
    for shape, sizes in list(SWEEPS.items())[2 if quick else 0 :]:
        shapes.append(("sweep", shape, lambda sizes=sizes: count_sweep(*sizes), SWEPT, 200, False))
    for shape, size in list(STEPS.items())[1 if quick else 0 :]:
        shapes.append(("step", shape, lambda size=size: count_step(size), TRAINED, 320, True))
    for what, shape, count, model, tokens, backwards in shapes:
        for side, counted in count().items():
            seconds = {}
            for name, card in CARDS.items():
                seconds[name] = round(predict(counted, card, model, 4, tokens, backwards), 2)
            figures[f"{what}, {shape}, {side}"] = counted | {"seconds": seconds}
            rows.append([what, shape, side, *map(str, counted.values()), json.dumps(seconds)])
            columns = ["what", "shape", "side", *counted, "seconds predicted"]
    print(markdown(columns, rows, left=3))
    print(f"seen on an H100 before: {json.dumps(SEEN)}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
