"""The result of a controlled experiment: one row per setting as figures, as tables, and in a sentence."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from posgap.foundation.tables import markdown
from posgap.measurement.plots import COLORS
from posgap.rollout.plots import style_axes


def summarize(rows: list[dict]) -> list[dict]:
    """Combines the seeds of each setting: gaps with mean and standard deviation; accuracy and sinks as means.

    What a network that learned nothing shows (see `trials.nulls`) is the same for all seeds of a setting.
    """
    settings: dict[str, list[dict]] = {}
    for row in rows:
        settings.setdefault(row["name"], []).append(row)
    summary = []
    for name, seeds in settings.items():
        gaps = {pair: [row["gaps"][pair] for row in seeds] for pair in seeds[0]["gaps"]}
        summary.append(
            {
                "name": name,
                "seeds": len(seeds),
                "gaps": {
                    pair: {
                        "mean": float(np.mean(v)),
                        "sd": float(np.std(v, ddof=1)) if len(v) > 1 else 0.0,
                        "values": v,
                    }
                    for pair, v in gaps.items()
                },
                "accuracy": {
                    key: float(np.mean([row["accuracy"][key] for row in seeds])) for key in seeds[0]["accuracy"]
                },
                "sinks": np.mean([row["sinks"] for row in seeds], axis=0).tolist(),
                **{null: seeds[0][null] for null in ("chance", "uniform_sinks")},
            }
        )
    return summary


def gap_table(summary: list[dict]) -> str:
    """A table of gaps in points, mean ± standard deviation over seeds, with one row per setting."""
    head = [
        "setting",
        *(pair.replace(",", " vs. ") for pair in summary[0]["gaps"]),
        "accuracy, novel classes",
        "chance",
    ]
    rows = [
        [
            cell["name"],
            *(f"{gap['mean']:+.1f} ± {gap['sd']:.1f}" for gap in cell["gaps"].values()),
            f"{cell['accuracy']['any']:.1f}",
            f"{cell['chance']:.1f}",
        ]
        for cell in summary
    ]
    return markdown(head, rows)


def sink_table(summary: list[dict]) -> str:
    """A table of every token's sink metric: a row per setting, and after those of one mask uniform attention's."""
    head = ["attention sinks", *(str(token) for token in range(1, len(summary[0]["sinks"]) + 1))]
    rows = []
    for cell, following in zip(summary, [*summary[1:], None]):
        rows.append([cell["name"], *(f"{sink:.2f}" for sink in cell["sinks"])])
        if following is None or following["uniform_sinks"] != cell["uniform_sinks"]:
            rows.append(["uniform attention", *(f"{sink:.2f}" for sink in cell["uniform_sinks"])])
    return markdown(head, rows)


def experiment_text(summary: list[dict]) -> str:
    """One sentence: where the bias is greatest, which token draws most beyond uniform attention, and what was learned.

    A network counts as having learned the task where it is a tenth of the way from chance to a right answer each time.
    """
    gaps = [(cell, pair, gap["mean"]) for cell in summary for pair, gap in cell["gaps"].items()]
    cell, pair, gap = max(gaps, key=lambda cell_pair_gap: abs(cell_pair_gap[2]))
    better, worse = pair.split(",") if gap > 0 else reversed(pair.split(","))
    sinks = [
        (each, token, sink, uniform)
        for each in summary
        for token, (sink, uniform) in enumerate(zip(each["sinks"], each["uniform_sinks"]), start=1)
    ]
    drawn, token, sink, uniform = max(sinks, key=lambda found: found[2] - found[3])
    learned = sum(each["accuracy"]["any"] > each["chance"] + (100 - each["chance"]) / 10 for each in summary)
    others = ": the others' gaps and sinks are those of networks that did not learn to match items"
    others = others if learned < len(summary) else ""
    return (
        f"The greatest bias is that of {cell['name']}: the {better} item over the {worse} by "
        f"{abs(gap):.1f} points. The strongest attention sink beyond uniform attention is token {token} of "
        f"{drawn['name']} ({sink:.2f}, uniform {uniform:.2f}). {learned} of {len(summary)} settings "
        f"answer clearly above chance, which is naming any label of the sequence{others}"
    )


def _with_accuracy(cell: dict) -> str:
    """A setting's name, with its accuracy on novel classes beside chance: what its gap is a gap of."""
    return cell["name"].replace(", ", "\n") + f"\n{cell['accuracy']['any']:.0f} % (chance {cell['chance']:.0f})"


def gap_bars(summary: list[dict]) -> Figure:
    """Gaps [a, b] - [b, a] by pair of places: bars per setting, one dot per seed."""
    figure, axes = plt.subplots(dpi=144, layout="constrained", figsize=(max(8, 1.1 * len(summary)), 3.2))
    for i, (pair, color) in enumerate(zip(summary[0]["gaps"], COLORS)):
        x = np.arange(len(summary)) + (i - 1) * 0.27
        gaps = [cell["gaps"][pair] for cell in summary]
        axes.bar(x, [g["mean"] for g in gaps], width=0.25, color=color, label=pair.replace(",", " vs. "))
        for at, g in zip(x, gaps):
            axes.scatter([at] * len(g["values"]), g["values"], s=8, color="#0f172a", zorder=3, linewidth=0)
    axes.axhline(0, color="#334155", linewidth=0.8)
    axes.set_xticks(range(len(summary)), [_with_accuracy(cell) for cell in summary], fontsize=8)
    style_axes(axes, ylabel="gap in accuracy, points")
    # Below the bars, where it hides no seed's dot.
    figure.legend(frameon=False, ncols=3, loc="outside lower center")
    return figure
