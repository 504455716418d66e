"""The training loop of all methods: each step weighs its rows' losses by the objective and updates with AdamW.

Through Accelerate the same loop serves one process, several, and DeepSpeed, depending on how it is launched.
"""

import gc
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor

from posgap.distillation import rounding_floor
from posgap.distillation.batches import Batch, Collator, TrainingPrompt
from posgap.distillation.batching import BatchLayout, MicroBatch, lay_out_alone, lay_out_shared
from posgap.distillation.branches import attention_over_branches, same_states
from posgap.distillation.checkpoints import Checkpoints, History
from posgap.distillation.evaluation import Evaluation
from posgap.distillation.gradients import Gradient
from posgap.distillation.head import add_gradients_in_place
from posgap.distillation.held_out import BEFORE, best_step
from posgap.distillation.losses import index_on
from posgap.distillation.objectives import Objective
from posgap.distillation.optimizers import MAX_GRAD_NORM, adamw
from posgap.distillation.processes import (
    arithmetic,
    ending_after_its_peer,
    gather,
    is_by_autocast,
    rank_and_world,
    register_external,
)
from posgap.distillation.speed import Speed
from posgap.distillation.student import Student
from posgap.foundation.errors import NoRoom, PosgapError, TerminationSignal
from posgap.foundation.interruption import deferred_termination
from posgap.foundation.progress import track
from posgap.models.loading import disable_cudnn_attention
from posgap.models.memory import device_memory, is_exhaustion

log = logging.getLogger(__name__)
START_TOKENS = 8192  # of a micro-batch, by default
USABLE = 0.85  # of a GPU's memory: the rest is lost between blocks


