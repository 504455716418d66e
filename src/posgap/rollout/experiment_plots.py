"""The experiments' figures: gaps as bars, attention sinks by token, and attention maps."""

from collections.abc import Callable

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from posgap.rollout.plots import COLORS, styled


def draw(shows: str, summary: list[dict]) -> Figure:
    """Draws an experiment's summary as the kind of figure that its preset names in `shows`."""
    drawn: dict[str, Callable[[list[dict]], Figure]] = {"gaps": gap_bars, "sinks": sink_bars, "maps": attention_maps}
    return drawn[shows](summary)


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


def sink_bars(summary: list[dict]) -> Figure:
    """The sink metric of every token, one panel for each kind of mask; uniform attention's as black lines."""
    panels = _panels(summary)
    figure, (row,) = plt.subplots(
        1, len(panels), squeeze=False, sharey=True, figsize=(4.2 * len(panels), 3.4), dpi=144, layout="constrained"
    )
    for axes, (panel, cells) in zip(row, panels.items()):
        width = 0.8 / len(cells)
        for i, (cell, color) in enumerate(zip(cells, COLORS)):
            tokens = np.arange(1, len(cell["sinks"]) + 1)
            axes.bar(tokens + (i - (len(cells) - 1) / 2) * width, cell["sinks"], width, color=color, label=cell["name"])
            at = tokens + (i - (len(cells) - 1) / 2) * width
            label = "uniform attention" if i == 0 else None
            axes.hlines(cell["uniform_sinks"], at - width / 2, at + width / 2, "#0f172a", linewidth=1.5, label=label)
        styled(axes, title=panel, xlabel="token")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False)
    row[0].set_ylim(top=1.45 * row[0].get_ylim()[1])  # room for the legends above the bars
    row[0].set_ylabel("attention sink metric")
    return figure


def attention_maps(summary: list[dict]) -> Figure:
    """Mean attention of every layer, one row for each setting; in the last column uniform attention's."""
    depth = max(len(cell["attention"]) for cell in summary) + 1
    figure, rows = plt.subplots(
        len(summary), depth, squeeze=False, figsize=(3.6 * depth, 3.3 * len(summary)), dpi=144, layout="constrained"
    )
    for row, cell in zip(rows, summary):
        titles = [f"{cell['name']}, layer {layer}" for layer in range(1, len(cell["attention"]) + 1)]
        maps = [*cell["attention"], cell["uniform_attention"]]
        for axes, attention, title in zip(row, maps, [*titles, "uniform attention"]):
            size = len(attention) + 0.5
            picture = axes.imshow(attention, vmin=0, cmap="magma", extent=(0.5, size, size, 0.5))
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_locator(MaxNLocator(integer=True))
            axes.set(title=title, xlabel="token attended to", ylabel="token")
            figure.colorbar(picture, ax=axes)
    return figure
