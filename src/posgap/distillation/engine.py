"""The training loop of all methods: each step weighs its rows' losses by the objective and updates with AdamW.

Through Accelerate the same loop serves one process, several, and DeepSpeed, depending on how it is launched.
"""

import gc
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from posgap.distillation import rounding_floor
from posgap.distillation.batch_layout import BatchLayout, with_shared_prefixes, without_sharing
from posgap.distillation.batches import Batch, Collator, Row
from posgap.distillation.branches import enable, same_states
from posgap.distillation.checkpoints import Checkpoints, History
from posgap.distillation.gradients import Gradient
from posgap.distillation.head import add_gradients_in_place
from posgap.distillation.micro_batches import MicroBatch
from posgap.distillation.objectives import Objective
from posgap.distillation.optimizers import MAX_GRAD_NORM, adamw
from posgap.distillation.processes import gather, is_by_autocast, rank_and_world
from posgap.distillation.student import Student
from posgap.foundation.errors import PosgapError, TerminationSignal
from posgap.foundation.interruption import deferred_termination
from posgap.foundation.progress import track
from posgap.models.memory import is_exhaustion

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Schedule:
    """The learning rate's schedule.

    The rate rises linearly from 0 to `learning_rate` in `warmup_steps` steps, or, if that is below 1, in that share of
    all steps; the first step then changes nothing, as with the Hugging Face Trainer. From there it falls linearly to 0.
    """

    learning_rate: float
    warmup_steps: float = 0.0

    def rate(self, step: int, steps: int) -> float:
        """The learning rate at `step`, counted from 0, of `steps`, as a share of the peak rate."""
        warmup = math.ceil(self.warmup_steps * steps) if self.warmup_steps < 1 else int(self.warmup_steps)
        return step / warmup if step < warmup else (steps - step) / max(steps - warmup, 1)

    def reach(self, steps: int) -> float:
        """The sum of the rates of `steps` updates: about the most that AdamW moves a weight."""
        return self.learning_rate * sum(self.rate(step, steps) for step in range(steps))


class NotFinite(PosgapError):
    """The loss or the gradient is not finite. `rows` are those with such a loss, or all of the step's."""

    def __init__(self, message: str, step: int, rows: Sequence[Row], losses: Sequence[float]):
        super().__init__(message)
        self.step, self.rows, self.losses = step, rows, losses


def train(
    student: Student,
    steps: Sequence[Sequence[Row]],
    objective: Objective,
    collate: Collator,
    schedule: Schedule,
    accelerator: Accelerator,
    micro_batch_tokens: int,
    checkpoints: Checkpoints | None = None,
    save_steps: int = 0,
    on_step: Callable[[dict[str, float]], None] = lambda figures: None,
) -> tuple[torch.nn.Module, History]:
    """Trains `student` in place; returns it as wrapped by Accelerate, and the figures of every step.

    A process reads `micro_batch_tokens` tokens at once, or a single prompt that is longer. Before the first step the
    student reads what it needs of the teacher's states, if the objective needs them.

    If there is a checkpoint, training goes on from it. `on_step(figures)` is called with each step's figures,
    those of the checkpoint's steps included. Checkpoints are written every `save_steps` steps and at the end (neither
    if it is 0), and at SIGTERM.

    Raises `NotFinite` before the update, and `TerminationSignal` after SIGTERM, when the checkpoint is written.
    """
    trained = [parameter for parameter in student.model.parameters() if parameter.requires_grad]
    wrapped, optimizer = accelerator.prepare(student, adamw(trained, schedule.learning_rate))
    if student.teacher:
        wrapped.eval()
        with _naming_exhaustion("reading the teacher's states; give a smaller micro_batch_tokens"):
            student.teacher.read(wrapped, accelerator.device, micro_batch_tokens)
    wrapped.train()
    history = checkpoints.load(accelerator, wrapped, optimizer) if checkpoints else []
    floor: dict[str, float] = {}
    if student.teacher and not history and is_by_autocast(accelerator):
        floor = {rounding_floor.FIGURE: rounding_floor.measured(student, accelerator.device)}
    for figures in history:
        on_step(figures)
    gradient = Gradient(accelerator, wrapped, optimizer, MAX_GRAD_NORM)
    if not gradient.by_deepspeed:
        add_gradients_in_place(student.model, student.head)
    shares_prefixes = enable(student.model)
    loop = Loop(wrapped, gradient, objective, collate, accelerator.device, micro_batch_tokens, shares_prefixes)
    rest = range(len(history), len(steps))
    with deferred_termination() as termination, checkpoints or nullcontext():
        for step in track(rest, len(rest), "distillation steps"):
            rate = schedule.learning_rate * schedule.rate(step, len(steps))
            for group in optimizer.param_groups:
                group["lr"] = rate
            figures = loop.step(step + 1, steps[step])
            history.append({"step": step + 1, **figures, "learning_rate": rate, **floor})
            floor = {}
            on_step(history[-1])
            stopping = any(gather(termination.requested))
            # At the end too, so that no step is done again where the model cannot be written.
            due = save_steps and ((step + 1) % save_steps == 0 or step + 1 == len(steps))
            if checkpoints and (stopping or due):
                checkpoints.save(step + 1, accelerator, wrapped, optimizer, history)
            if checkpoints and stopping:
                checkpoints.wait()
            if stopping:
                raise TerminationSignal(f"stopped by SIGTERM after step {step + 1} of {len(steps)}")
    return wrapped, history


