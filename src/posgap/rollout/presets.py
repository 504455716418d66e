"""The experiments of Wu et al. (ICML 2025), one preset per figure, and a quick one."""

from dataclasses import dataclass, field, replace

from posgap.rollout.in_context import TaskSizes
from posgap.rollout.networks import Design, Encoding
from posgap.rollout.trials import Training, Trial


@dataclass(frozen=True)
class Cell:
    """One bar group, table row or map of a figure: trials that differ only in their seed."""

    panel: str
    name: str
    design: Design
    places: tuple[str, ...] = ()


@dataclass(frozen=True)
class Preset:
    """An experiment: its cells, and the kind of figure it `shows` ("gaps", "sinks" or "maps")."""

    cells: tuple[Cell, ...]
    shows: str = "gaps"
    sizes: TaskSizes = field(default_factory=TaskSizes)
    training: Training = field(default_factory=Training)
    seeds: int = 5

    def trials(self, first: int, seeds: int) -> list[tuple[Cell, Trial]]:
        """A trial of every cell for each of `seeds` seeds, counted up from `first`."""
        return [
            (cell, Trial(cell.design, self.sizes, seed, cell.places))
            for cell in self.cells
            for seed in range(first, first + seeds)
        ]


def _depths(residual: bool, depths: tuple[int, ...], encodings: tuple[Encoding, ...] = ("none", "decay", "rope")):
    panel = "residual" if residual else "no residual"
    return tuple(
        Cell(panel, f"{encoding}, depth {depth}", Design(depth, "causal", encoding, residual))
        for encoding in encodings
        for depth in depths
    )


def _biased(depth: int, *biases: tuple[str, ...]) -> tuple[Cell, ...]:
    return tuple(
        Cell(
            f"trained on {' and '.join(places)}",
            f"{mask} mask, {encoding}",
            Design(depth, mask, encoding, True),
            places,
        )
        for places in biases
        for mask in ("full", "causal")
        for encoding in ("none", "sin", "rope")
    )


_SINKS = (
    Cell("causal mask", "causal", Design(2)),
    *(Cell("sliding window", f"w = {w}", Design(2, "window", width=w)) for w in (5, 9, 13)),
    *(Cell("prefix", f"K = {k}", Design(2, "prefix", prefix=k)) for k in (2, 4, 6)),
)
# The paper names depths 2, 4 and 6 without residuals; with them, only figure 3's 22.
_WITHOUT, _WITH = _depths(False, (2, 4, 6)), _depths(True, (2, 6, 12, 22))
_ENDS, _ONE_PLACE = ("first", "last"), (("first",), ("middle",), ("last",))
_VOCABULARY = TaskSizes(vocabulary=True)

PRESETS = {
    "figure2": Preset(_WITHOUT + _WITH),
    "figure3": Preset(_biased(22, _ENDS)),
    "figure4": Preset(_WITHOUT),
    "figure5": Preset(_WITH),
    "figure6": Preset(_biased(22, *_ONE_PLACE)),
    "figure7": Preset(_SINKS[:1], "maps", seeds=1),
    "figure8": Preset(_SINKS, "sinks"),
    "figure9": Preset(_WITHOUT, sizes=_VOCABULARY),
    "figure10": Preset(_WITH, sizes=_VOCABULARY),
    "figure11": Preset(_biased(22, _ENDS, *_ONE_PLACE), sizes=_VOCABULARY),
    "figure12": Preset(_SINKS[:1], "maps", _VOCABULARY, seeds=1),
    "figure13": Preset(_SINKS, "sinks", _VOCABULARY),
    # A task that networks learn: items of a class hardly differ, two of each of four classes stand in a sequence (a
    # copier is right in a quarter), and so many classes with so few labels cannot be learned by heart.
    "learned": Preset(
        (
            Cell("decay and residuals", "causal, depth 2", Design(2, "causal", "decay", True)),
            Cell("decay and residuals", "causal, depth 3", Design(3, "causal", "decay", True)),
            Cell("decay and residuals", "window 9, depth 2", Design(2, "window", "decay", True, width=9)),
            Cell("decay and residuals", "prefix 4, depth 2", Design(2, "prefix", "decay", True, prefix=4)),
        ),
        sizes=TaskSizes(size=32, burstiness=2, classes=8192, labels=8, spread=0.1),
        training=Training(3000, 64, 3e-3, tests=2000),
    ),
    # Smaller and trained shorter: enough for the signs of the paper's gaps, not for their sizes.
    "quick": Preset(
        (
            *_depths(False, (1, 2, 3), ("none",)),
            *_depths(False, (2,), ("decay",)),
            *(c for c in _biased(2, _ENDS) if c.design.mask == "causal"),
        ),
        sizes=TaskSizes(size=32),
        training=Training(3500, 64, 3e-3, tests=2000),
        seeds=3,
    ),
}


def preset(name: str, **changes) -> Preset:
    """The preset called `name`, its training changed by those of `changes` that are not 0."""
    chosen = PRESETS[name]
    return replace(chosen, training=replace(chosen.training, **{k: v for k, v in changes.items() if v}))
