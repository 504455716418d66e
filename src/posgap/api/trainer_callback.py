"""The position gap during a training by transformers' Trainer, and so by TRL, Axolotl and all that is built on it."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from posgap.api.library import Rows, examples, sweep
from posgap.api.results import LengthsResult, SweepResult
from posgap.distillation.watching import require_whole_parameters
from posgap.foundation.errors import PosgapError

if TYPE_CHECKING:
    from pathlib import Path

    import pandas


class PositionGapCallback(TrainerCallback):
    """Sweeps the model before training, as it goes on and after it, and logs gap, mean and accuracy at each placement.

        trainer.add_callback(posgap.PositionGapCallback(trainer, "held-out.jsonl", task="qa", positions=[1, 10, 20]))

    The figures go wherever the trainer logs to: `eval_position_gap`, `eval_position_mean`, `eval_accuracy_at_7`, and
    `eval_position_unanswered`, the percent of prompts without an answer, which count as wrong. They are also among the
    metrics of an evaluation, so that `metric_for_best_model="position_gap"` with `greater_is_better=False` keeps the
    checkpoint with the smallest gap. Take examples that the model does not learn; a hundred at five positions tell a
    gap of some 15 points from none.

    `rows`, `task` and `options` are those of `posgap.sweep`. The model is swept at each evaluation of the trainer and,
    unless it is 0, every `every` steps besides. Processes of a launch share the examples; each must hold the whole
    model, so ZeRO-3 and FSDP are refused by a `PosgapError` as training begins.
    """

    def __init__(
        self,
        trainer: Trainer,
        rows: "str | Path | pandas.DataFrame | Rows",
        task: str = "kv",
        *,
        every: int = 0,
        **options: Any,
    ):
        self.trainer, self.examples, self.task, self.every = trainer, examples(rows), task, every
        # A model that says nothing yet, or nothing any more, must not end its training.
        self.options: Mapping[str, Any] = {"max_unanswered": 100.0, "quiet": True} | options
        self.results: dict[int, SweepResult] = {}

    @property
    def frame(self) -> "pandas.DataFrame":
        """A row a sweep: `step`, `gap` with the ends `gap_low` and `gap_high` of its 95 % interval, `mean`, and the
        accuracy at each placement, `at_7`."""
        import pandas as pd

        rows = [
            {"step": step, "gap": result.gap.value, "gap_low": result.gap.low, "gap_high": result.gap.high}
            | {"mean": result.mean.value}
            | {f"at_{name}": value for name, value in zip(result.figures.names, result.figures.accuracy)}
            for step, result in self.results.items()
        ]
        return pd.DataFrame(rows)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        require_whole_parameters(self.trainer.accelerator, type(self).__name__)
        self._sweep(state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.every and state.global_step % self.every == 0:
            self._sweep(state.global_step)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        figures = self._sweep(state.global_step)
        if metrics is not None:
            metrics |= figures

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._sweep(state.global_step)

    def _sweep(self, step: int) -> dict[str, float]:
        """The figures of a step, swept and logged once."""
        new = step not in self.results
        if new:
            trainer = self.trainer
            model, processor = trainer.accelerator.unwrap_model(trainer.model), trainer.processing_class
            tokenizer: Any = getattr(processor, "tokenizer", processor)  # that of a processor for pictures too
            with trainer.accelerator.autocast():
                swept = sweep(model, self.examples, self.task, tokenizer=tokenizer, together=True, **self.options)
            if isinstance(swept, LengthsResult):
                raise PosgapError("PositionGapCallback: sweeps at one length at a time; give one of the `lengths`")
            self.results[step] = swept
        of_step = self.results[step].figures
        figures = {"eval_position_gap": of_step.gap, "eval_position_mean": of_step.mean}
        if of_step.outcomes:
            figures["eval_position_unanswered"] = of_step.outcomes.share
        figures |= {f"eval_accuracy_at_{name}": value for name, value in zip(of_step.names, of_step.accuracy)}
        if new:
            self.trainer.log(dict(figures))
        return figures
