"""The experiments: after Wu et al. (ICML 2025), at sizes at which networks learn the task; a quick one and a whole one.

At the paper's own sizes networks stay copiers, which answer at chance, so that their gaps are those of no solution.
"""

from dataclasses import dataclass, replace

from posgap.rollout.in_context import TaskSizes
from posgap.rollout.networks import Design
from posgap.rollout.trials import Training, Trial


@dataclass(frozen=True)
class Cell:
    """One bar group or table row: trials that differ only in their seed."""

    panel: str
    name: str
    design: Design


@dataclass(frozen=True)
class Preset:
    """An experiment: its cells, each trained for `seeds` seeds."""

    cells: tuple[Cell, ...]
    sizes: TaskSizes
    training: Training
    seeds: int

    def trials(self, first: int, seeds: int) -> list[tuple[Cell, Trial]]:
        """A trial of every cell for each of `seeds` seeds, counted up from `first`."""
        return [
            (cell, Trial(cell.design, self.sizes, seed)) for cell in self.cells for seed in range(first, first + seeds)
        ]


_PANEL = "decay and residuals"
_CAUSAL = Cell(_PANEL, "causal, depth 2", Design(2))
_WINDOW = Cell(_PANEL, "window 9, depth 2", Design(2, "window", width=9))
_PREFIX = Cell(_PANEL, "prefix 4, depth 2", Design(2, "prefix", prefix=4))
# A task that networks learn: items of a class hardly differ, two of each of four classes stand in a sequence (a
# copier is right in a quarter), and so many classes with so few labels cannot be learned by heart.
_SIZES = TaskSizes(size=32, burstiness=2, classes=8192, labels=8, spread=0.1)
_LEARNED = Preset(
    (_CAUSAL, Cell(_PANEL, "causal, depth 3", Design(3)), _WINDOW, _PREFIX),
    _SIZES,
    Training(3000, 64, 3e-3, tests=2000),
    seeds=5,
)

PRESETS = {"quick": replace(_LEARNED, cells=(_CAUSAL, _WINDOW), seeds=1), "learned": _LEARNED}


def preset(name: str, **changes) -> Preset:
    """The preset called `name`, its training changed by those of `changes` that are not 0."""
    chosen = PRESETS[name]
    return replace(chosen, training=replace(chosen.training, **{k: v for k, v in changes.items() if v}))
