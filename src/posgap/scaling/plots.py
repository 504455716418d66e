"""The plot of a search: its history, and the factors it chose for the layers."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from posgap.measurement.plots import save_picture
from posgap.mitigations.curve_kinds import CURVES
from posgap.scaling.scaling_file import Scaling


def write_plot(scaling: Scaling, png: Path) -> None:
    """Writes fitness by generation, and factor by layer with the control points, as PNG."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), dpi=144, layout="constrained")
    generations = [row["generation"] for row in scaling.history]
    for name, label, style in (
        ("best", "best so far", "-"),
        ("generation_best", "best of generation", "--"),
        ("generation_mean", "mean of generation", ":"),
    ):
        left.plot(generations, [row[name] for row in scaling.history], style, color="#0f766e", label=label)
    left.axhline(scaling.unscaled_fitness, color="#c2410c", linewidth=1, label="unscaled")
    left.set(xlabel="generation", ylabel=f"fitness ({scaling.objective})")
    right.plot(range(len(scaling.factors)), scaling.factors, marker="o", markersize=4, color="#0f766e")
    if scaling.curve["kind"] in {kind.name for kind in CURVES if kind.smooth}:
        spacing = max(len(scaling.factors) - 1, 1) / max(len(scaling.control_points) - 1, 1)
        places = spacing * np.arange(len(scaling.control_points))
        right.plot(places, scaling.control_points, "x", color="#4338ca", label="control point")
    right.axhline(1, color="#c2410c", linewidth=1, label="unscaled")
    right.set(xlabel="layer", ylabel="RoPE factor")
    right.xaxis.get_major_locator().set_params(integer=True)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    save_picture(figure, png)
