"""The picture and the page of a comparison of mitigations."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from posgap.measurement.plots import COLORS, save_picture, trim_axes
from posgap.measurement.report import render_page, save_page
from posgap.measurement.sweeps import Sweep
from posgap.mitigation_search.report import MITIGATE_PAGE, MitigateResult


class GainRow(NamedTuple):
    """A mitigation in the picture: its gain in points with its interval, and its price in words."""

    name: str
    gain: float
    interval: tuple[float, float]
    price: str


def write_pages(result: MitigateResult, sweeps: Sequence[Sweep], out: Path) -> None:
    """Writes `mitigate.png`, what each gains, and `mitigate.html`. Of `sweeps` the first is of the model as it is."""
    shown = gain_rows(result)
    save_picture(draw_gains(result), out / "mitigate.png")
    text = render_page(
        "posgap.mitigation_search",
        "mitigate.html.j2",
        sweeps,
        None,
        title=result.title,
        result=result,
        rows=shown,
        ticks=gain_ticks(shown),
    )
    save_page(text, out / MITIGATE_PAGE)


def gain_rows(result: MitigateResult) -> list[GainRow]:
    """Returns a row for each mitigation that was measured, what gains most first."""
    shown = []
    for each in result.measured_outcomes:
        if each.measured:
            shown.append(GainRow(each.name, each.measured.gain, each.measured.gain_ci95, each.measured.price))
    return sorted(shown, key=lambda row: -row.gain)


def gain_ticks(shown: Sequence[GainRow]) -> list[float]:
    """Round numbers of points that span these rows, 0 among them."""
    lows, highs = [row.interval[0] for row in shown], [row.interval[1] for row in shown]
    values = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(min([-1.0, *lows]), max([1.0, *highs]))
    return [round(float(value), 6) for value in values]


def draw_gains(result: MitigateResult) -> Figure:
    """The gain with its 95 % interval, a line a mitigation, with what an answer takes."""
    shown = gain_rows(result)
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.55 * max(1, len(shown))), dpi=144, layout="constrained")
    for at, row in enumerate(shown):
        axes.hlines(at, *row.interval, color=COLORS[0], alpha=0.45, linewidth=2)
        axes.scatter(row.gain, at, s=28, color=COLORS[0], zorder=3)
    axes.axvline(0, color="#94a3b8", linewidth=1, linestyle=":")
    names = [f"{row.name}\n{row.price}" for row in shown]
    axes.set(xlabel=f"gain over {result.reference}, points", ylim=(len(shown) - 0.5, -0.5))
    axes.set_yticks(range(len(shown)), names)
    trim_axes(axes)
    return figure
