"""What a controlled experiment found: a row a setting, as figures, tables and a sentence."""

import numpy as np

from posgap.tables import markdown


def summarize(rows: list[dict]) -> list[dict]:
    """A row per cell: gaps with mean and standard deviation over seeds; accuracy, sinks and maps as means."""
    cells: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        cells.setdefault((row["panel"], row["name"]), []).append(row)
    summary = []
    for (panel, name), found in cells.items():
        gaps = {pair: [row["gaps"][pair] for row in found] for pair in found[0]["gaps"]}
        summary.append(
            {
                "panel": panel,
                "name": name,
                "seeds": len(found),
                "gaps": {
                    pair: {
                        "mean": float(np.mean(v)),
                        "sd": float(np.std(v, ddof=1)) if len(v) > 1 else 0.0,
                        "values": v,
                    }
                    for pair, v in gaps.items()
                },
                "accuracy": {
                    key: float(np.mean([row["accuracy"][key] for row in found])) for key in found[0]["accuracy"]
                },
                "sinks": np.mean([row["sinks"] for row in found], axis=0).tolist(),
                "attention": np.mean([row["attention"] for row in found], axis=0).tolist(),
            }
        )
    return summary


def gap_table(summary: list[dict]) -> str:
    """Gaps in points, mean ± standard deviation over seeds, a row a setting."""
    head = ["setting", *(pair.replace(",", " vs. ") for pair in summary[0]["gaps"]), "accuracy, novel classes"]
    rows = [
        [
            f"{cell['panel']}: {cell['name']}",
            *(f"{gap['mean']:+.1f} ± {gap['sd']:.1f}" for gap in cell["gaps"].values()),
            f"{cell['accuracy']['any']:.1f}",
        ]
        for cell in summary
    ]
    return markdown(head, rows)


def sink_table(summary: list[dict]) -> str:
    """The attention sink metric of every token, a row a setting."""
    head = ["attention sinks", *(str(token) for token in range(1, len(summary[0]["sinks"]) + 1))]
    rows = [[f"{cell['panel']}: {cell['name']}", *(f"{sink:.2f}" for sink in cell["sinks"])] for cell in summary]
    return markdown(head, rows)


def reading(summary: list[dict]) -> str:
    """One sentence: where the bias is greatest, and which token draws most attention."""
    gaps = [(cell, pair, gap["mean"]) for cell in summary for pair, gap in cell["gaps"].items()]
    cell, pair, gap = max(gaps, key=lambda found: abs(found[2]))
    better, worse = pair.split(",") if gap > 0 else reversed(pair.split(","))
    sinks = [(each, token, sink) for each in summary for token, sink in enumerate(each["sinks"], start=1)]
    drawn, token, sink = max(sinks, key=lambda found: found[2])
    return (
        f"The greatest bias is that of {cell['panel']}, {cell['name']}: the {better} item over the {worse} by "
        f"{abs(gap):.1f} points; the strongest attention sink is token {token} of {drawn['panel']}, {drawn['name']} "
        f"({sink:.2f})"
    )
