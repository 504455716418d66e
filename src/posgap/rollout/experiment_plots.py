"""The experiments' figure: gaps as bars."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from posgap.rollout.plots import COLORS, styled


def _panels(summary: list[dict]) -> dict[str, list[dict]]:
    panels: dict[str, list[dict]] = {}
    for cell in summary:
        panels.setdefault(cell["panel"], []).append(cell)
    return panels


def _with_accuracy(cell: dict) -> str:
    """A setting's name, with its accuracy on novel classes beside chance: what its gap is a gap of."""
    return cell["name"].replace(", ", "\n") + f"\n{cell['accuracy']['any']:.0f} % (chance {cell['chance']:.0f})"


def gap_bars(summary: list[dict]) -> Figure:
    """Gaps [a, b] - [b, a] by pair of places: one panel per condition, bars per setting, one dot per seed."""
    panels = _panels(summary)
    figure, rows = plt.subplots(
        len(panels), 1, squeeze=False, sharey=True, dpi=144, layout="constrained",
        figsize=(max(8, 1.1 * max(map(len, panels.values()))), 3.2 * len(panels)),
    )  # fmt: skip
    for axes, (panel, cells) in zip(rows[:, 0], panels.items()):
        for i, (pair, color) in enumerate(zip(cells[0]["gaps"], COLORS)):
            x = np.arange(len(cells)) + (i - 1) * 0.27
            gaps = [cell["gaps"][pair] for cell in cells]
            axes.bar(x, [g["mean"] for g in gaps], width=0.25, color=color, label=pair.replace(",", " vs. "))
            for at, g in zip(x, gaps):
                axes.scatter([at] * len(g["values"]), g["values"], s=8, color="#0f172a", zorder=3, linewidth=0)
        axes.axhline(0, color="#334155", linewidth=0.8)
        axes.set_xticks(range(len(cells)), [_with_accuracy(cell) for cell in cells], fontsize=8)
        styled(axes, title=panel, ylabel="gap in accuracy, points")
    # Below the panels, where it hides no seed's dot.
    figure.legend(*rows[0, 0].get_legend_handles_labels(), frameon=False, ncols=3, loc="outside lower center")
    return figure
