"""Accuracy by length and depth for people: a heat map as PNG, and one self-contained HTML page."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import Colormap, LinearSegmentedColormap
from matplotlib.figure import Figure

from posgap.foundation.files import write_json
from posgap.measurement.lengths import LENGTHS_PAGE, LENGTHS_PICTURE, LengthComparison, LengthMap, folder_at
from posgap.measurement.plots import save_picture
from posgap.measurement.report import rendered, save_page
from posgap.measurement.sweeps import LENGTHS_FILE, SWEEP_PAGE, Sweep

_ACCURACY = LinearSegmentedColormap.from_list("accuracy", ["#f5f7fa", "#60a5fa"])
_DIFFERENCE = LinearSegmentedColormap.from_list("difference", ["#e8905f", "#f5f7fa", "#5fb3a8"])


def write_map(lengths: LengthMap, sweeps: Sequence[Sweep], out: Path) -> None:
    """Writes `lengths.json`, the map's picture as PNG, and its page, which leads to those of the sweeps beside it."""
    write_json(out / LENGTHS_FILE, lengths.model_dump(mode="json"))
    save_picture(picture(lengths), out / LENGTHS_PICTURE)
    save_page(page(lengths, sweeps, linked=True), out / LENGTHS_PAGE)


def write_length_comparison(comparison: LengthComparison, png: Path, html: Path) -> None:
    """Writes the picture of the differences as PNG, and their page."""
    save_picture(differences_picture(comparison), png)
    save_page(comparison_page(comparison), html)


def page(lengths: LengthMap, sweeps: Sequence[Sweep], linked: bool = False) -> str:
    """The page of a map as text, with the curves of its sweeps; it needs nothing beside itself, and leads to the pages
    of the sweeps where it is `linked`."""
    by_length = [
        sweep.model_copy(update={"label": f"{tokens:,} tokens"}) for sweep, tokens in zip(sweeps, lengths.tokens)
    ]
    pages = [str(folder_at(Path(), tokens) / SWEEP_PAGE) for tokens in lengths.tokens] if linked else []
    shown = {"title": lengths.title, "lengths": lengths, "pages": pages, "comparison": None}
    return rendered("posgap.measurement", "lengths.html.j2", by_length, None, **shown)


def comparison_page(comparison: LengthComparison) -> str:
    """The page of a comparison as text."""
    return rendered(
        "posgap.measurement", "lengths_comparison.html.j2", [], None, title=comparison.title, comparison=comparison
    )


def picture(lengths: LengthMap) -> Figure:
    """The map: accuracy by depth and length, each with its 95 % interval, and the gap at each length below."""
    low, high = np.moveaxis(np.array(lengths.ci95), -1, 0)
    gaps = [f"{tokens:,}\ngap {gap:.0f}" for tokens, gap in zip(lengths.tokens, lengths.gap)]
    figure, axes = _grid([lengths.accuracy], [low], [high], gaps, lengths.depths, _ACCURACY, (0, 100), "{:.0f}")
    axes[0].set(title=f"{lengths.label}: accuracy, % ({lengths.metric}), with 95 % intervals")
    effective = wrap(lengths.effective.sentence(lengths.tokens), 90)
    figure.supxlabel("\n".join(["length of the prompt and its longest answer, tokens", *effective]), fontsize=9)
    return figure


def differences_picture(comparison: LengthComparison) -> Figure:
    """Each model minus the reference by depth and length, a panel each, with 95 % intervals."""
    columns = [f"{int(length):,}" if length.isdigit() else length for length in comparison.lengths]
    models = range(len(comparison.models) - 1)
    values = [[of_length.differences[i].accuracy for of_length in comparison.comparisons] for i in models]
    intervals = np.array([[of_length.differences[i].ci95 for of_length in comparison.comparisons] for i in models])
    most = max(1.0, float(np.abs(values).max()))
    low, high = intervals[..., 0], intervals[..., 1]
    figure, axes = _grid(
        values, list(low), list(high), columns, comparison.depths, _DIFFERENCE, (-most, most), "{:+.0f}"
    )
    for panel, model in zip(axes, comparison.models[1:]):
        panel.set(title=f"{model.label} minus {comparison.reference}, points, with 95 % intervals")
    figure.supxlabel("length of the prompt and its longest answer, tokens", fontsize=9)
    return figure


def _grid(
    panels: Sequence[Sequence[Sequence[float]]],
    low: Sequence[np.ndarray],
    high: Sequence[np.ndarray],
    columns: Sequence[str],
    depths: Sequence[float],
    colors: Colormap,
    ends: tuple[float, float],
    form: str,
) -> tuple[Figure, list[plt.Axes]]:
    """A heat map for each of `panels [L, D]`, with lengths in columns and depths in rows."""
    size = (max(6.5, 1.15 * len(columns) + 1.6), len(panels) * max(2.6, 0.55 * len(depths) + 1.6))
    figure, axes = plt.subplots(len(panels), 1, figsize=size, dpi=144, layout="constrained", squeeze=False)
    for panel, values, lows, highs in zip(axes[:, 0], panels, low, high):
        cells = np.array(values).T
        panel.imshow(cells, aspect="auto", cmap=colors, vmin=ends[0], vmax=ends[1])
        for (row, column), value in np.ndenumerate(cells):
            panel.text(column, row - 0.12, form.format(value), ha="center", va="center", fontsize=11, color="#1f2933")
            interval = f"{form.format(lows[column][row])} to {form.format(highs[column][row])}"
            panel.text(column, row + 0.25, interval, ha="center", va="center", fontsize=7, color="#1f2933")
        panel.set(ylabel="depth of the gold document")
        panel.set_xticks(range(len(columns)), columns, fontsize=9)
        panel.set_yticks(range(len(depths)), [f"{depth:.3g} %" for depth in depths])
        panel.tick_params(length=0)
        panel.spines[:].set_visible(False)
    return figure, list(axes[:, 0])
