"""Pictures of sweeps for slides: accuracy over positions or pairs of them, and differences."""

import io
import warnings
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.text import Text

from posgap.foundation.files import atomic
from posgap.foundation.printing import printable
from posgap.measurement.comparison import Comparison
from posgap.measurement.sweeps import Sweep
from posgap.tasks.placements import in_order

COLORS = ("#c2410c", "#0f766e", "#4338ca", "#a16207", "#be185d", "#334155")


def position_curves(sweeps: Sequence[Sweep]) -> Figure:
    """Accuracy over the gold document's position, one curve with its 95 % band per sweep."""
    figure, axes = plt.subplots(figsize=(8, 4.2), dpi=144, layout="constrained")
    for sweep, color in zip(sweeps, COLORS * len(sweeps)):
        low, high = zip(*sweep.ci95)
        axes.fill_between(sweep.positions, low, high, color=color, alpha=0.15, linewidth=0)
        axes.plot(sweep.positions, sweep.accuracy, marker="o", markersize=4, color=color, label=_legend(sweep))
        # Labels stand side by side, since baselines may be as good as each other.
        for at, (name, baseline) in enumerate(sweep.baselines.items()):
            axes.axhline(baseline.accuracy, color=color, linestyle=":", linewidth=1)
            axes.annotate(
                name,
                xy=(0.99 - 0.11 * at, baseline.accuracy),
                xycoords=axes.get_yaxis_transform(),
                xytext=(0, 2),
                textcoords="offset points",
                ha="right",
                fontsize=7,
                color=color,
            )
    n_docs = max(sweep.n_docs for sweep in sweeps)
    axes.set(
        xlabel=f"position of the gold document among {n_docs}",
        ylabel=f"accuracy, % ({sweeps[0].metric})",
        ylim=(0, 103),
        xlim=(0.5, n_docs + 0.5),
        xticks=sorted({1, *range(5, n_docs + 1, 5 if n_docs <= 40 else n_docs // 40 * 5), n_docs}),
    )
    trim_axes(axes)
    axes.legend(loc="best", edgecolor="none")
    return figure


def pair_dots(sweeps: Sequence[Sweep]) -> Figure:
    """Accuracy at each pair of positions with its 95 % interval, a panel per category.

    There is no curve, as pairs have no natural order.
    """
    figures = [dict(zip(sweep.placement_names, zip(sweep.accuracy, sweep.ci95))) for sweep in sweeps]
    categories = in_order(chain.from_iterable(sweep.categories for sweep in sweeps))
    panels: dict[str, list[str]] = {name: [] for name in categories}
    for sweep in sweeps:
        for pair, name in zip(sweep.placement_names, sweep.categories):
            panels[name] += [pair] if pair not in panels[name] else []
    figure, row = plt.subplots(
        1,
        len(panels),
        sharey=True,
        squeeze=False,
        figsize=(max(8, 0.34 * sum(map(len, panels.values())) + 1), 4.2),
        width_ratios=[len(pairs) + 1 for pairs in panels.values()],
        dpi=144,
        layout="constrained",
    )
    for axes, (name, pairs) in zip(row[0], panels.items()):
        for i, (sweep, by_pair, color) in enumerate(zip(sweeps, figures, COLORS * len(sweeps))):
            shown = [(x, *by_pair[pair]) for x, pair in enumerate(pairs) if pair in by_pair]
            x = [at + 0.5 * ((i + 0.5) / len(sweeps) - 0.5) for at, _, _ in shown]
            low, high = zip(*(interval for _, _, interval in shown)) if shown else ((), ())
            axes.vlines(x, low, high, color=color, alpha=0.45, linewidth=2)
            axes.scatter(x, [value for _, value, _ in shown], s=18, color=color, zorder=3, label=_legend(sweep))
        axes.set(title=name, xlim=(-0.7, len(pairs) - 0.3), ylim=(0, 103))
        axes.set_xticks(range(len(pairs)), pairs, rotation=90, fontsize=8)
        trim_axes(axes)
    row[0, 0].set_ylabel(f"accuracy, % ({sweeps[0].metric})")
    n_docs = max(sweep.n_docs for sweep in sweeps)
    figure.supxlabel(f"positions of the gold documents among {n_docs}: first hop + second hop", fontsize=10)
    figure.legend(*row[0, 0].get_legend_handles_labels(), frameon=False, loc="outside upper center", ncols=2)
    return figure


def trim_axes(axes: plt.Axes) -> None:
    """Draws faint lines across, and two sides of the frame."""
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(sweep: Sweep) -> str:
    return f"{sweep.label}: gap {sweep.gap:.1f}, mean {sweep.mean:.1f}"


def placement_differences(comparison: Comparison) -> Figure:
    """Each model minus the reference at each placement, with its 95 % interval."""
    figure, axes = plt.subplots(figsize=(8, 3.4), dpi=144, layout="constrained")
    names = comparison.placement_names
    models = comparison.differences
    for i, (model, color) in enumerate(zip(models, COLORS[1:] + COLORS * len(models))):
        x = [at + 0.5 * ((i + 0.5) / len(models) - 0.5) for at in range(len(names))]
        low, high = zip(*model.ci95)
        axes.vlines(x, low, high, color=color, alpha=0.45, linewidth=2)
        axes.scatter(x, model.accuracy, s=18, color=color, zorder=3, label=model.label)
    axes.axhline(0, color=COLORS[0], linewidth=1)
    of_pairs = len(comparison.placements[0]) > 1
    axes.set(
        xlabel=f"position of the gold document{'s' * of_pairs} among {comparison.n_docs}",
        ylabel=f"points above {comparison.reference}",
    )
    every = 1 + len(names) // 40
    axes.set_xticks(range(0, len(names), every), names[::every], rotation=90 * of_pairs, fontsize=8)
    trim_axes(axes)
    axes.legend(frameon=False, loc="best")
    return figure


def picture_of(sweeps: Sequence[Sweep]) -> Figure:
    """The sweeps' accuracy over positions, or over pairs of them."""
    return (pair_dots if sweeps[0].categories else position_curves)(sweeps)


def show_as_text(figure: Figure) -> Figure:
    """Has a figure show others' labels as they are written: matplotlib takes `$` for the beginning of a formula, and
    warns of a control character with that character itself. Returns the figure."""
    for text in figure.findobj(Text):
        text.set_parse_math(False)
        text.set_text("\n".join(map(printable, text.get_text().split("\n"))))
    return figure


def save_picture(figure: Figure, path: Path, dots_per_inch: float | None = None) -> None:
    """Writes a figure as PNG, atomically, and closes it; in the figure's own resolution unless another is given."""
    picture = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a script that matplotlib's font lacks
        show_as_text(figure).savefig(picture, format="png", dpi=dots_per_inch or "figure", metadata={"Software": None})
    plt.close(figure)
    with atomic(path) as partial:
        partial.write_bytes(picture.getvalue())
