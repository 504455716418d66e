"""What a sweep and a step of R1 hand to a GPU, counted without one, and the seconds that a card would take for it.

    python benchmarks/counts.py [--quick]

Both sides of sweep.py (plain `generate` against posgap) and of distill_step.py (the authors' way against posgap) run on
small models in bfloat16, as on a GPU: shared prefixes are left out, batches have no mask, and the host does not look at
a factor. Counted are

- forward passes of the model, their rows and tokens, those with a mask, and those that write one token;
- operations that a GPU is told to do (views are none), and the bytes that such copy (`cat`, `index`, `copy_`, ...);
- reads, of a number or of places that are not zero, for which the host waits until the GPU is done. What works on the
  host before anything is copied (`ON_HOST`) is not counted.

From these seconds are predicted for a model that is larger: arithmetic at the card's rate, so many microseconds an
operation, and so many milliseconds a layer of a pass with a mask, for which no flash kernel runs. The three are fitted
to what an H100 took on 27 November 2026 (`SEEN`), before posgap left masks and shared beginnings out: microseconds
by plain `generate` at 32 and 96 rows, the others by least squares. What has no mask is hit within a quarter; the old
sweeps are not, since half of the work took a quarter of the time there, which no count explains (0.65 to 1.8 times).
The last line is JSON.
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
from typing import Any, NamedTuple

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


class Card(NamedTuple):
    """Operations a second that a GPU reaches in bfloat16, and seconds of a launch and of a layer with a mask."""

    rate: float
    launch: float = 1e-5  # by transformers' modules, one operation after the other
    masked: float = 2e-3


class Model(NamedTuple):
    """A model that seconds are predicted for: parameters, layers, tokens of its prompts, and operations of each
    parameter and token, of which training has three times as many."""

    parameters: float
    layers: int
    tokens: int
    passes: int = 2


class Work(NamedTuple):
    """What decides the seconds: tokens that are read, not written, operations, and passes with a mask; of models of
    `LAYERS` layers and prompts of `tokens`."""

    read: float
    operations: int
    masked: int
    tokens: int

    def predict(self, card: Card, model: Model) -> float:
        """Returns the seconds that a card takes, if model and prompts are those of `model`."""
        arithmetic = model.passes * model.parameters * self.read * model.tokens / self.tokens / card.rate
        return (
            arithmetic
            + model.layers / LAYERS * self.operations * card.launch
            + model.layers * self.masked * card.masked
        )


LAYERS = 4  # of the models that are counted
CARDS = {"H100": Card(2.5e14), "A100": Card(0.8e14)}  # the A100's rate as their peak rates are to each other
SWEPT, TRAINED = Model(0.94e9, 16, 3040), Model(1.24e9, 16, 3060, 6)
# What an H100 took, and what was counted at the same commit, 19521cc9: examples at 20 positions and rows, and a step of
# 20 rows, two at a time, of whose two the 15 s that making the model took are taken off.
SEEN = {
    "generate, 16 examples, 32 rows": (SWEPT, Work(64000, 29280, 0, 200), 8.27),
    "generate, 16 examples, 96 rows": (SWEPT, Work(64000, 11712, 0, 200), 7.58),
    "generate, 8 examples, 32 rows": (SWEPT, Work(32000, 14640, 0, 200), 3.4),
    "posgap then, 16 examples, 32 rows": (SWEPT, Work(35264, 65214, 300, 200), 21.2),
    "posgap then, 16 examples, 160 rows": (SWEPT, Work(35776, 32371, 136, 200), 15.0),
    "posgap then, 8 examples, 32 rows": (SWEPT, Work(17736, 36115, 168, 200), 5.0),
    "a step, the authors' way": (TRAINED, Work(12760, 8620, 0, 320), 4.1),
    "a step, posgap then": (TRAINED, Work(7975, 7483, 0, 320), 2.9),
}
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
    options = distill_step.set_options(
        device="cpu", dtype=dtype, vocabulary=2000, prompt_tokens=prompt_tokens, response_tokens=20, feed_forward=128,
        layers=layers, examples=examples, epochs=1, batch_size=4, micro_batch_size=rows,
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


def work_of(counted: dict[str, int], tokens: int) -> Work:
    """Returns what decides the seconds of what was counted."""
    written = counted["writing"] / counted["passes"] * counted["rows"]
    return Work(counted["tokens"] - written, counted["operations"], counted["masked"], tokens)


SWEEPS = {"16 x 20, 32 rows": (16, 20, 32), "8 x 20, 16 rows": (8, 20, 16), "32 x 5, 32 rows": (32, 5, 32)}
STEPS = {"2 rows": 2, "20 rows": 20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one shape of each: under a minute")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    rows, columns = [], ["what", "shape", "side"]
    shapes: list[tuple[str, str, Callable[[], dict[str, dict[str, int]]], Model, int]] = []
    for shape, sizes in list(SWEEPS.items())[2 if quick else 0 :]:
        shapes.append(("sweep", shape, lambda sizes=sizes: count_sweep(*sizes), SWEPT, 200))
    for shape, size in list(STEPS.items())[1 if quick else 0 :]:
        shapes.append(("step", shape, lambda size=size: count_step(size), TRAINED, 320))
    for what, shape, count, model, tokens in shapes:
        for side, counted in count().items():
            work = work_of(counted, tokens)
            seconds = {name: round(work.predict(card, model), 2) for name, card in CARDS.items()}
            figures[f"{what}, {shape}, {side}"] = counted | {"seconds": seconds}
            rows.append([what, shape, side, *map(str, counted.values()), json.dumps(seconds)])
            columns = ["what", "shape", "side", *counted, "seconds predicted"]
    print(markdown(columns, rows, left=3))
    seen = []
    for name, (model, work, seconds) in SEEN.items():
        predicted = work.predict(CARDS["H100"], model)
        seen.append([name, f"{seconds:.1f}", f"{predicted:.1f}", f"{predicted / seconds:.2f}"])
    print(markdown(["seen on an H100", "seconds", "predicted", "of what was seen"], seen))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
