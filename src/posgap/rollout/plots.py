"""Pictures of rollouts, in one style."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from posgap.files import atomic

COLORS = ("#c2410c", "#0f766e", "#4338ca", "#a16207", "#be185d", "#334155")
LEAST_DECADES = 6  # shares below 10^-6 of a uniform one are not told apart


def styled(axes: Axes, **labels) -> Axes:
    axes.set(**labels)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def distribution_curves(curves: Mapping[str, np.ndarray], ylabel: str = "share of the last token") -> Figure:
    """Distributions [N] over positions on a logarithmic scale, with the uniform one for comparison."""
    figure, axes = plt.subplots(figsize=(8, 4.2), dpi=144, layout="constrained")
    n = len(next(iter(curves.values())))
    for (label, distribution), color in zip(curves.items(), COLORS * len(curves)):
        few = {"marker": "o", "markersize": 3} if n <= 64 else {}
        axes.plot(np.arange(1, n + 1), distribution, color=color, label=label, linewidth=1.5, **few)
    axes.axhline(1 / n, color="#94a3b8", linewidth=1, linestyle="--", label="uniform")
    lowest = min(d[d > 0].min() for d in map(np.asarray, curves.values()))
    axes.set_yscale("log")
    axes.set_ylim(bottom=max(lowest / 1.5, 10.0**-LEAST_DECADES / n), top=1.5)
    styled(axes, xlabel="input position (token)", ylabel=ylabel, xlim=(1 - 0.01 * n, n * 1.01))
    axes.legend(frameon=False, loc="best")
    return figure


def save(figure: Figure, path: Path) -> None:
    """Writes the figure as PNG and closes it."""
    with atomic(path) as partial:
        figure.savefig(partial, format="png", metadata={"Software": None})
    plt.close(figure)
