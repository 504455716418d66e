"""rollout experiment: trains small networks with one cause of position bias (mask, encoding, data ...) at a time."""

import dataclasses
import logging
from pathlib import Path

from posgap.foundation.files import work_folder, write_json, write_text
from posgap.foundation.interruption import resumable
from posgap.foundation.printing import RESULT, Lines
from posgap.measurement.plots import save_picture
from posgap.options.rollout_experiment import RolloutExperimentConfig
from posgap.rollout.experiment_summary import experiment_text, gap_bars, gap_table, sink_table, summarize
from posgap.rollout.trials import PRESETS, Trial, nulls, run_trials
from posgap.tracking.runs import Run
from posgap.verbs.frame import stage

log = logging.getLogger(__name__)


@stage
@resumable()
def rollout_experiment(config: RolloutExperimentConfig, out: Path, run: Run) -> None:
    """Writes `experiment.json`, `experiment.md` and `experiment.png`."""
    chosen = PRESETS[config.preset]
    training = chosen.training
    if config.iterations:
        training = dataclasses.replace(training, iterations=config.iterations)
    seeds = range(config.seed, config.seed + chosen.seeds)
    named = [(name, Trial(design, chosen.sizes, seed)) for name, design in chosen.designs.items() for seed in seeds]
    results = run_trials([trial for _, trial in named], training, work_folder(config.out))
    rows = []
    for (name, trial), result in zip(named, results):
        rows.append({"name": name, **dataclasses.asdict(trial), **result, **nulls(trial)})
    summary = summarize(rows)
    write_json(
        out / "experiment.json",
        {
            "preset": config.preset,
            "training": dataclasses.asdict(training),
            "sizes": dataclasses.asdict(chosen.sizes),
            "summary": experiment_text(summary),
            "means": summary,
            "trials": rows,
        },
    )
    tables = f"{gap_table(summary)}\n\n{sink_table(summary)}"
    write_text(out / "experiment.md", f"# {config.preset}\n\n{tables}\n")
    save_picture(gap_bars(summary), out / "experiment.png")
    for cell in summary:
        name = cell["name"].replace(",", "").replace(" ", "_")
        run.metrics({f"{name}.{pair.replace(',', '-')}": values["mean"] for pair, values in cell["gaps"].items()})
        run.metrics({f"{name}.first_sink": cell["sinks"][0]})
    run.artifact(out)
    log.log(RESULT, "%s\n\n%s\n\n%s", config.preset, Lines(tables), Lines(experiment_text(summary)))
