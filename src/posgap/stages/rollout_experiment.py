"""rollout experiment: mask, encoding, depth, residuals and training data, one switched on at a time."""

import dataclasses
import logging
from pathlib import Path

import numpy as np

from posgap.config import RolloutExperimentConfig
from posgap.files import write_json
from posgap.rollout.experiment_plots import draw
from posgap.rollout.plots import save
from posgap.rollout.presets import preset
from posgap.rollout.trials import run_trials
from posgap.stage import stage
from posgap.tracking.runs import Run

log = logging.getLogger(__name__)


@stage
def rollout_experiment(config: RolloutExperimentConfig, out: Path, run: Run) -> None:
    """Writes `experiment.json` and `experiment.png`."""
    changes = {name: getattr(config, name) for name in ("iterations", "batch", "learning_rate", "tests")}
    chosen = preset(config.preset, **changes)
    if config.as_coded:
        chosen = dataclasses.replace(chosen, sizes=dataclasses.replace(chosen.sizes, as_coded=True))
    planned = chosen.trials(config.seed, config.seeds or chosen.seeds)
    work = config.work or config.out.with_name(f"{config.out.name}.work")
    results = run_trials([trial for _, trial in planned], chosen.training, config.side_by_side, work)
    rows = [
        {"panel": cell.panel, "name": cell.name, **dataclasses.asdict(trial), **result}
        for (cell, trial), result in zip(planned, results)
    ]
    summary = summarize(rows)
    write_json(
        out / "experiment.json",
        {
            "preset": config.preset,
            "training": dataclasses.asdict(chosen.training),
            "sizes": dataclasses.asdict(chosen.sizes),
            "summary": summary,
            "trials": rows,
        },
    )
    save(draw(chosen.shows, summary), out / "experiment.png")
    for cell in summary:
        name = f"{cell['panel']} {cell['name']}".replace(",", "").replace(" = ", "").replace(" ", "_")
        run.metrics({f"{name}.{pair.replace(',', '-')}": values["mean"] for pair, values in cell["gaps"].items()})
        run.metrics({f"{name}.first_sink": cell["sinks"][0]})
        gaps = ", ".join(f"{p.replace(',', '-')} {v['mean']:+.1f} ± {v['sd']:.1f}" for p, v in cell["gaps"].items())
        log.info("%s, %s: accuracy %.1f, gaps %s", cell["panel"], cell["name"], cell["accuracy"]["any"], gaps)
    run.artifact(out)


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