class Loop:
    """Computes optimizer steps, each in micro-batches.

    A row's weight may depend on the losses of rows that are not read yet, but by the objective's contract only through
    a factor that all rows read before have in common. So each row is read once: when the losses of a group of rows that
    are weighed together are there, the gradient so far is multiplied by that factor, and the group's is added to it.
    """

    def __init__(
        self,
        model: Any,  # a module, or DeepSpeed's engine
        gradient: Gradient,
        objective: Objective,
        collate: Collator,
        device: torch.device,
        micro_batch_tokens: int,
        shares_prefixes: bool = False,  # whether prompts may share what they have in common
    ):
        self.model, self.gradient, self.objective, self.collate = model, gradient, objective, collate
        self.device, self.micro_batch_tokens = device, micro_batch_tokens
        self.shares_prefixes, self.tried = shares_prefixes, False
        self.rank, self.world = rank_and_world()
        self.exhausted = False  # whether this process has run out of memory in this step

    def step(self, number: int, rows: Sequence[Row]) -> dict[str, float]:
        """Makes one update from the global batch `rows` and returns its figures.

        Where a process runs out of memory, micro-batches are halved and the step is begun again. So it is where the
        gradient overflows because positions' losses differ by far, with all rows weighed before the first gradient.
        """
        while True:
            layout = self._layout(rows)
            try:
                with self.gradient.of_this_process():
                    losses, weights = self._accumulate(number, rows, layout)
            except _OutOfMemory:
                self._halve(number, layout)
                continue
            with _naming_exhaustion("the optimizer's update; take a machine with more"):
                norm = self.gradient.apply()
            if math.isfinite(norm) or not self.gradient.disable_scaling_if_underflowed():
                break
            log.info(
                "step %d: positions differ too much to be weighed one by one; from now on it is done beforehand", number
            )
        if not math.isfinite(norm):
            raise NotFinite(
                f"step {number}: the gradient is not finite; lower learning_rate", number, rows, losses.tolist()
            )
        return {"loss": float((weights * losses).sum()), **self.objective.figures(rows, losses), "grad_norm": norm}

    def _layout(self, rows: Sequence[Row]) -> BatchLayout:
        """How to read `rows`: by itself each, or in bundles, whichever takes fewer tokens."""
        together = self.objective.together(rows)
        if not self.gradient.can_be_scaled:  # then all weights are to be known before the first gradient
            together = [key and "by loss" for key in together]
        lengths = [self.collate.length(row) for row in rows]
        layout = without_sharing(together, lengths, self.world, self.micro_batch_tokens)
        examples = [row.pair for row in rows]
        if not self.shares_prefixes or len(set(examples)) == len(rows):
            return layout
        self.collate.keep(rows)
        prompts = [self.collate.read(row) for row in rows]
        shared = with_shared_prefixes(together, examples, prompts, self.world, self.micro_batch_tokens)
        if shared.tokens >= layout.tokens:
            return layout
        if not self.tried:
            self._try([rows[i] for i in max(shared.bundles, key=len)[-2:]])
        return shared if self.shares_prefixes else layout

    def _try(self, some: Sequence[Row]) -> None:
        """Shares no more if the model reads these rows of an example otherwise together than one by one."""
        same, tolerance = False, 1e-3 if self.gradient.accelerator.mixed_precision == "no" else 0.05
        with self._noting_exhaustion(), torch.no_grad():
            alone = [self.model(self.collate([row]).to(self.device), states_alone=True) for row in some]
            together = self.collate.shared([some]).to(self.device)
            read = lambda: self.model(together, states_alone=True)  # noqa: E731
            same = same_states(read, torch.cat(alone), together.branches, tolerance)
        if any(gather(self.exhausted)):
            return  # and tried again with the next micro-batch
        self.tried, self.shares_prefixes = True, all(gather(same))
        if not self.shares_prefixes:
            log.info("what prompts have in common is read for each: this model does not read it once as it should")

    def _accumulate(self, number: int, rows: Sequence[Row], layout: BatchLayout) -> tuple[Tensor, Tensor]:
        """Adds up the gradient of a step; returns its rows' losses and weights, `[N]` each, the same everywhere."""
        losses = torch.full((len(rows),), math.nan, dtype=torch.float64)
        weights, added = torch.zeros_like(losses), torch.zeros(len(rows), dtype=torch.bool)
        for group in layout.groups:
            ends = group is layout.groups[-1]
            *earlier, last = [(part, self._batches(part, rows, layout)) for part in group]
            # Rows that are weighed together but do not fit into one micro-batch: all but the last are read twice.
            for part, batches in earlier:
                with torch.no_grad():
                    self._gather_losses(part, self._read(batches), losses, layout)
            own_losses = self._read(last[1])
            self._gather_losses(last[0], own_losses, losses, layout)
            if ends:
                _require_finite(number, rows, losses)
            before, weights = weights, self.objective.weights(rows, losses)
            if (weighed := float(before[added].sum())) > 0:
                self.gradient.scale(float(weights[added].sum()) / weighed)
            self._add(last[0], own_losses, weights, layout, ends and not earlier)
            for part, batches in earlier:
                self._add(part, self._read(batches), weights, layout, ends and part is earlier[-1][0])
            added[[row for part in group for row in layout.rows(part, 0, 1)]] = True
        if any(gather(self.exhausted)):
            raise _OutOfMemory
        return losses, weights

    def _batches(self, part: MicroBatch, rows: Sequence[Row], layout: BatchLayout) -> list[Batch]:
        calls = [[layout.bundles[i] for i in call] for call in part.calls(self.rank, self.world)]
        if layout.shared:
            batches = [self.collate.shared([[rows[i] for i in bundle] for bundle in call]) for call in calls]
        else:
            batches = [self.collate([rows[i] for (i,) in call]) for call in calls]
        return [batch.to(self.device) for batch in batches]

    def _read(self, batches: list[Batch]) -> Tensor | None:
        """The losses of this process's rows; `None` if it is out of memory, now or before in this step."""
        if not self.exhausted:
            with self._noting_exhaustion():
                return torch.cat([self.model(batch) for batch in batches])
        return None

    def _gather_losses(self, part: MicroBatch, own_losses: Tensor | None, losses: Tensor, layout: BatchLayout) -> None:
        """Enters all processes' losses of a micro-batch into the `losses [N]` of the step."""
        for rank, theirs in enumerate(gather(None if own_losses is None else own_losses.tolist())):
            if theirs is None:
                raise _OutOfMemory
            of_rank = layout.rows(part, rank, self.world)
            losses[of_rank] = torch.tensor(theirs[: len(of_rank)], dtype=losses.dtype)

    def _add(
        self, part: MicroBatch, own_losses: Tensor | None, weights: Tensor, layout: BatchLayout, last: bool
    ) -> None:
        """Adds the gradient of this process's rows of a micro-batch; copies that fill up its share weigh nothing."""
        if own_losses is None:
            return
        own = weights[layout.rows(part, self.rank, self.world)].to(own_losses)
        with self._noting_exhaustion():
            self.gradient.add((own * own_losses[: len(own)]).sum(), last)

    # Running out of memory

    @contextmanager
    def _noting_exhaustion(self) -> Iterator[None]:
        """Within the block running out of memory is noted, for all processes to go back together."""
        if self.gradient.by_deepspeed:  # then processes wait for each other within a pass
            with _naming_exhaustion(f"{self.micro_batch_tokens} tokens at once; give a smaller micro_batch_tokens"):
                yield
            return
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_exhaustion(error):
                raise
            self.exhausted = True

    def _halve(self, number: int, layout: BatchLayout) -> None:
        """Forgets the gradient so far and halves the micro-batch; `PosgapError` if it is a single prompt."""
        divisible = [part.tokens for part in layout.parts if not layout.is_least(part)]
        self.exhausted = False
        self.gradient.clear()
        gc.collect()
        torch.cuda.empty_cache()
        if not divisible:
            longest = max(part.tokens for part in layout.parts)
            raise PosgapError(f"out of memory in step {number}, with one prompt of {longest} tokens; {_LESS_MEMORY}")
        self.micro_batch_tokens = max(divisible) // 2
        log.log(
            logging.INFO if self.rank else logging.WARNING,  # of the others only warnings are shown
            "step %d: out of memory; from now on micro-batches have at most %d tokens, and the step is done again",
            number,
            self.micro_batch_tokens,
        )


_LESS_MEMORY = "set gradient_checkpointing, lora_rank or deepspeed zero3, or take shorter prompts (n_docs)"


@contextmanager
def _naming_exhaustion(where: str) -> Iterator[None]:
    """Within the block running out of memory is `PosgapError`, with what can be done."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_exhaustion(error):
            raise
        raise PosgapError(f"out of memory in {where}, or {_LESS_MEMORY}") from None


class _OutOfMemory(Exception):
    """Some process has run out of memory; raised on all."""


def _require_finite(number: int, rows: Sequence[Row], losses: Tensor) -> None:
    bad = (~losses.isfinite()).nonzero().flatten().tolist()
    if bad:
        raise NotFinite(
            f"step {number}: the loss of {len(bad)} of {len(rows)} prompts is not finite; lower learning_rate, or "
            "look at those prompts",
            number,
            [rows[i] for i in bad],
            losses[bad].tolist(),
        )
