"""Position curves as PNG and as one self-contained HTML page."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path

import jinja2
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from posgap import __version__
from posgap.files import atomic
from posgap.measurement.sweeps import Sweep

COLORS = ("#c2410c", "#0f766e", "#4338ca", "#a16207", "#be185d", "#334155")


def position_curves(sweeps: Sequence[Sweep]) -> Figure:
    """Accuracy over the gold document's position, one curve with its 95 % band per sweep."""
    figure, axes = plt.subplots(figsize=(8, 4.2), dpi=144, layout="constrained")
    for sweep, color in zip(sweeps, COLORS * len(sweeps)):
        low, high = zip(*sweep.ci95)
        axes.fill_between(sweep.positions, low, high, color=color, alpha=0.15, linewidth=0)
        axes.plot(
            sweep.positions,
            sweep.accuracy,
            marker="o",
            markersize=4,
            color=color,
            label=f"{sweep.label}: gap {sweep.gap:.1f}, mean {sweep.mean:.1f}",
        )
    n_docs = max(sweep.n_docs for sweep in sweeps)
    axes.set(
        xlabel=f"position of the gold document among {n_docs}",
        ylabel=f"accuracy, % ({sweeps[0].metric})",
        ylim=(0, 103),
        xlim=(0.5, n_docs + 0.5),
        xticks=sorted({1, *range(5, n_docs + 1, 5 if n_docs <= 40 else n_docs // 40 * 5), n_docs}),
    )
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="best")
    return figure


def write_report(sweeps: Sequence[Sweep], png: Path, html: Path, title: str) -> None:
    """Writes the curves as PNG, and with their tables and settings as one HTML page."""
    figure, picture = position_curves(sweeps), io.BytesIO()
    figure.savefig(picture, format="png", metadata={"Software": None})
    plt.close(figure)
    template = jinja2.Environment(
        loader=jinja2.PackageLoader("posgap.measurement"), autoescape=True, undefined=jinja2.StrictUndefined
    ).get_template("report.html.j2")
    page = template.render(
        title=title,
        picture=base64.b64encode(picture.getvalue()).decode(),
        sweeps=sweeps,
        version=__version__,
        rows=list(zip(*(zip(s.positions, s.accuracy, s.ci95) for s in sweeps)))
        if len({tuple(s.positions) for s in sweeps}) == 1
        else [],
    )
    with atomic(png) as partial:
        partial.write_bytes(picture.getvalue())
    with atomic(html) as partial:
        partial.write_text(page, encoding="utf-8")
