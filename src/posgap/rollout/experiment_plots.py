"""The experiments' figure: gaps as bars."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from posgap.measurement.plots import COLORS
from posgap.rollout.plots import styled


def _with_accuracy(cell: dict) -> str:
    """A setting's name, with its accuracy on novel classes beside chance: what its gap is a gap of."""
    return cell["name"].replace(", ", "\n") + f"\n{cell['accuracy']['any']:.0f} % (chance {cell['chance']:.0f})"


def gap_bars(summary: list[dict]) -> Figure:
    """Gaps [a, b] - [b, a] by pair of places: bars per setting, one dot per seed."""
    figure, axes = plt.subplots(dpi=144, layout="constrained", figsize=(max(8, 1.1 * len(summary)), 3.2))
    for i, (pair, color) in enumerate(zip(summary[0]["gaps"], COLORS)):
        x = np.arange(len(summary)) + (i - 1) * 0.27
        gaps = [cell["gaps"][pair] for cell in summary]
        axes.bar(x, [g["mean"] for g in gaps], width=0.25, color=color, label=pair.replace(",", " vs. "))
        for at, g in zip(x, gaps):
            axes.scatter([at] * len(g["values"]), g["values"], s=8, color="#0f172a", zorder=3, linewidth=0)
    axes.axhline(0, color="#334155", linewidth=0.8)
    axes.set_xticks(range(len(summary)), [_with_accuracy(cell) for cell in summary], fontsize=8)
    styled(axes, ylabel="gap in accuracy, points")
    # Below the bars, where it hides no seed's dot.
    figure.legend(frameon=False, ncols=3, loc="outside lower center")
    return figure
