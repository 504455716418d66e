"""Runs a verb inside its KFP step: makes its options of the step's arguments, and fills in what the run page shows."""

import importlib
import inspect
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from posgap.foundation.errors import Rejection
from posgap.kubeflow import artifacts
from posgap.kubeflow.arguments import to_config
from posgap.kubeflow.keeping import keep_work
from posgap.kubeflow.launching import on_all_gpus
from posgap.options.table import stage_config
from posgap.tracking.version_record import swept_champions

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """A verb as a step.

    `show` takes the step's arguments that it names, once the verb has done its work; the step returns its result.
    `function` replaces the command line as the verb's work. `values` makes fields from arguments that are no fields
    themselves. If `keeps_work`, the unfinished work in the folder of `work_below` is kept, by default the output's.
    `show_rejected` shows the output that the verb refused.
    """

    show: Callable[..., Any]
    function: str = ""
    values: Callable[[Arguments], dict[str, Any]] = lambda _: {}
    keeps_work: bool = False
    work_below: Callable[[], Path] | None = None
    on_all_gpus: bool = False
    show_rejected: Callable[[Arguments], None] | None = None


def _compared(arguments: Arguments) -> dict[str, Any]:
    return {"sweeps": [arguments["reference"].path, arguments["candidate"].path]}


def _ended(arguments: Arguments) -> dict[str, Any]:
    status = arguments["status"]
    return {"state": status.state, "message": status.error_message or ""}


def _judged_again(arguments: Arguments) -> dict[str, Any]:
    # Another run may have promoted since the gate: then the candidate is judged again, in a folder of this pod.
    return {"gate_again": arguments["gate_again"] or artifacts.verdict_beside(arguments["out"])}


def _show_rejected_examples(arguments: Arguments) -> None:
    shutil.copyfile(Path(f"{arguments['out'].path}.rejected", "validation.html"), arguments["page"].path)


_PREDICTED = ("prediction.json", "prediction.png", "comparison.json", "comparison.png")
STEPS = {
    "apply": Step(artifacts.show_model),
    "champion": Step(artifacts.show_champion, keeps_work=True, work_below=swept_champions),
    "compare": Step(partial(artifacts.show_page, name="comparison.html"), values=_compared),
    "data_version": Step(artifacts.show_data_version),
    "distill": Step(artifacts.show_training, keeps_work=True, on_all_gpus=True),
    "gate": Step(artifacts.show_gate, function="judge_and_write"),
    "merge": Step(artifacts.show_sweep),
    "mitigate": Step(artifacts.show_mitigate, keeps_work=True),
    "preflight": Step(artifacts.show_preflight),
    "promote": Step(artifacts.show_promotion, values=_judged_again),
    "report": Step(partial(artifacts.show_summary, name="report.md"), values=_ended),
    "rollout_experiment": Step(partial(artifacts.show_rollout, names=("experiment.json", "experiment.png"))),
    "rollout_measure": Step(partial(artifacts.show_rollout, names=("measurement.json", "influence.png"))),
    "rollout_predict": Step(partial(artifacts.show_rollout, names=_PREDICTED)),
    "scale_search": Step(artifacts.show_scaling),
    "sweep": Step(artifacts.show_sweep, function="sweep_model", keeps_work=True),
    "teacher": Step(artifacts.show_responses, keeps_work=True),
    "train_job": Step(artifacts.show_training),
    "validate": Step(artifacts.show_examples, show_rejected=_show_rejected_examples),
    "watch": Step(partial(artifacts.show_summary, name="watch.md")),
}


def run_step(name: str, arguments: Arguments) -> Any:
    """Runs the verb of a step with its arguments, and returns the component's result; `name` is that of the verb's
    files."""
    step = STEPS[name]
    work = getattr(importlib.import_module(f"posgap.verbs.{name}"), step.function or name)
    out = arguments["out"]
    below = step.work_below() if step.work_below else None
    with keep_work(out, below) if step.keeps_work else nullcontext("") as place:
        kept = {"work": place} if "work" in arguments and place and not arguments["work"] else {}
        config = to_config(stage_config(name), {**arguments, **kept}, **step.values(arguments))
        try:
            on_all_gpus(work, config) if step.on_all_gpus else work(config)  # type: ignore[type-var]  # of a stage
        except Rejection:
            if step.show_rejected:
                step.show_rejected(arguments)
            raise
    wanted = inspect.signature(step.show).parameters.keys() - getattr(step.show, "keywords", {}).keys()
    return step.show(**{each: value for each, value in arguments.items() if each in wanted})
