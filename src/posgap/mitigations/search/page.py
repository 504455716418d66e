"""The page of a comparison of mitigations."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from matplotlib.ticker import MaxNLocator

from posgap.measurement.report import render_page, save_page
from posgap.measurement.sweeps import Sweep
from posgap.mitigations.search.report import MITIGATE_PAGE, MitigateResult


def write_comparison(result: MitigateResult, sweeps: Sequence[Sweep], out: Path) -> None:
    """Writes `mitigate.html`. The first of `sweeps` is the unmodified model's."""
    shown = [(each.label, each.measured) for each in result.measured_outcomes if each.measured]
    shown.sort(key=lambda row: -row[1].gain)
    text = render_page(
        "posgap.mitigations.search",
        "mitigate.html.j2",
        sweeps,
        None,
        title=result.title,
        result=result,
        rows=shown,
        ticks=gain_ticks([measured.gain_ci95 for _, measured in shown]),
    )
    save_page(text, out / MITIGATE_PAGE)


def gain_ticks(intervals: Sequence[tuple[float, float]]) -> list[float]:
    """Round numbers of points that span these intervals, 0 among them."""
    ends = [-1.0, *chain(*intervals), 1.0]
    values = MaxNLocator(5, steps=[1, 2, 5, 10]).tick_values(min(ends), max(ends))
    return [round(float(value), 6) for value in values]
