"""The experiments: after Wu et al. (ICML 2025), at sizes at which networks learn the task; a quick one and a whole one.

At the paper's own sizes networks stay copiers, which answer at chance, so that their gaps are those of no solution.
"""

from dataclasses import dataclass, replace

from posgap.rollout.in_context import TaskSizes
from posgap.rollout.networks import Design
from posgap.rollout.trials import Training


@dataclass(frozen=True)
class Preset:
    """An experiment: its designs by name, each trained for `seeds` seeds."""

    designs: dict[str, Design]
    sizes: TaskSizes
    training: Training
    seeds: int


_DESIGNS = {
    "causal, depth 2": Design(2),
    "causal, depth 3": Design(3),
    "window 9, depth 2": Design(2, "window", width=9),
    "prefix 4, depth 2": Design(2, "prefix", prefix=4),
}
# A task that networks learn: items of a class hardly differ, two of each of four classes stand in a sequence (a
# copier is right in a quarter), and so many classes with so few labels cannot be learned by heart.
_SIZES = TaskSizes(size=32, burstiness=2, classes=8192, labels=8, spread=0.1)
_LEARNED = Preset(_DESIGNS, _SIZES, Training(3000, 64, 3e-3, tests=2000), seeds=5)
_QUICK = {name: _DESIGNS[name] for name in ("causal, depth 2", "window 9, depth 2")}

PRESETS = {"quick": replace(_LEARNED, designs=_QUICK, seeds=1), "learned": _LEARNED}
