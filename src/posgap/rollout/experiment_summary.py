"""The result of a controlled experiment: one row per setting as figures, as tables, and in a sentence."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from posgap.foundation.tables import markdown
from posgap.measurement.plots import COLORS
from posgap.rollout.plots import style_axes


def summarize(rows: list[dict]) -> list[dict]:
    """Combines the seeds of each setting: gaps with mean and standard deviation; accuracy and sinks as means.

    The figures of a network that learned nothing (see `trials.nulls`) are the same for all seeds of a setting.
    """
    settings: dict[str, list[dict]] = {}
    for row in rows:
        settings.setdefault(row["name"], []).append(row)
    summary = []
    for name, seeds in settings.items():
        first = seeds[0]
        gaps = {}
        for pair in first["gaps"]:
            values = [row["gaps"][pair] for row in seeds]
            deviation = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
            gaps[pair] = {"mean": float(np.mean(values)), "sd": deviation, "values": values}
        accuracy = {kind: float(np.mean([row["accuracy"][kind] for row in seeds])) for kind in first["accuracy"]}
        sinks = np.mean([row["sinks"] for row in seeds], axis=0).tolist()
        summary.append({"name": name, "seeds": len(seeds), "gaps": gaps, "accuracy": accuracy, "sinks": sinks})
        summary[-1] |= {"chance": first["chance"], "uniform_sinks": first["uniform_sinks"]}
    return summary


def gap_table(summary: list[dict]) -> str:
    """A table of gaps in points, mean ± standard deviation over seeds, with one row per setting."""
    pairs = [pair.replace(",", " vs. ") for pair in summary[0]["gaps"]]
    rows = []
    for cell in summary:
        gaps = [f"{gap['mean']:+.1f} ± {gap['sd']:.1f}" for gap in cell["gaps"].values()]
        rows.append([cell["name"], *gaps, f"{cell['accuracy']['any']:.1f}", f"{cell['chance']:.1f}"])
    return markdown(["setting", *pairs, "accuracy, novel classes", "chance"], rows)


def sink_table(summary: list[dict]) -> str:
    """Returns a table of every token's sink metric: a row per setting, and after the rows of one mask uniform
    attention's."""
    head = ["attention sinks", *map(str, range(1, len(summary[0]["sinks"]) + 1))]
    rows = []
    for cell, following in zip(summary, [*summary[1:], None]):
        rows.append([cell["name"], *map("{:.2f}".format, cell["sinks"])])
        if following is None or following["uniform_sinks"] != cell["uniform_sinks"]:
            rows.append(["uniform attention", *map("{:.2f}".format, cell["uniform_sinks"])])
    return markdown(head, rows)


def experiment_text(summary: list[dict]) -> str:
    """Says in one sentence where the bias is greatest, which token draws most beyond uniform attention, and what was
    learned.

    A network counts as having learned the task if it is a tenth of the way from chance to a right answer each time.
    """
    gaps = [(gap["mean"], pair, cell["name"]) for cell in summary for pair, gap in cell["gaps"].items()]
    sinks = [
        (sink, uniform, token, cell["name"])
        for cell in summary
        for token, (sink, uniform) in enumerate(zip(cell["sinks"], cell["uniform_sinks"]), start=1)
    ]
    gap, pair, most_biased = max(gaps, key=lambda found: abs(found[0]))
    better, worse = pair.split(",") if gap > 0 else reversed(pair.split(","))
    sink, uniform, token, with_sink = max(sinks, key=lambda found: found[0] - found[1])
    learned = sum(each["accuracy"]["any"] > each["chance"] + (100 - each["chance"]) / 10 for each in summary)
    others = ": the others did not learn to match items, so their gaps and sinks mean little"
    others = others if learned < len(summary) else ""
    return (
        f"The greatest bias is in {most_biased}: the {better} item over the {worse} by "
        f"{abs(gap):.1f} points. The strongest attention sink beyond uniform attention is token {token} of "
        f"{with_sink} ({sink:.2f}, uniform {uniform:.2f}). {learned} of {len(summary)} settings "
        f"answer clearly above chance, which is naming any label of the sequence{others}"
    )


def gap_bars(summary: list[dict]) -> Figure:
    """Gaps [a, b] - [b, a] by pair of places: bars per setting, one dot per seed."""
    figure, axes = plt.subplots(dpi=144, layout="constrained", figsize=(max(8, 1.1 * len(summary)), 3.2))
    for i, (pair, color) in enumerate(zip(summary[0]["gaps"], COLORS)):
        x = np.arange(len(summary)) + (i - 1) * 0.27
        gaps = [cell["gaps"][pair] for cell in summary]
        axes.bar(x, [gap["mean"] for gap in gaps], width=0.25, color=color, label=pair.replace(",", " vs. "))
        for at, gap in zip(x, gaps):
            axes.scatter([at] * len(gap["values"]), gap["values"], s=8, color="#0f172a", zorder=3, linewidth=0)
    axes.axhline(0, color="#334155", linewidth=0.8)
    names = []  # with the accuracy on novel classes compared with chance, which puts a gap in proportion
    for cell in summary:
        accuracy = f"{cell['accuracy']['any']:.0f} % (chance {cell['chance']:.0f})"
        names.append(cell["name"].replace(", ", "\n") + f"\n{accuracy}")
    axes.set_xticks(range(len(summary)), names, fontsize=8)
    style_axes(axes, ylabel="gap in accuracy, points")
    # Below the bars, so that it hides no seed's dot.
    figure.legend(frameon=False, ncols=3, loc="outside lower center")
    return figure