@dataclass(frozen=True)
class Schedule:
    """The learning rate's schedule.

    The rate rises linearly from 0 to `learning_rate` in `warmup_steps` steps or, if that is below 1, in that share of
    all steps. The first step then changes nothing, as with the Hugging Face Trainer. From there it falls linearly to 0.
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

    def __init__(self, message: str, step: int, rows: Sequence[TrainingPrompt], losses: Sequence[float]):
        super().__init__(message)
        self.step = step
        self.rows = rows
        self.losses = losses


def train(
    student: Student,
    steps: Sequence[Sequence[TrainingPrompt]],
    objective: Objective,
    collate: Collator,
    schedule: Schedule,
    accelerator: Accelerator,
    micro_batch_tokens: int,
    checkpoints: Checkpoints | None = None,
    save_steps: int = 0,
    on_step: Callable[[dict[str, float]], None] = lambda figures: None,
    evaluation: Evaluation | None = None,
    keep_best: bool = False,
) -> tuple[torch.nn.Module, History]:
    """Trains `student` in place; returns it as Accelerate wraps it, and the figures of every step.

    A process reads `micro_batch_tokens` tokens at once, or a single longer prompt. 0 means `START_TOKENS`, and on a
    GPU, after two steps, as many as fit in its memory. Before the first step the student computes the teacher's missing
    states, if the objective needs them.

    If there is a checkpoint, training resumes from it. `on_step(figures)` is called with each step's figures, including
    the checkpoint's steps. Checkpoints are written every `save_steps` steps and at the end (neither if it is 0), and at
    SIGTERM. A step at which `evaluation` is due also has its figures, and the first step has those from before
    training. With `keep_best`, the student ends in its state after the best of them, which `checkpoints` keep.

    Raises `NotFinite` before the update, and `TerminationSignal` after SIGTERM, once the checkpoint is written.
    """
    disable_cudnn_attention()
    trained = [parameter for parameter in student.model.parameters() if parameter.requires_grad]
    wrapped, optimizer = accelerator.prepare(student, adamw(trained, schedule.learning_rate))
    register_external(student.head_losses, student.head.linear)
    if student.teacher:
        wrapped.eval()
        with _naming_exhaustion("reading the teacher's states; give a smaller micro_batch_tokens"):
            student.teacher.read_missing(wrapped, accelerator.device, micro_batch_tokens or START_TOKENS)
            student.teacher.choose_temperature(accelerator.device)
    wrapped.train()
    history = checkpoints.load(accelerator, wrapped, optimizer) if checkpoints else []
    first: dict[str, float] = {}  # figures of the first step alone
    if student.teacher and not history:
        first["teacher_temperature"] = student.teacher.temperature
        if is_by_autocast(accelerator):
            first[rounding_floor.FIGURE] = rounding_floor.measure_floor(student, accelerator.device)
    for figures in history:
        on_step(figures)

    best = best_step(history) if keep_best else 0
    if evaluation and not history:
        before = _evaluate(evaluation, wrapped, student, accelerator, micro_batch_tokens)
        first |= {name + BEFORE: figure for name, figure in before.items()}
    gradient = Gradient(accelerator, wrapped, optimizer, MAX_GRAD_NORM)
    if not gradient.by_deepspeed:
        add_gradients_in_place(student.model, student.head)
    rest = range(len(history), len(steps))
    speed = Speed.for_model(student.model, rank_and_world()[1])
    with (
        attention_over_branches(student.model) as shares_prefixes,
        deferred_termination() as termination,
        ending_after_its_peer(termination),
        checkpoints or nullcontext(),
    ):
        train_step = TrainStep(
            wrapped, gradient, objective, collate, accelerator.device, micro_batch_tokens, shares_prefixes
        )
        for step in track(rest, len(rest), "distillation steps"):
            rate = schedule.learning_rate * schedule.rate(step, len(steps))
            for group in optimizer.param_groups:
                group["lr"] = rate
            collate.build_prompts(steps[step])
            started = time.perf_counter()
            tokens = sum(len(collate.input_tokens(row)) for row in steps[step])
            figures = train_step.run(step + 1, steps[step])  # which ends with figures that the device has computed
            speed.steps.append((tokens, time.perf_counter() - started))
            history.append({"step": step + 1, **figures, "learning_rate": rate, **first})
            first = {}
            if evaluation and evaluation.is_due(step + 1, len(steps)):
                history[-1] |= _evaluate(evaluation, wrapped, student, accelerator, micro_batch_tokens)
                best = best_step(history) if keep_best else 0
            on_step(history[-1])
            stopping = any(gather(termination.requested))
            # At the end too, so that no step is repeated if the model cannot be written.
            due = save_steps and ((step + 1) % save_steps == 0 or step + 1 == len(steps))
            if checkpoints and (stopping or due or best == step + 1):
                checkpoints.save(step + 1, accelerator, wrapped, optimizer, history, best)
            if checkpoints and stopping:
                checkpoints.wait()
            if stopping:
                raise TerminationSignal(f"stopped by SIGTERM after step {step + 1} of {len(steps)}")
    if speed.steps:
        card = torch.cuda.get_device_name() if accelerator.device.type == "cuda" else ""
        log.info("trained at %s", speed.describe(card, arithmetic(accelerator)))
    if checkpoints and 0 < best < len(steps):
        checkpoints.restore(best, accelerator, wrapped, optimizer)
        log.info("keeping the model after step %d of %d, the best on the held-out examples", best, len(steps))
    return wrapped, history


def _evaluate(
    evaluation: Evaluation, wrapped: Any, student: Student, accelerator: Accelerator, micro_batch_tokens: int
) -> dict[str, float]:
    """Measures the current student, and leaves it in training mode."""
    wrapped.eval()
    with _naming_exhaustion("an evaluation; give a smaller micro_batch_tokens"):
        found = evaluation.measure(wrapped, student.model, accelerator.device, micro_batch_tokens or START_TOKENS)
    wrapped.train()
    if not all(map(math.isfinite, found.values())):
        raise PosgapError("the model's figures on held-out data are not finite; lower learning_rate")
    return found


class Step:
    """An optimizer step under way: its rows, how they are read, and what is known of each so far.

    Losses and weights stay on the device, and the host counts which are known, so that it never waits for them.
    """

    def __init__(self, number: int, rows: Sequence[TrainingPrompt], layout: BatchLayout, device: torch.device):
        self.number = number
        self.rows = rows
        self.layout = layout
        self.losses = torch.zeros(len(rows), dtype=torch.float64, device=device)  # [N], equal on all processes
        self.is_known = [False] * len(rows)
        self.weights = torch.zeros_like(self.losses)  # [N], 0 until weighed
        self.in_gradient: list[int] = []  # the rows that are
        *others, last = layout.groups[-1]
        # A group's last micro-batch is added to the gradient first, those that are read twice after it.
        self.final = others[-1] if others else last

    def enter(self, rows: Sequence[int], losses: Tensor) -> None:
        """Enters the losses of some of the rows."""
        self.losses[index_on(self.losses.device, rows)] = losses.to(self.losses)
        for row in rows:
            self.is_known[row] = True

    def reweigh(self, objective: Objective) -> Tensor | float:
        """Weighs all rows with known losses; returns the factor for the rows that are already in the gradient."""
        before = self.weights
        self.weights = objective.weights(self.rows, self.losses, self.is_known)
        if not self.in_gradient:
            return 1.0
        index = index_on(self.losses.device, self.in_gradient)
        weighed = before[index].sum()
        return torch.where(weighed > 0, self.weights[index].sum() / weighed, 1.0)

    def read_losses(self) -> Tensor:
        """Waits for the losses [N] of all rows; raises `NotFinite` with the rows whose losses are not finite."""
        losses = self.losses.cpu()
        bad = (~losses.isfinite()).nonzero().flatten().tolist()
        if bad:
            raise NotFinite(
                f"step {self.number}: the loss of {len(bad)} of {len(self.rows)} prompts is not finite; lower "
                "learning_rate, or look at those prompts",
                self.number,
                [self.rows[i] for i in bad],
                losses[bad].tolist(),
            )
        return losses


@dataclass
class TrainStep:
    """Computes optimizer steps, each in micro-batches.

    R1's softmax needs all losses of a step. A late loss changes earlier weights by one common factor, so the running
    gradient is multiplied by it, and rows need not be read twice: see `Objective.weights`.
    """

    model: Any  # a module, or DeepSpeed's engine
    gradient: Gradient
    objective: Objective
    collate: Collator
    device: torch.device
    micro_batch_tokens: int
    shares_prefixes: bool = False  # whether prompts may share their common tokens

    def __post_init__(self) -> None:
        self.may_grow = not self.micro_batch_tokens and self.device.type != "cpu" and not self.gradient.by_deepspeed
        self.micro_batch_tokens = self.micro_batch_tokens or START_TOKENS
        self.sharing_is_checked = False
        self.rank, self.world = rank_and_world()
        self.exhausted = False  # whether this process has run out of memory in this step

    def run(self, number: int, rows: Sequence[TrainingPrompt]) -> dict[str, float]:
        """Makes one update from the global batch `rows` and returns its figures.

        If a process runs out of memory, it halves the micro-batches and begins the step again. It also does so if the
        gradient overflows because positions' losses differ by far; then it weighs all rows before the first gradient.
        """
        while True:
            step = Step(number, rows, self._lay_out(rows), self.device)
            try:
                with self.gradient.of_this_process():
                    self._accumulate(step)
                losses = step.read_losses()
            except _OutOfMemory:
                self._shrink_micro_batch(step)
                continue
            with _naming_exhaustion("the optimizer's update; take a machine with more"):
                norm = self.gradient.update()
            if math.isfinite(norm) or not self.gradient.disable_scaling_if_underflowed():
                break
            log.info(
                "step %d: positions differ too much to be weighed during the backward pass; from now on they are "
                "weighed before it",
                number,
            )
        if not math.isfinite(norm):
            raise NotFinite(
                f"step {number}: the gradient is not finite; lower learning_rate", number, rows, losses.tolist()
            )
        if self.may_grow:
            self._grow_micro_batch(step)
        loss = float((self.objective.weights(rows, losses) * losses).sum())
        return {"loss": loss, **self.objective.step_figures(rows, losses), "grad_norm": norm}

    def _lay_out(self, rows: Sequence[TrainingPrompt]) -> BatchLayout:
        """Lays out `rows`, each by itself or in bundles, whichever takes fewer tokens."""
        weight_groups = self.objective.weight_groups(rows)
        if not self.gradient.can_be_scaled:  # then all weights are to be known before the first gradient
            weight_groups = [key and "by loss" for key in weight_groups]
        prompts = [self.collate.input_tokens(row) for row in rows]
        lengths = [len(prompt) for prompt in prompts]
        layout = lay_out_alone(weight_groups, lengths, self.world, self.micro_batch_tokens)
        examples = [row.pair for row in rows]
        if not self.shares_prefixes or len(set(examples)) == len(rows):
            return layout
        shared = lay_out_shared(weight_groups, examples, prompts, self.world, self.micro_batch_tokens)
        if shared.cost >= layout.cost:
            return layout
        if not self.sharing_is_checked:
            self._check_sharing([rows[i] for i in max(shared.bundles, key=len)[-2:]])
        return shared if self.shares_prefixes else layout

    def _check_sharing(self, some: Sequence[TrainingPrompt]) -> None:
        """Checks once that a shared prefix yields the same hidden states, and turns sharing off if it does not."""
        same = False
        tolerance = 1e-3 if self.gradient.accelerator.mixed_precision == "no" else 0.05
        with self._noting_exhaustion(), torch.no_grad():
            alone = [self.model(self.collate([row]).to(self.device), states_alone=True) for row in some]
            together = self.collate.collate_shared([some]).to(self.device)
            read = lambda: self.model(together, states_alone=True)  # noqa: E731
            same = same_states(read, torch.cat(alone), together.branches, tolerance)
        if any(gather(self.exhausted)):
            return  # and checked again with the next micro-batch
        self.sharing_is_checked = True
        self.shares_prefixes = all(gather(same))
        if not self.shares_prefixes:
            log.info("common prefixes are not shared between prompts, because this model then gives other results")

    def _accumulate(self, step: Step) -> None:
        """Adds up the gradient of a step, and enters its rows' losses and weights."""
        for group in step.layout.groups:
            batches = {micro_batch: self._batches(step, micro_batch) for micro_batch in group}
            *read_twice, last = group
            for micro_batch in read_twice:  # too large to keep activations: losses now, gradients below
                with torch.no_grad():
                    self._record(step, micro_batch, self._read(batches[micro_batch]))
            own_losses = self._read(batches[last])
            self._record(step, last, own_losses)
            if group is step.layout.groups[-1] and self.gradient.by_deepspeed:
                step.read_losses()  # which are looked at before the last pass, since that updates
            self.gradient.scale(step.reweigh(self.objective))
            self._add_gradient(step, last, own_losses)
            for micro_batch in read_twice:
                self._add_gradient(step, micro_batch, self._read(batches[micro_batch]))
        if any(gather(self.exhausted)):
            raise _OutOfMemory

    def _batches(self, step: Step, micro_batch: MicroBatch) -> list[Batch]:
        """Collates what this process reads of a micro-batch, a batch for each call of the model."""
        batches = []
        for call in micro_batch.calls(self.rank, self.world):
            bundles = [[step.rows[row] for row in step.layout.bundles[index]] for index in call]
            batch = self.collate.collate_shared(bundles) if step.layout.shared else self.collate(list(chain(*bundles)))
            batches.append(batch.to(self.device))
        return batches

    def _read(self, batches: list[Batch]) -> Tensor | None:
        """Returns the losses of this process's rows; `None` if it is out of memory, now or before in this step."""
        if not self.exhausted:
            with self._noting_exhaustion():
                return torch.cat([self.model(batch) for batch in batches])
        return None

    def _record(self, step: Step, micro_batch: MicroBatch, own_losses: Tensor | None) -> None:
        """Enters all processes' losses of a micro-batch."""
        own = None if own_losses is None else own_losses.detach()
        if own is not None and self.world > 1:
            own = own.cpu()
        for rank, theirs in enumerate(gather(own)):
            if theirs is None:
                raise _OutOfMemory
            of_rank = step.layout.rows_of_rank(micro_batch, rank, self.world)
            step.enter(of_rank, theirs[: len(of_rank)])

    def _add_gradient(self, step: Step, micro_batch: MicroBatch, own_losses: Tensor | None) -> None:
        """Adds the gradient of this process's rows of a micro-batch; copies that fill up its share weigh nothing."""
        step.in_gradient += step.layout.rows_of_rank(micro_batch, 0, 1)
        if own_losses is None:
            return
        rows = index_on(self.device, step.layout.rows_of_rank(micro_batch, self.rank, self.world))
        own = step.weights[rows].to(own_losses)
        with self._noting_exhaustion():
            self.gradient.accumulate((own * own_losses[: len(own)]).sum(), micro_batch is step.final)

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

    def _grow_micro_batch(self, step: Step) -> None:
        """Makes micro-batches as large as a GPU's memory allows, from what the second step's took besides the memory
        that is in use from the first update on.
        """
        used = device_memory(self.device)
        if step.number > 1:
            largest = max(each.tokens for each in step.layout.micro_batches)
            fit = int((USABLE * used.total - used.standing) / max(used.peak - used.standing, 1) * largest)
            self.micro_batch_tokens = max(self.micro_batch_tokens, min(gather(fit)))
            self.may_grow = False
            log.info("micro-batches have at most %d tokens, which this GPU's memory holds", self.micro_batch_tokens)

    def _shrink_micro_batch(self, step: Step) -> None:
        """Forgets the gradient so far and halves the micro-batch; `PosgapError` if it is a single prompt."""
        layout = step.layout
        divisible = [each.tokens for each in layout.micro_batches if not layout.is_least(each)]
        self.exhausted = self.may_grow = False
        self.gradient.clear()
        gc.collect()
        torch.cuda.empty_cache()
        if not divisible:
            longest = max(each.tokens for each in layout.micro_batches)
            raise NoRoom(
                f"out of memory in step {step.number}, with a single prompt of {longest} tokens; {_LESS_MEMORY}"
            )
        self.micro_batch_tokens = max(divisible) // 2
        log.log(
            logging.INFO if self.rank else logging.WARNING,  # of the others only warnings are shown
            "step %d: out of memory; from now on micro-batches have at most %d tokens, and the step is repeated",
            step.number,
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
        raise NoRoom(f"out of memory in {where}, or {_LESS_MEMORY}") from None


class _OutOfMemory(Exception):
    """Some process has run out of memory; raised on all."""
