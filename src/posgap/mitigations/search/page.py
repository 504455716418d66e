"""The page of a comparison of mitigations."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.ticker import MaxNLocator

from posgap.measurement.report import render_page, save_page
from posgap.measurement.sweeps import Sweep
from posgap.mitigations.search.report import MITIGATE_PAGE, MitigateResult


class GainRow(NamedTuple):
    """A mitigation in the picture: its gain in points with its interval, and its price in words."""

    name: str
    gain: float
    interval: tuple[float, float]
    price: str


def write_comparison(result: MitigateResult, sweeps: Sequence[Sweep], out: Path) -> None:
    """Writes `mitigate.html`. The first of `sweeps` is the unmodified model's."""
    shown = gain_rows(result)
    text = render_page(
        "posgap.mitigations.search",
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
            shown.append(GainRow(each.label, each.measured.gain, each.measured.gain_ci95, each.measured.price))
    return sorted(shown, key=lambda row: -row.gain)


def gain_ticks(shown: Sequence[GainRow]) -> list[float]:
    """Round numbers of points that span these rows, 0 among them."""
    lows = [row.interval[0] for row in shown]
    highs = [row.interval[1] for row in shown]
    values = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(min([-1.0, *lows]), max([1.0, *highs]))
    return [round(float(value), 6) for value in values]
