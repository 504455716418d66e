"""Training that watches the gap: sweeps of the student over held-out examples, the best parameters kept, and an end.

The figures of a sweep stand in the history of the step after which it was made, so that they are in MLflow, in
`history.jsonl` and in checkpoints as the losses are, and a run that goes on from a checkpoint goes on with its curve.
Whether to end is read off the history alone.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator, DistributedType
from transformers import PreTrainedModel
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from posgap.distillation.batches import Collator, Pair
from posgap.distillation.checkpoints import History
from posgap.distillation.config import DistillConfig
from posgap.distillation.processes import gather, rank_and_world, trained_parameters
from posgap.distillation.student import Student
from posgap.foundation import files
from posgap.foundation.errors import PosgapError
from posgap.generation.generator import Sampling
from posgap.generation.transformers import TransformersGenerator, borrowed
from posgap.measurement.statistics import accuracy, difference_interval, gap
from posgap.models.loading import on_device
from posgap.storage.folders import ResumableFolder
from posgap.storage.lineage import training_examples
from posgap.tasks.content import among, contents
from posgap.tasks.examples import AnyExample
from posgap.tasks.placements import Placement, require_n_gold, spaced_positions
from posgap.tasks.positions import format_positions
from posgap.tasks.reading import read_examples
from posgap.tasks.registry import TASKS

log = logging.getLogger(__name__)
OPTIONS = {"watch_every", "watch_placements", "stop_gap", "max_hours"}  # of the config; they change no step
BATCH_TOKENS = 32768
SPREAD = 5  # placements that are watched where none are given, beside the advantageous ones
FALL = 2.0  # points that the teacher's placement may lose for certain; of 60 examples three lost are more than none
LEARNT_BY_HEART = 10.0  # points by which training questions are answered better than held-out ones
_BEST = "best.json"


def watched_examples(config: DistillConfig, pairs: Sequence[Pair]) -> list[AnyExample]:
    """The held-out examples of `config.watch`, or the last of `config.examples`; none where neither is asked for.

    Raises `PosgapError` where the model learns any of them, or has learnt it before, and where there is nothing by
    which to end as the config asks.
    """
    if not config.watch and not config.watch_last:
        if config.stop_gap:
            raise PosgapError("stop_gap: the gap is that of held-out examples; give them with --watch or --watch-last")
        return []
    file = config.watch or config.examples
    examples = read_examples(file)[-config.watch_last :]
    learnt = training_examples(config.model).union(contents(pair.example for pair in pairs))
    if same := among(examples, learnt):
        raise PosgapError(
            f"{file}: {len(same)} of {len(examples)} examples are trained on, the first of them {same[0].id}; "
            "watch others, which are neither these nor those of the gate"
        )
    return examples


def watched_placements(config: DistillConfig, advantageous: Sequence[Placement]) -> list[Placement]:
    """The placements to watch, the advantageous ones first: those given, or some that are spread evenly."""
    n_docs, n_gold = advantageous[0].n_docs, len(advantageous[0].positions)
    if config.watch_placements or n_gold > 1:
        others = TASKS[config.task].placements(n_docs, config.watch_placements)
    else:
        others = [Placement((position,), n_docs) for position in spaced_positions(n_docs, SPREAD)]
    for placement in others:
        require_n_gold(placement, n_gold)
    return [*advantageous, *(placement for placement in others if placement not in advantageous)]


class Watch:
    """Sweeps a student every so many steps, keeps the best of its parameters, and says when training is to end.

    `folder` keeps them until the model is complete. Best is where the worst placement is best, then the mean, among
    the steps at which no advantageous placement is proven to have fallen by more than `FALL`. Every process calls
    every method; each of them asks its share of the examples, with parameters that it holds whole: where ZeRO-3 or FSDP
    spread them, with those of a model of its own, which `load` gives it.
    """

    def __init__(
        self,
        config: DistillConfig,
        examples: Sequence[AnyExample],
        collate: Collator,
        accelerator: Accelerator,
        folder: ResumableFolder,
        mixed: bool,
        load: Callable[[], PreTrainedModel],
    ):
        self.examples, self.collate, self.folder = examples, collate, folder
        self.accelerator, self.mixed = accelerator, mixed
        self.every, self.stop_gap, self.max_hours = config.watch_every, config.stop_gap, config.max_hours
        advantageous = sorted({pair.response.at for pair in collate.pairs})
        self.n_best, self.placements = len(advantageous), watched_placements(config, advantageous)
        self.base = np.empty((0, 0))
        self.began, self.hours_before = time.monotonic(), -1.0
        self.load = load
        self.whole: PreTrainedModel | None = None  # where the student's parameters are spread over processes

    def begin(self, student: Student) -> None:
        """Sweeps the student before its first step: what falls later falls from there."""
        if self.examples:
            if rank_and_world()[0] == 0:
                self.folder.pull()
            if are_spread(self.accelerator):
                # With it transformers loads models in pieces, and has processes generate in step with each other.
                unset_hf_deepspeed_config()
                self.whole = self.load()
            self.base = self._correct(self.whole or student.model, self.examples)
            at = accuracy(self.base)
            log.info("held out, before training: mean %.1f, gap %.1f", at.mean(), gap(at))

    def after(self, step: int, last: bool, history: History, trained: Any) -> dict[str, float]:
        """The figures that step `step` has besides its losses. `trained` is the student as Accelerate wraps it."""
        figures = {}
        if self.max_hours:
            if self.hours_before < 0:
                self.hours_before = history[-1].get("hours", 0.0) if history else 0.0
            figures["hours"] = gather(self.hours_before + (time.monotonic() - self.began) / 3600)[0]
        if self.examples and (last or step % self.every == 0):
            figures |= self._swept(step, trained)
        return figures

    def over(self, history: History) -> str:
        """Why training is to end after the steps of the history; empty where it is not."""
        if not history:
            return ""
        if self.max_hours and history[-1].get("hours", 0.0) >= self.max_hours:
            return f"{self.max_hours:g} hours are over"
        swept = [row for row in history if "held_out_gap" in row]
        if not self.stop_gap or not swept or swept[-1] is not history[-1]:
            return ""
        # A model that answers nowhere has no gap either.
        lost = swept[-1]["held_out_fall"] > FALL or swept[-1]["held_out_gain"] < 0
        if swept[-1]["held_out_gap"] <= self.stop_gap and not lost:
            return f"the held-out gap is {swept[-1]['held_out_gap']:.1f}, and {self.stop_gap:g} was asked for"
        # A position can fall for a while in the first steps.
        if len(swept) > 1 and all(row["held_out_fall"] > FALL for row in swept[-2:]):
            where = " or ".join(format_positions(at.positions) for at in self.placements[: self.n_best])
            return f"position {where} has fallen by {swept[-1]['held_out_fall']:.1f} for certain"
        return ""

    def model(self, student: Student) -> PreTrainedModel:
        """The student's model as it is now, with parameters that each process holds whole where there are examples to
        be answered; so it may be a copy."""
        if self.whole is None:
            return student.model
        self.whole.load_state_dict(trained_parameters(student.model, self.accelerator, everywhere=True), strict=False)
        return self.whole

    def best(self, model: torch.nn.Module, history: History) -> dict[str, torch.Tensor]:
        """The trained parameters of the best step, by name, which `model` then has, too; none where it was the last.

        For the process that writes.
        """
        file = self.folder.folder / _BEST
        if not self.examples or not file.is_file():
            return {}
        best = files.read_json(file)
        log.info(
            "held out: step %d of %d is the best and is kept: mean %.1f, gap %.1f",
            best["step"], len(history), best["held_out_mean"], best["held_out_gap"],
        )  # fmt: skip
        if best["step"] == history[-1]["step"]:
            return {}
        state = torch.load(self.folder.folder / _parameters(best["step"]), map_location="cpu", weights_only=True)
        model.load_state_dict(state, strict=False)  # of adapters the base is not among them
        return state

    def conclude(self, student: Student, history: History) -> str:
        """One line that says where training fits and held-out does not, or neither does; empty where all is well.

        As many training examples as held-out ones are asked, at the same placements.
        """
        if not self.examples or "held_out_mean" not in history[-1] or len(self.placements) == self.n_best:
            return ""
        some = [pair.example for pair in self.collate.pairs][: len(self.examples)]
        learnt = self._correct(self.model(student), some)[:, self.n_best :].mean(axis=1)
        held_out = history[-1]["held_out_elsewhere"]
        noise = 200 * np.sqrt(learnt.var() / len(learnt) + held_out / 100 * (1 - held_out / 100) / len(self.examples))
        fits = 100 * float(learnt.mean())
        asked = f"{fits:.1f} % of {len(some)} training questions and {held_out:.1f} % of {len(self.examples)} held-out"
        if fits - held_out > max(LEARNT_BY_HEART, noise):
            return f"training fits, held-out does not: {asked} ones are right at other positions; more examples"
        best = history[-1]["held_out_best_position"]
        if best - fits > max(LEARNT_BY_HEART, noise):
            return (
                f"training does not fit: {asked} ones are right at other positions; more steps or a higher rate, "
                "unless the base model lacks the ability there"
            )
        return ""

    def _swept(self, step: int, trained: Any) -> dict[str, float]:
        student = self.accelerator.unwrap_model(trained)
        model = self.model(student)
        correct = self._correct(model, self.examples)
        at = accuracy(correct)
        best, elsewhere = at[: self.n_best], at[self.n_best :]
        fell = (self.base - correct).T[: self.n_best]
        figures = {
            "held_out_mean": float(at.mean()),
            "held_out_gain": float(at.mean() - accuracy(self.base).mean()),
            "held_out_gap": gap(at),
            "held_out_worst": float(at.min()),
            "held_out_best_position": float(best.mean()),
            "held_out_elsewhere": float(elsewhere.mean() if len(elsewhere) else best.mean()),
            "held_out_fall": max(0.0, *(float(difference_interval(differences)[0]) for differences in fell)),
        }
        self._keep({"step": step, **figures}, trained_parameters(model, self.accelerator))
        return figures

    def _keep(self, figures: dict[str, float], state: dict[str, torch.Tensor]) -> None:
        """Keeps these parameters where they are better than those that are kept. A run that has gone on from a
        checkpoint may pass the kept step once more."""
        if rank_and_world()[0]:
            return
        folder, step = self.folder.folder, figures["step"]
        kept = files.read_json(folder / _BEST) if (folder / _BEST).is_file() else None
        if kept and _rank(kept) >= _rank(figures):
            return
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with files.atomic(folder / _parameters(step)) as partial:
                torch.save({name: tensor.detach().cpu() for name, tensor in state.items()}, partial)
            files.write_json(folder / _BEST, figures)
            self.folder.push([folder / _parameters(step), folder / _BEST])
            if kept and kept["step"] != step:
                (folder / _parameters(kept["step"])).unlink(missing_ok=True)
                self.folder.drop([_parameters(kept["step"])])
        except (OSError, RuntimeError, PosgapError) as error:
            # The other processes are at the next step already.
            reason = str(error).splitlines()[0]
            log.warning("step %d is the best so far, and could not be kept whole in %s (%s)", step, folder, reason)

    def _correct(self, model: PreTrainedModel, examples: Sequence[AnyExample]) -> np.ndarray:
        """The scores `[E, P]` of greedy responses to all examples at all placements, on every process."""
        rank, world = rank_and_world()
        own = range(len(examples))[rank::world]
        build = self.collate.build
        scores = np.zeros((len(own), len(self.placements)))
        device = self.accelerator.device
        with borrowed(model), torch.autocast(device.type, torch.bfloat16, enabled=self.mixed):
            generator = TransformersGenerator(model, build.tokenizer, BATCH_TOKENS, device=str(device))
            groups = ([build.prompt(examples[i], at) for at in self.placements] for i in own)
            for row, at, completion in generator.generate(groups, Sampling.of(build)):
                answers = build.task.answers(examples[own[row]], self.placements[at])
                scores[row, at] = build.task.score(completion.text, answers)
        if model is self.whole:
            on_device(model, "cpu")  # the GPU's memory is for training
        correct = np.empty((len(examples), len(self.placements)))
        for each, theirs in enumerate(gather(scores)):
            correct[each::world] = theirs
        return correct


def are_spread(accelerator: Accelerator) -> bool:
    """Whether each process holds a part of the parameters only."""
    plugin = accelerator.state.deepspeed_plugin
    return accelerator.distributed_type == DistributedType.FSDP or (plugin is not None and plugin.zero_stage == 3)


def require_whole_parameters(accelerator: Accelerator, what: str) -> None:
    """Raises `PosgapError`, which begins with `what`, where each process holds a part of the parameters only: it could
    not generate by itself."""
    if are_spread(accelerator):
        raise PosgapError(
            f"{what}: ZeRO-3 and FSDP spread the parameters over processes, and each must hold them whole to answer; "
            "take --deepspeed zero2, or sweep what is written"
        )


def _parameters(step: float) -> str:
    return f"step-{step:.0f}.pt"


def _rank(figures: dict[str, float]) -> tuple[bool, float, float]:
    """By which steps are compared: higher is better."""
    return figures["held_out_fall"] <= FALL, figures["held_out_worst"], figures["held_out_mean"]
