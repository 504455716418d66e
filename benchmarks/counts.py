"""What a sweep and a step of R1 hand to a GPU, counted without one, and the seconds that a card would take for it.

    python benchmarks/counts.py [--quick]

Both sides of sweep.py (plain `generate` against posgap) and of distill_step.py (the authors' way against posgap) run on
small models in bfloat16, as on a GPU: shared prefixes are left out, batches have no mask, and the host does not look at
a factor. Counted are

- forward passes of the model, their rows and tokens, those with a mask, and those that write one token;
- operations that a GPU is told to do (views are none), and the bytes that such copy (`cat`, `index`, `copy_`, ...);
- shapes of attention: rows, tokens and the keys behind them, each of which cuDNN plans when it is new;
- reads, of a number or of places that are not zero, for which the host waits until the GPU is done. What works on the
  host before anything is copied (`ON_HOST`) is not counted.

From these seconds are predicted for a model that is larger: arithmetic of what is read at the card's rate, a layer's
launches for each pass that writes a token, and a plan for each shape. The three are what an H200 took for each alone on
28 November 2026, and hit all that an H100 and an H200 took (`SEEN`) within a quarter. posgap leaves cuDNN out, so that
it has no plans. The last line is JSON.
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
from report import ROOT
from torch.utils._python_dispatch import TorchDispatchMode

from posgap.distillation import gradients
from posgap.foundation.tables import markdown
from posgap.generation import transformers as transformers_backend

COPIES = ("cat", "index", "index_select", "copy_", "_to_copy", "clone", "repeat_interleave", "index_put_", "stack")
READS = ("_local_scalar_dense", "nonzero", "is_nonzero", "masked_select", "unique")
OWN = (f"{ROOT}/src/posgap/", f"{ROOT}/benchmarks/")  # what is installed may lie below a folder posgap, too
# What reads a file, or makes batches of lists, before they are copied to the GPU; and figures of losses that were read.
ON_HOST = ("teacher_states.py", "batches.py", "objectives.py", "resumption.py")


class Model(NamedTuple):
    """A model that seconds are predicted for: parameters, layers, tokens of its prompts, and operations of each
    parameter and token, of which training has three times as many."""

    parameters: float
    layers: int
    tokens: int
    passes: int = 2


class Work(NamedTuple):
    """What decides the seconds: tokens that are read, of prompts of `tokens`, passes that write one, and shapes that
    are planned."""

    read: float
    tokens: int
    writing: int = 0
    shapes: int = 0

    def predict(self, model: Model) -> float:
        """Returns the seconds that an H100 or H200 takes, if model and prompts are those of `model`."""
        arithmetic = model.passes * model.parameters * self.read * model.tokens / self.tokens / RATE
        return arithmetic + model.layers * self.writing * WRITTEN + self.shapes * PLAN


# Operations a second that these cards reach in bfloat16, and seconds of a layer of a pass that writes one token, which
# are launches of transformers' modules, and of a plan that cuDNN makes.
RATE, WRITTEN, PLAN = 4.5e14, 7.4e-4, 0.08
SWEPT, TRAINED, SMALL = Model(0.94e9, 16, 3040), Model(1.24e9, 16, 3060, 6), Model(0.135e9, 30, 270)
# What they took, of bfloat16: the H100 on 27 November 2026, the H200 the day after. Of a step the authors' alone, since
# posgap's of then had each shape and mask planned.
SEEN = {
    "H100: 16 examples at 20 positions, 32 rows": (SWEPT, Work(64000, 200, 150, 16), 8.27),
    "H100: the same, 96 rows": (SWEPT, Work(64000, 200, 60, 32), 7.58),
    "H100: 8 of them, 32 rows, shapes as before": (SWEPT, Work(32000, 200, 75), 3.4),
    "H200: 32 prompts are read": (SWEPT, Work(6400, 200), 0.43),
    "H200: 500 short ones, 24 tokens each, 100 rows": (SMALL, Work(500 * 270, 270, 115, 24), 3.83),
    "H200: the same by posgap, shapes as before": (SMALL, Work(500 * 270, 270, 115), 3.03),
    "H200: a step, the authors' way": (TRAINED, Work(12760, 320), 1.83),
}
# What is no look of posgap's within a step: transformers' at positions, what is checked once, and the other side's.
NOT_OWN = ("student.py", "head.py", "distill_step.py", "sweep.py", "transformers.py")


@dataclass
class Counts(TorchDispatchMode):
    """Counts what is dispatched within the block, and what `watch`ed models are given."""

    operations: int = 0
    copied_bytes: int = 0
    reads: Counter = field(default_factory=Counter)
    passes: list[tuple[int, int, int, bool]] = field(default_factory=list)  # rows, columns, keys before, has a mask

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
            before = kwargs.get("past_key_values")
            self.passes.append((*ids.shape, before.get_seq_length() if before else 0, has_mask))

        model.register_forward_pre_hook(note, with_kwargs=True)

    def figures(self) -> dict[str, int]:
        """The counts by name."""
        return {
            "passes": len(self.passes),
            "masked": sum(has_mask for *_, has_mask in self.passes),
            "shapes": len({each[:3] for each in self.passes}),
            "writing": sum(columns == 1 for _, columns, *_ in self.passes),
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
        if code.co_filename.startswith(OWN) and code.co_filename != __file__:
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
    """Both sides of steps of R1, `rows` prompts at a time and with equal losses, as counts of one step."""
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


def work_of(counted: dict[str, int], tokens: int, is_planned: bool) -> Work:
    """Returns what decides the seconds of what was counted."""
    written = counted["writing"] / counted["passes"] * counted["rows"]
    return Work(counted["tokens"] - written, tokens, counted["writing"], counted["shapes"] if is_planned else 0)


SWEEPS = {"16 x 20 by 32": (16, 20, 32), "8 x 20 by 16": (8, 20, 16), "32 x 5 by 32": (32, 5, 32)}
STEPS = {"2 rows": 2, "20 rows": 20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one shape of each: under a minute")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    figures: dict[str, Any] = {}
    shapes: list[tuple[str, str, Callable[[], dict[str, dict[str, int]]], Model, int]] = []
    for shape, sizes in list(SWEEPS.items())[2 if quick else 0 :]:
        shapes.append(("sweep", shape, lambda sizes=sizes: count_sweep(*sizes), SWEPT, 200))
    for shape, size in list(STEPS.items())[1 if quick else 0 :]:
        shapes.append(("step", shape, lambda size=size: count_step(size), TRAINED, 320))
    for what, shape, count, model, tokens in shapes:
        for side, counted in count().items():
            work = work_of(counted, tokens, side == "theirs" and what == "sweep")
            figures[f"{what}, {shape}, {side}"] = counted | {"seconds": round(work.predict(model), 2)}
    rows = [[*name.split(", "), *map(str, found.values())] for name, found in figures.items()]
    print(markdown(["what", "shape", "side", *next(iter(figures.values()))], rows, left=3))
    seen = []
    for name, (model, work, seconds) in SEEN.items():
        predicted = work.predict(model)
        seen.append([name, f"{seconds:.2f}", f"{predicted:.2f}", f"{predicted / seconds:.2f}"])
    print(markdown(["seen", "seconds", "predicted", "of what was seen"], seen))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
