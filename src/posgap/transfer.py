"""Does a scaling found on one task or length help on others?

A run of several stages, each reused where it is complete: the scaling is applied, both models are
swept at every target, and the sweeps are compared.
"""

import logging
import os
from pathlib import Path

from pydantic import Field

from posgap.config import CompareConfig, ScaleApplyConfig, ScaleTransferConfig, SweepConfig
from posgap.config.fields import MOST_DOCS, TaskName
from posgap.errors import PosgapError
from posgap.files import Record, parsed, write_json
from posgap.interruption import goes_on
from posgap.locations import Location, below
from posgap.measurement.comparison import read_comparison
from posgap.measurement.sweeps import read_sweep
from posgap.scaling.scaling_file import Scaling, read_scaling
from posgap.stages.compare import compare
from posgap.stages.scale_apply import scale_apply
from posgap.stages.sweep import sweep
from posgap.storage.cache import fetch
from posgap.storage.folders import publish, twin
from posgap.tasks.placements import spaced_positions
from posgap.tracking.runs import PARENT_VARIABLE, start_run

log = logging.getLogger(__name__)
TRANSFER_FILE = "transfer.json"


class Target(Record):
    """What to sweep: a task, at a length, on a file of examples."""

    task: TaskName
    n_docs: int = Field(ge=1, le=MOST_DOCS)
    examples: str

    @property
    def name(self) -> str:
        return f"{self.task}-{self.n_docs}-{Path(self.examples).name.partition('.')[0]}"


class Transferred(Record):
    """A target's figures in points: means, gaps, and the paired difference in the mean."""

    target: Target
    searched_here: bool
    mean: tuple[float, float]
    gap: tuple[float, float]
    difference: float
    difference_ci95: tuple[float, float]

    @property
    def verdict(self) -> str:
        """What the interval of the difference says."""
        low, high = self.difference_ci95
        if low > 0:
            return "helps" if self.searched_here else "carries over"
        if self.searched_here:
            return "harms" if high < 0 else "no gain seen"
        return "does not carry over: " + ("it harms" if high < 0 else "no gain seen")


def parse_target(text: str, searched: Scaling) -> Target:
    """The target that `EXAMPLES` or `TASK:N_DOCS:EXAMPLES` names; the first is where the search was."""
    task, n_docs, examples = text.split(":", 2) if text.count(":") >= 2 else (searched.task, searched.n_docs, text)
    try:
        return parsed(Target, {"task": task, "n_docs": n_docs, "examples": examples}, f"target {text!r}")
    except PosgapError as error:
        raise PosgapError(f"{error}; write EXAMPLES, or TASK:N_DOCS:EXAMPLES like qa:20:run/eval") from None


@goes_on()
def scale_transfer(config: ScaleTransferConfig) -> list[Transferred]:
    """Writes the scaled model, the sweeps, a comparison for each target and `transfer.json` into
    `config.out`; prints and returns what they say."""
    searched = read_scaling(fetch(config.scaling))
    targets = [parse_target(text, searched) for text in config.targets]
    if len({target.name for target in targets}) < len(targets):
        raise PosgapError("two targets of one task and length are in files of one name: rename a file, or drop one")
    with start_run("scale_transfer", {}, twin(config.out)) as run:
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
        found = [_transferred(config, target, searched, scaled) for target in targets]
        file = twin(below(config.out, TRANSFER_FILE))
        write_json(file, [one.model_dump(mode="json") | {"verdict": one.verdict} for one in found])
        for number, one in enumerate(found, start=1):
            run.metrics({"mean_difference": one.difference}, step=number)
        run.artifact(file)
        publish(file, below(config.out, TRANSFER_FILE))
    print(table(found))
    return found


def _transferred(config: ScaleTransferConfig, target: Target, searched: Scaling, scaled: Location) -> Transferred:
    # Of one task, prompts and answers are those of the search.
    alike = {"max_new_tokens", "question", "metric"} if target.task == searched.task else set()
    # The scaled model goes first: it refuses the examples that its scaling was searched on.
    after, before = (
        sweep(
            SweepConfig(
                **target.model_dump(),
                **{name: searched.settings[name] for name in alike & searched.settings.keys()},
                model=str(model),
                label=label,
                positions=spaced_positions(target.n_docs, config.n_positions),
                out=below(config.out, f"{target.name}-{label}"),
                **config.model_dump(include={"limit", "dtype", "batch_tokens", "seed", "force"}),
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
        mean=[one.mean for one in sweeps],
        gap=[one.gap for one in sweeps],
        difference=difference.mean,
        difference_ci95=difference.mean_ci95,
    )


def table(found: list[Transferred]) -> str:
    """What was found as aligned text, one target a line, and a line that sums it up."""
    width = max(len("target"), *(len(one.target.name) for one in found))
    head = f"{'target':<{width}}{'mean':>8}{'scaled':>8}{'gap':>8}{'scaled':>8}   difference in mean"
    rows = []
    for one in found:
        (low, high), figures = one.difference_ci95, (*one.mean, *one.gap)
        cells = "".join(f"{value:8.1f}" for value in figures)
        rows.append(
            f"{one.target.name:<{width}}{cells}   {one.difference:+.1f} ({low:+.1f} to {high:+.1f}): {one.verdict}"
            + (" (where it was searched)" if one.searched_here else "")
        )
    elsewhere = [one for one in found if not one.searched_here]
    kept = sum(one.verdict == "carries over" for one in elsewhere)
    summary = [f"carries over to {kept} of {len(elsewhere)} other settings"] if elsewhere else []
    return "\n".join([head, "-" * len(head), *rows, *summary])
