"""Tiny base models with their data, and the stages run on them (sweep, teacher, distill), for the other benchmarks.

What is complete is reused, so that an interrupted run goes on.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from report import ROOT

from posgap.data.config import ImportConfig
from posgap.data.verbs import import_examples
from posgap.demo import tiny_model
from posgap.distillation.config import DistillConfig, TeacherConfig
from posgap.measurement.config import SweepConfig
from posgap.measurement.sweeps import Sweep, read_sweep
from posgap.stages.distill import distill
from posgap.stages.sweep import sweep
from posgap.stages.teacher import teacher
from posgap.tasks.reading import read_examples, write_examples

sys.path.append(str(ROOT / "tests"))
import tiny_recipes

# A model of 100,000 parameters does not move at the paper's 3e-6. All else is the paper's, but
# for smaller steps, and 500 examples where it has 300.
PRESET = {"learning_rate": 1e-3, "warmup_steps": 5, "epochs": 2, "k": 4, "save_steps": 0}
EXAMPLES, EXAMPLES_A_STEP = 500, 16
R1 = "R1"  # the name of a model trained by it


@dataclass(frozen=True)
class Bench:
    """A tiny base model with its training pool and held-out examples."""

    folder: Path
    seed: int
    model: Path
    pool: Path
    held_out: Path
    task: str = "kv"
    max_new_tokens: int = 4

    @property
    def _shared(self) -> dict:
        return {"task": self.task, "max_new_tokens": self.max_new_tokens, "seed": self.seed}

    def swept(self, model: Path, name: str, n_docs: int = 20, **how) -> Path:
        return sweep(
            SweepConfig(
                examples=self.held_out, model=str(model), label=name, n_docs=n_docs,
                out=self.folder / f"sweep-{name}-{n_docs}", **self._shared, **how,
            )
        )  # fmt: skip

    def sweep(self, model: Path, name: str, n_docs: int = 20) -> Sweep:
        return read_sweep(self.swept(model, name, n_docs))

    def base(self, n_docs: int = 20) -> Sweep:
        return self.sweep(self.model, "base", n_docs)

    def examples(self, count: int) -> Path:
        """`count` examples of the pool, drawn by seed; a smaller draw is part of a larger one."""
        out = self.folder / f"train-{count}.jsonl.gz"
        pool = read_examples(self.pool)
        order = np.random.default_rng(self.seed).permutation(len(pool))[:count]
        write_examples(out, [pool[i] for i in order])
        return out

    def responses(self, count: int = EXAMPLES, **how) -> Path:
        self.base()
        name = "-".join(["responses", str(count), *(f"{k}={v}" for k, v in how.items())])
        return teacher(
            TeacherConfig(
                examples=self.examples(count), model=str(self.model), sweep=self.folder / "sweep-base-20",
                out=self.folder / name, **self._shared, **how,
            )
        )  # fmt: skip

    def distilled(
        self, name: str, responses: Path | None = None, count: int = EXAMPLES, preset: dict = PRESET, **how
    ) -> Path:
        values = preset | how
        if "k" in values:
            anchored = values.get("method", "r1") == "r1" and values.get("anchoring", 1.0) > 0
            # So that all methods take as many steps.
            values = {"batch_size": EXAMPLES_A_STEP * (values["k"] + anchored)} | values
        return distill(
            DistillConfig(
                examples=self.examples(count), responses=responses or self.responses(count), model=str(self.model),
                task=self.task, seed=self.seed, work=self.folder / "work", out=self.folder / f"model-{name}",
                **values,
            )
        )  # fmt: skip

    def after(self, name: str, responses: Path | None = None, count: int = EXAMPLES, **how) -> Sweep:
        """The sweep of a model distilled as `how` says."""
        name = name.replace(" ", "")
        return self.sweep(self.distilled(name, responses, count, **how), name)


def retrieval_bench(out: Path, data: Path, recipe: str, seed: int) -> Bench:
    """The tiny model of a recipe of `tiny_recipes.RECIPES` with its data."""
    folder = out / f"{recipe}-{seed}"
    cut = {"key_digits": tiny_model.KEY_DIGITS, "value_digits": tiny_model.VALUE_DIGITS, "input": data, "seed": seed}
    pool = import_examples(ImportConfig(out=folder / "pool.jsonl.gz", last=100, queries=10, **cut))
    held_out = import_examples(ImportConfig(out=folder / "held-out.jsonl.gz", first=101, last=300, **cut))
    return Bench(folder, seed, tiny_recipes.kept(recipe, seed), pool, held_out)
