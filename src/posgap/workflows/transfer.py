"""`posgap scale transfer`: whether a scaling searched on one task and length helps on others.

It runs several stages: the scaling is applied, both models are swept at every target, and the sweeps are compared.
Stages whose output is complete already are not run again.
"""

import logging
import os
from pathlib import Path

from pydantic import Field

from posgap.foundation.errors import PosgapError
from posgap.foundation.files import Record, parsed, write_json
from posgap.foundation.interruption import goes_on
from posgap.foundation.locations import Location, below
from posgap.foundation.printing import show
from posgap.measurement.comparison import read_comparison
from posgap.measurement.config import CompareConfig, SweepConfig
from posgap.measurement.sweeps import read_sweep
from posgap.scaling.config import ScaleApplyConfig, ScaleTransferConfig
from posgap.scaling.scaling_file import Scaling, read_scaling
from posgap.stages.frame import stage_at
from posgap.stages.sweep import sweep
from posgap.storage.cache import fetch
from posgap.storage.folders import publish_file
from posgap.storage.outputs import RunFolder
from posgap.tasks.config import Framed
from posgap.tasks.fields import MOST_DOCS, TaskName
from posgap.tasks.placements import spaced_positions
from posgap.tracking.runs import PARENT_VARIABLE, start_run

log = logging.getLogger(__name__)
# By their names, since they need torch, which is imported when there is work to do.
compare, scale_apply = stage_at("posgap.stages.compare:compare"), stage_at("posgap.stages.scale_apply:scale_apply")
TRANSFER_FILE = "transfer.json"


class Target(Record):
    """A setting to sweep: a task, a number of documents and a file of examples."""

    task: TaskName
    n_docs: int = Field(ge=1, le=MOST_DOCS)
    examples: str

    @property
    def name(self) -> str:
        """The target's name in the names of its output folders."""
        return f"{self.task}-{self.n_docs}-{Path(self.examples).name.partition('.')[0]}"


class Transferred(Record):
    """A target's figures in points: means and gaps unscaled and scaled, and the paired difference in the mean."""

    target: Target
    searched_here: bool
    mean: tuple[float, float]
    gap: tuple[float, float]
    difference: float
    difference_ci95: tuple[float, float]

    @property
    def verdict(self) -> str:
        """The conclusion from the difference's interval, in words."""
        low, high = self.difference_ci95
        if low > 0:
            return "helps" if self.searched_here else "carries over"
        if self.searched_here:
            return "harms" if high < 0 else "no gain seen"
        return "does not carry over: " + ("it harms" if high < 0 else "no gain seen")


def parse_target(text: str, searched: Scaling) -> Target:
    """The target written as `TASK:N_DOCS:EXAMPLES`, or as `EXAMPLES`: then task and length are the search's."""
    task, n_docs, examples = text.split(":", 2) if text.count(":") >= 2 else (searched.task, searched.n_docs, text)
    try:
        return parsed(Target, {"task": task, "n_docs": n_docs, "examples": examples}, f"target {text!r}")
    except PosgapError as error:
        raise PosgapError(f"{error}; write EXAMPLES, or TASK:N_DOCS:EXAMPLES like qa:20:run/eval") from None


@goes_on()
def scale_transfer(config: ScaleTransferConfig) -> list[Transferred]:
    """Writes the scaled model, the sweeps, a comparison for each target and `transfer.json` into `config.out`, and
    prints and returns the figures of all targets."""
    with RunFolder(config, "scale_transfer") as output:
        return _transfer(config, output)


def _transfer(config: ScaleTransferConfig, output: RunFolder) -> list[Transferred]:
    searched = read_scaling(fetch(config.scaling))
    targets = [parse_target(text, searched) for text in config.targets]
    if len({target.name for target in targets}) < len(targets):
        raise PosgapError(
            "two targets have the same task, length and file name, and so the same output: rename a file, or drop one"
        )
    with start_run("scale_transfer", {}, output.out) as run:
        if run.id:
            os.environ[PARENT_VARIABLE] = run.id
        scaled = scale_apply(
            ScaleApplyConfig(
                model=config.model,
                scaling=config.scaling,
                out=below(config.out, "scaled"),
                seed=config.seed,
                force=config.force,
            )
        )
        transfers = [_transferred(config, target, searched, scaled) for target in targets]
        file = output.out / TRANSFER_FILE
        result = [row.model_dump(mode="json") | {"verdict": row.verdict} for row in transfers]
        write_json(file, result)
        for number, row in enumerate(transfers, start=1):
            run.metrics({"mean_difference": row.difference}, step=number)
        run.artifact(file)
        compared = {row.target.name: below(config.out, f"{row.target.name}-comparison") for row in transfers}
        output.record([TRANSFER_FILE], compared)
        publish_file(file, below(config.out, TRANSFER_FILE), force=True)
    show(table(transfers), result)
    return transfers


def _transferred(config: ScaleTransferConfig, target: Target, searched: Scaling, scaled: Location) -> Transferred:
    # Asked as in the search; what depends on the task only where it is the same.
    of_task = {"max_new_tokens", "question", "metric"} if target.task == searched.task else set()
    alike = {*Framed.model_fields, *of_task}
    # The scaled model is swept first: that fails at once if its scaling was searched on any of the examples.
    after, before = (
        sweep(
            SweepConfig(
                **target.model_dump(),
                **{name: searched.settings[name] for name in alike & searched.settings.keys()},
                model=str(model),
                label=label,
                positions=spaced_positions(target.n_docs, config.n_positions),
                out=below(config.out, f"{target.name}-{label}"),
                **config.model_dump(include={"limit", "dtype", "batch_tokens", "max_unanswered", "seed", "force"}),
            )
        )
        for label, model in (("scaled", scaled), ("unscaled", config.model))
    )
    compared = compare(
        CompareConfig(
            sweeps=[before, after],
            out=below(config.out, f"{target.name}-comparison"),
            seed=config.seed,
            force=config.force,
        )
    )
    (difference,) = read_comparison(fetch(compared)).differences
    sweeps = [read_sweep(fetch(folder)) for folder in (before, after)]
    return Transferred(
        target=target,
        searched_here=(target.task, target.n_docs) == (searched.task, searched.n_docs),
        mean=[swept.mean for swept in sweeps],
        gap=[swept.gap for swept in sweeps],
        difference=difference.mean,
        difference_ci95=difference.mean_ci95,
    )


def table(transfers: list[Transferred]) -> str:
    """A table of aligned text with one line per target, and a line that sums it up."""
    width = max(len("target"), *(len(row.target.name) for row in transfers))
    head = f"{'target':<{width}}{'mean':>8}{'scaled':>8}{'gap':>8}{'scaled':>8}   difference in mean"
    lines = []
    for row in transfers:
        (low, high), figures = row.difference_ci95, (*row.mean, *row.gap)
        cells = "".join(f"{value:8.1f}" for value in figures)
        lines.append(
            f"{row.target.name:<{width}}{cells}   {row.difference:+.1f} ({low:+.1f} to {high:+.1f}): {row.verdict}"
            + (" (where it was searched)" if row.searched_here else "")
        )
    elsewhere = [row for row in transfers if not row.searched_here]
    kept = sum(row.verdict == "carries over" for row in elsewhere)
    summary = [f"carries over to {kept} of {len(elsewhere)} other settings"] if elsewhere else []
    return "\n".join([head, "-" * len(head), *lines, *summary])
