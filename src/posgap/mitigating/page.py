"""The picture and the page of a comparison of mitigations."""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from posgap.measurement.comparison import Comparison
from posgap.measurement.plots import COLORS, plain, save_picture
from posgap.measurement.report import rendered, save_page
from posgap.measurement.sweeps import Sweep
from posgap.mitigating.report import Mitigate


def write_pages(result: Mitigate, comparison: Comparison | None, sweeps: Sequence[Sweep], out: Path) -> None:
    """Writes `mitigate.png`, gap against cost, and `mitigate.html`. Of `sweeps` the first is of the model as it is."""
    save_picture(gap_against_cost(result), out / "mitigate.png")
    text = rendered(
        "posgap.mitigating",
        "mitigate.html.j2",
        sweeps,
        None,
        title=result.title,
        result=result,
        comparison=comparison,
        points=points(result),
        ticks=ticks(points(result)),
    )
    save_page(text, out / "mitigate.html")


def points(result: Mitigate) -> list[tuple[str, float, float, tuple[float, float]]]:
    """Name, cost of an answer as a multiple, gap and its interval: of the model as it is, and of all measured."""
    return [
        ("base", 1.0, result.base_gap, result.base_gap_ci95),
        *((each.name, m.paid, m.gap, m.gap_ci95) for each in result.measured if (m := each.measured)),
    ]


def ticks(shown: Sequence[tuple[str, float, float, tuple[float, float]]]) -> dict[str, list]:
    """Round numbers that the axes of such points name: `gaps` from 0, and `costs`, that of the model as it is among
    what they span."""
    costs, most = [cost for _, cost, *_ in shown], max(interval[1] for *_, interval in shown)
    # A part of the axis more on either side, so that no point stands on its end.
    named = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(min([*costs, 0.95]) - 0.02, max([*costs, 1.05]) + 0.02)
    gaps = list(range(0, 20 * max(1, math.ceil(most / 20)) + 1, 20))
    return {"gaps": gaps, "costs": [round(float(cost), 6) for cost in named]}


def gap_against_cost(result: Mitigate) -> Figure:
    """The gap with its 95 % interval over what an answer costs, a point a mitigation."""
    figure, axes = plt.subplots(figsize=(8, 4.2), dpi=144, layout="constrained")
    shown = points(result)
    for (name, x, gap, (low, high)), color in zip(shown, COLORS * len(shown)):
        axes.vlines(x, low, high, color=color, alpha=0.45, linewidth=2)
        axes.scatter(x, gap, s=28, color=color, zorder=3, label=name)
    axes.set(
        xlabel=f"{result.unit} of an answer, as a multiple of the model's as it is",
        ylabel="gap, points",
        ylim=(0, min(103, max(interval[1] for *_, interval in shown) * 1.05 + 1)),
    )
    axes.axvline(1, color="#94a3b8", linewidth=1, linestyle=":")
    plain(axes)
    axes.legend(frameon=False, loc="best")
    return figure
