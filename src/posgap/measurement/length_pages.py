"""Accuracy by length and depth for people: a heat map as PNG, and one self-contained HTML page."""

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from posgap.foundation.files import write_json
from posgap.measurement.lengths import LENGTHS_PAGE, LENGTHS_PICTURE, LengthMap, folder_at
from posgap.measurement.plots import save_picture
from posgap.measurement.report import render_page, save_page
from posgap.measurement.sweeps import LENGTHS_FILE, SWEEP_PAGE, Sweep

_ACCURACY = LinearSegmentedColormap.from_list("accuracy", ["#f5f7fa", "#60a5fa"])


def write_map(lengths: LengthMap, sweeps: Sequence[Sweep], out: Path) -> None:
    """Writes `lengths.json`, the map's picture as PNG, and its page, which links to the sweeps' pages beside it."""
    write_json(out / LENGTHS_FILE, lengths.model_dump(mode="json"))
    save_picture(picture(lengths), out / LENGTHS_PICTURE)
    save_page(page(lengths, sweeps, linked=True), out / LENGTHS_PAGE)


def page(lengths: LengthMap, sweeps: Sequence[Sweep], linked: bool = False) -> str:
    """Returns a map's page as text, with its sweeps' curves. It needs no other file, and links to the sweeps' pages if
    `linked`."""
    by_length = [
        sweep.model_copy(update={"label": f"{tokens:,} tokens"}) for sweep, tokens in zip(sweeps, lengths.tokens)
    ]
    pages = [str(folder_at(Path(), tokens) / SWEEP_PAGE) for tokens in lengths.tokens] if linked else []
    shown = {"title": lengths.title, "lengths": lengths, "pages": pages}
    return render_page("posgap.measurement", "lengths.html.j2", by_length, None, **shown)


def picture(lengths: LengthMap) -> Figure:
    """The map: accuracy by depth and length, each with its 95 % interval, and the gap at each length below."""
    cells = np.array(lengths.accuracy).T
    columns = [f"{tokens:,}\ngap {gap:.0f}" for tokens, gap in zip(lengths.tokens, lengths.gap)]
    size = (max(6.5, 1.15 * len(columns) + 1.6), max(2.6, 0.55 * len(cells) + 1.6))
    figure, panel = plt.subplots(figsize=size, dpi=144, layout="constrained")
    panel.imshow(cells, aspect="auto", cmap=_ACCURACY, vmin=0, vmax=100)
    for (row, column), value in np.ndenumerate(cells):
        low, high = lengths.ci95[column][row]
        panel.text(column, row - 0.12, f"{value:.0f}", ha="center", va="center", fontsize=11, color="#1f2933")
        panel.text(
            column, row + 0.25, f"{low:.0f} to {high:.0f}", ha="center", va="center", fontsize=7, color="#1f2933"
        )
    panel.set(title=f"{lengths.label}: accuracy, % ({lengths.metric}), with 95 % intervals")
    panel.set_ylabel("depth of the gold document")
    panel.set_xticks(range(len(columns)), columns, fontsize=9)
    panel.set_yticks(range(len(cells)), lengths.depth_names)
    panel.tick_params(length=0)
    panel.spines[:].set_visible(False)
    effective = wrap(lengths.effective.sentence(lengths.tokens), 90)
    figure.supxlabel("\n".join(["length of the prompt and its longest answer, tokens", *effective]), fontsize=9)
    return figure
