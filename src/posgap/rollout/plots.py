"""Plots of rollouts, in one style."""

from collections.abc import Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from posgap.measurement.plots import COLORS, trim_axes
from posgap.rollout.documents import PARTS

MIN_DECADES = 6  # the axis ends at 10^-6 of a uniform share


def style_axes(axes: Axes, **labels) -> Axes:
    """Sets `labels` (title, axis labels, limits) and the common style on `axes`."""
    axes.set(**labels)
    trim_axes(axes)
    return axes


def distribution_curves(curves: Mapping[str, np.ndarray], ylabel: str = "share of the last token") -> Figure:
    """Plots distributions [N] over positions on a logarithmic scale, with the uniform one for comparison."""
    figure, axes = plt.subplots(figsize=(8, 4.2), dpi=144, layout="constrained")
    n = len(next(iter(curves.values())))
    for (label, distribution), color in zip(curves.items(), COLORS * len(curves)):
        marker = "o" if n <= 64 else ""
        x = np.arange(1, n + 1)
        axes.plot(x, distribution, color=color, label=label, linewidth=1.5, marker=marker, markersize=3)
    axes.axhline(1 / n, color="#94a3b8", linewidth=1, linestyle="--", label="uniform")
    shown = np.array(list(curves.values()))
    lowest = shown[shown > 0].min()
    axes.set_yscale("log")
    # Pictures show all text as it is written, and matplotlib's own for such an axis is a formula.
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(LogFormatter())
    axes.set_ylim(bottom=max(lowest / 1.5, 10.0**-MIN_DECADES / n), top=min(1.5, 2.5 * shown.max()))
    style_axes(axes, xlabel="input position (token)", ylabel=ylabel, xlim=(1 - 0.01 * n, n * 1.01))
    axes.legend(frameon=False, loc="best")
    return figure


def document_panels(documents: Mapping[str, Any], agreement: Mapping[str, Any]) -> Figure:
    """Plots what each part of the prompt draws, the documents' shares by their place and the gold document's by its
    position, both among documents with 95 % intervals, and how alike the measures order documents
    (`documents.summary`, `agreement.agreement`)."""
    measures = documents["measures"]
    figure, ((whole, every), (gold, agreed)) = plt.subplots(2, 2, figsize=(10, 7.6), dpi=144, layout="constrained")
    names = [_in_words(measure) for measure in measures]
    left = np.zeros(len(measures))
    shades = plt.get_cmap("viridis")(np.linspace(0, 0.95, len(PARTS)))
    for part, shade in zip(PARTS, shades):
        width = np.array([100 * measured["parts"][part] for measured in measures.values()])
        whole.barh(names, width, left=left, color=shade, label=part)
        left += width
    style_axes(whole, title="what the parts of the prompt draw", xlabel="share of the influence, %", xlim=(0, 100))
    whole.invert_yaxis()
    whole.legend(frameon=False, fontsize=8, ncols=3, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    even = 100 / documents["n_docs"]
    n = documents["n_docs"]
    places = {"documents": (every, np.arange(1, n + 1)), "gold": (gold, np.array(documents["positions"]))}
    for key, (axes, x) in places.items():
        for (name, measured), color in zip(measures.items(), COLORS):
            axes.plot(x, 100 * np.array(measured[key]), color=color, marker="o", markersize=3, label=_in_words(name))
            low, high = np.transpose([each or (np.nan, np.nan) for each in measured[f"{key}_ci95"]])
            axes.fill_between(x, 100 * low, 100 * high, color=color, alpha=0.15, linewidth=0)
        axes.axhline(even, color="#94a3b8", linewidth=1, linestyle="--")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_ylim(bottom=0)
    style_axes(every, title="every document", xlabel="its place", ylabel="share among documents, %")
    style_axes(gold, title="the gold document", xlabel="its position", ylabel="share among documents, %")
    every.legend(frameon=False, fontsize=8)
    _agreements(agreed, list(measures), agreement)
    return figure


def _in_words(name: str) -> str:
    return name.replace("_", " ")


def _agreements(axes: Axes, names: list[str], agreement: Mapping[str, Any]) -> None:
    """Shows Spearman's correlations of all pairs of measures as a table in colours."""
    table = np.eye(len(names))
    for pair in agreement["pairs"]:
        one, other = (names.index(name) for name in pair["measures"])
        table[one, other] = table[other, one] = np.nan if pair["spearman"] is None else pair["spearman"]
    axes.imshow(table, vmin=-1, vmax=1, cmap="PuOr_r")
    for (row, column), value in np.ndenumerate(table):
        if row != column and np.isfinite(value):
            ink = "white" if abs(value) > 0.6 else "black"
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=ink)
    labels = [_in_words(name).replace(" without", "\nwithout").replace(" times", "\ntimes") for name in names]
    axes.set_xticks(range(len(names)), labels, rotation=45, ha="right", fontsize=8)
    axes.set_yticks(range(len(names)), labels, fontsize=8)
    axes.set_title(f"agreement on the order of {agreement['of']}", fontsize=10)
