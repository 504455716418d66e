"""Pos2Distill-R1 in transformers' own Trainer, with posgap's callback: the gap while it closes.

    python benchmarks/trainer_gap.py [--seed 0] [--out runs/trainer-gap]

The loss is R1 by posgap's objects, the loop, the optimizer and the logging are the Trainer's: what somebody would write
who has a training of their own. It makes a tiny model that gets lost in the middle and its teacher's responses as the
demo does, trains, and writes docs/gap-during-training.png and the section of docs/results.md. Some five minutes, most
of them for sixteen sweeps.
"""

import argparse
import logging
import os
from datetime import date
from pathlib import Path
from typing import Any

import torch
from report import ROOT, write_section
from torch import Tensor
from transformers import PreTrainedModel, Trainer, TrainingArguments

import posgap
from posgap.demo import tiny_model
from posgap.demo.config import DemoConfig
from posgap.demo.run import examples
from posgap.distillation.batches import Collator, Pair, Row, advantageous, pair_up, plan
from posgap.distillation.config import TeacherConfig
from posgap.distillation.objectives import R1
from posgap.distillation.student import Student
from posgap.distillation.teacher_states import Teacher, TeacherStates, frozen_head
from posgap.foundation.tables import markdown
from posgap.generation.setup import prompt_builder
from posgap.measurement.config import SweepConfig
from posgap.measurement.plots import save_picture
from posgap.pipelines.smoke import OVERRIDES
from posgap.stages.sweep import sweep
from posgap.stages.teacher import teacher
from posgap.tasks.placements import all_placements
from posgap.tasks.reading import read_examples
from posgap.tasks.responses import read_responses

MICRO_BATCH_TOKENS = 16384
K = 4


class R1Trainer(Trainer):
    """Trains by R1. Its dataset are the numbers of `steps`, since the rows of a step are weighed by each other."""

    def __init__(
        self,
        model: PreTrainedModel,
        pairs: list[Pair],
        steps: list[list[Row]],
        collate: Collator,
        out: Path,
        **options: Any,
    ):
        self.objective = R1(advantageous(pairs), "paper", OVERRIDES["anchoring"])
        states = TeacherStates(out / "states", {"model": "base"})
        reader = Teacher(states, frozen_head(model, False, torch.device("cpu")), collate)
        self.student = Student(model, self.objective, reader)
        reader.read(self.student, torch.device("cpu"), MICRO_BATCH_TOKENS)
        self.steps, self.collate = steps, collate
        numbers = list(range(len(steps)))
        super().__init__(model, train_dataset=numbers, data_collator=lambda of: {"step": torch.tensor(of)}, **options)

    def compute_loss(self, model: PreTrainedModel, inputs: dict[str, Tensor], *_: Any, **__: Any) -> Tensor:
        """L = sum_r w_r L_r over the rows of the step."""
        rows = self.steps[int(inputs["step"])]
        losses = self.student(self.collate(rows))
        return (self.objective.weights(rows, losses.detach()) * losses).sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "trainer-gap")
    arguments = parser.parse_args()
    out = (arguments.out / f"seed-{arguments.seed}").absolute()
    out.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{out}/mlflow.db")
    logging.basicConfig(format="%(message)s")

    train_file, held_out = examples(DemoConfig(out=out, seed=arguments.seed), out)
    folder, _ = tiny_model.base_model(out, arguments.seed, tiny_model.STANDARD)
    asked: dict[str, Any] = {"model": str(folder), "max_new_tokens": OVERRIDES["max_new_tokens"]}
    best = sweep(SweepConfig(examples=held_out, out=out / "base", limit=200, **asked))
    responses = teacher(TeacherConfig(examples=train_file, sweep=best, out=out / "responses", **asked))

    pairs = pair_up(read_examples(train_file), read_responses(responses))
    collate = Collator(pairs, prompt_builder("kv", str(folder), OVERRIDES["max_new_tokens"]))
    best_places = advantageous(pairs)
    places = [placement.positions for placement in all_placements(pairs[0].response.n_docs, 1)]
    model = posgap.load_model(str(folder), "float32")
    objective = R1(best_places, "paper", OVERRIDES["anchoring"])
    epochs, batch = OVERRIDES["epochs"], OVERRIDES["batch_size"]
    steps = plan(len(pairs), places, objective.rows, K, epochs, batch, arguments.seed, teachers=best_places)
    options = TrainingArguments(
        output_dir=str(out / "trainer"),
        max_steps=len(steps),
        per_device_train_batch_size=1,
        train_sampling_strategy="sequential",
        learning_rate=OVERRIDES["learning_rate"],
        warmup_steps=OVERRIDES["warmup_steps"],
        lr_scheduler_type="linear",
        remove_unused_columns=False,
        save_strategy="no",
        logging_steps=20,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        seed=arguments.seed,
    )
    trainer = R1Trainer(model, pairs, steps, collate, out, args=options, processing_class=collate.build.tokenizer)
    callback = posgap.PositionGapCallback(
        trainer, held_out, every=20, max_new_tokens=OVERRIDES["max_new_tokens"], limit=200
    )
    trainer.add_callback(callback)
    trainer.train()
    drawn = callback.frame.plot(x="step", y=["gap", "mean"], marker="o", ylim=(0, 103), ylabel="points")
    save_picture(drawn.figure, ROOT / "docs" / "gap-during-training.png")
    frame = callback.frame[["step", "gap", "gap_low", "gap_high", "mean", "at_1", "at_5", "at_10", "at_15", "at_20"]]
    rows = [
        [f"{row.step:.0f}", f"{row.gap:.1f}", f"{row.gap_low:.1f} to {row.gap_high:.1f}"]
        + [f"{value:.1f}" for value in row[4:]]
        for row in (r for _, r in frame.iterrows())
    ]
    head = ["step", "gap", "gap, 95 %", "mean", *(f"pos {i}" for i in (1, 5, 10, 15, 20))]
    write_section(
        "results", "trainer-gap", SECTION.format(date=date.today(), seed=arguments.seed, table=markdown(head, rows))
    )


SECTION = """\
## The gap during a training by transformers' Trainer

Written by `benchmarks/trainer_gap.py` on {date}, two CPU cores, seed {seed}.

R1 by posgap's losses in transformers' own training loop, with the demo's figures, watched by `PositionGapCallback`
every 20 steps: 200 held-out examples at each of 20 positions.

{table}

![Gap and mean over the steps](gap-during-training.png)
"""

if __name__ == "__main__":
    main()
