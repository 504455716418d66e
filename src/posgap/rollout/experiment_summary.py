"""The result of a controlled experiment: one row per setting as figures, as tables, and in a sentence."""

import numpy as np

from posgap.tables import markdown


def summarize(rows: list[dict]) -> list[dict]:
    """Combines the seeds of each cell: gaps with mean and standard deviation; accuracy, sinks and maps as means."""
    cells: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        cells.setdefault((row["panel"], row["name"]), []).append(row)
    summary = []
    for (panel, name), seeds in cells.items():
        gaps = {pair: [row["gaps"][pair] for row in seeds] for pair in seeds[0]["gaps"]}
        summary.append(
            {
                "panel": panel,
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
                "attention": np.mean([row["attention"] for row in seeds], axis=0).tolist(),
            }
        )
    return summary


def gap_table(summary: list[dict]) -> str:
    """A table of gaps in points, mean ± standard deviation over seeds, with one row per setting."""
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
    """A table of every token's attention sink metric, with one row per setting."""
    head = ["attention sinks", *(str(token) for token in range(1, len(summary[0]["sinks"]) + 1))]
    rows = [[f"{cell['panel']}: {cell['name']}", *(f"{sink:.2f}" for sink in cell["sinks"])] for cell in summary]
    return markdown(head, rows)


def reading(summary: list[dict]) -> str:
    """One sentence that says where the bias is greatest and which token draws most attention."""
    gaps = [(cell, pair, gap["mean"]) for cell in summary for pair, gap in cell["gaps"].items()]
    cell, pair, gap = max(gaps, key=lambda cell_pair_gap: abs(cell_pair_gap[2]))
    better, worse = pair.split(",") if gap > 0 else reversed(pair.split(","))
    sinks = [(each, token, sink) for each in summary for token, sink in enumerate(each["sinks"], start=1)]
    drawn, token, sink = max(sinks, key=lambda cell_token_sink: cell_token_sink[2])
    return (
        f"The greatest bias is that of {cell['panel']}, {cell['name']}: the {better} item over the {worse} by "
        f"{abs(gap):.1f} points; the strongest attention sink is token {token} of {drawn['panel']}, {drawn['name']} "
        f"({sink:.2f})"
    )
