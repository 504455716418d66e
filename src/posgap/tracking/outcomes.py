"""How a pipeline run ended: put together from what KFP says, MLflow's runs of its stages, and the registry."""

import logging
import os
from collections import Counter
from collections.abc import Mapping
from typing import Any

from posgap.foundation import tables
from posgap.tracking import registry
from posgap.tracking.pipeline_runs import StageRun, steps
from posgap.tracking.presentation import METHOD
from posgap.tracking.runs import NOTE_TAG, PIPELINE_TAG, link
from posgap.tracking.server import TrackingError

log = logging.getLogger(__name__)
MLFLOW_UI = "POSGAP_MLFLOW_UI"  # the address of MLflow that a browser opens
JUDGES = ("gate", "watch")  # stages that judge a sweep
SUCCEEDED, FAILED = "succeeded", "failed"
# KFP's words for the state of a group of steps; others say nothing at the end.
_STATES = {"SUCCEEDED": SUCCEEDED, "COMPLETE": SUCCEEDED, "CACHED": SUCCEEDED, "FAILED": FAILED, "CANCELED": FAILED}
_KILLED = "it was killed before it could say why (out of memory?); see its log in KFP"
_SILENT = "a step failed before it could say why; see its log in KFP"
_BY_HAND = "a person ended the run"


def stages_of(pipeline_run: str) -> list[StageRun]:
    """The stages of a run; none, with a warning, if MLflow does not answer."""
    try:
        return steps(pipeline_run) if pipeline_run else []
    except TrackingError as error:
        log.warning("%s; the report leaves out the stages", error)
        return []


def outcome(
    pipeline_run: str,
    stages: list[StageRun],
    state: str,
    message: str,
    name: str,
    run_id: str,
    *,
    reasons: Mapping[str, str] | None = None,
    is_ended_by_hand: bool = False,
) -> dict[str, Any]:
    """Status, failed steps with their errors, candidates and their gates, the champion of `name`, and links; one leads
    to the MLflow run `run_id`.

    `state` and `message` are KFP's. `reasons` are Kubernetes' of the steps that failed, which count if MLflow has none.
    The last try of a step counts.
    """
    last = list({step.name: step for step in stages}.values())
    failed = []
    candidates = []
    skipped = ""
    for step in last:
        if step.status != "FINISHED":
            failed.append({"step": step.name, "error": step.error or (_BY_HAND if is_ended_by_hand else _KILLED)})
        elif step.stage in JUDGES:
            candidates.append(_candidate(step))
        if _skips(step) and not skipped:
            skipped = step.tags.get(NOTE_TAG, "")
    is_complete = _is_complete(last)
    # KFP leaves a run RUNNING behind a branch that was skipped, and behind a step that its own driver could not start.
    was_cut = state == "RUNNING" and bool(stages) and not is_complete
    status = _STATES.get(state) or (FAILED if failed or was_cut or is_ended_by_hand else SUCCEEDED)
    was_retried = any(step.status != "FINISHED" for step in stages) and not failed
    if state == "FAILED" and was_retried and is_complete:
        # KFP marks the groups of a failed try, and unmarks them by what comes after: behind a refusing gate, nothing.
        status = SUCCEEDED
    return {
        "pipeline_run": pipeline_run,
        "status": status,
        "failed": (failed or _unrecorded(message, reasons or {}, is_ended_by_hand)) if status == FAILED else [],
        "skipped": skipped,
        "candidates": candidates,
        "champion": _champion(name, pipeline_run),
        "seconds": {step.name: step.seconds for step in last},
        "links": _links(pipeline_run, run_id),
        "mlflow_run": run_id,
    }


def _unrecorded(message: str, reasons: Mapping[str, str], is_ended_by_hand: bool) -> list[dict[str, str]]:
    """Returns the failed steps of a run that MLflow has no record of."""
    if is_ended_by_hand:
        return [{"step": "", "error": _BY_HAND}]
    return [{"step": step, "error": why} for step, why in reasons.items()] or [
        {"step": "", "error": message or _SILENT}
    ]


def _is_complete(last: list[StageRun]) -> bool:
    """Returns whether each candidate was judged, and each that was admitted promoted, or there was nothing to do."""
    judged = [step for step in last if step.stage in JUDGES]
    if not judged:
        return any(map(_skips, last))
    promoted = Counter(step.stage for step in last)["promote"]
    admitted = Counter(step.tags.get("posgap.gate") for step in judged if step.stage == "gate")["admitted"]
    return len(judged) >= max(step.candidates for step in judged) and promoted >= admitted


def _skips(step: StageRun) -> bool:
    return step.tags.get("posgap.skip") == "true"


def _candidate(step: StageRun) -> dict[str, Any]:
    wanted: tuple[str, ...] = ("mean", "gap", "gap_value")
    figures = {name: round(step.metrics[name], 2) for name in wanted if name in step.metrics}
    return {"label": step.detail, "gate": step.tags.get("posgap.gate", ""), **figures}


def _champion(name: str, pipeline_run: str) -> dict[str, Any] | None:
    try:
        version = registry.champion(name)
    except TrackingError as error:
        log.warning("%s; the report leaves out the champion", error)
        return None
    if version is None:
        return None
    return {
        "name": name,
        "version": str(version.version),
        "method": version.tags.get(METHOD, ""),
        "of_this_run": bool(pipeline_run) and version.tags.get(PIPELINE_TAG) == pipeline_run,
    }


def _links(pipeline_run: str, run_id: str) -> dict[str, str]:
    kfp = os.environ.get("POSGAP_KFP_UI", "").rstrip("/")
    mlflow = ""
    seen_at = os.environ.get(MLFLOW_UI, "").rstrip("/")
    # The address by which pods reach MLflow is known to no browser.
    if run_id and (seen_at or "KUBERNETES_SERVICE_HOST" not in os.environ):
        mlflow = link(run_id, seen_at)
    links = {"kfp": f"{kfp}/#/runs/details/{pipeline_run}"} if kfp and pipeline_run else {}
    return links | ({"mlflow": mlflow} if mlflow else {})


def markdown(outcome: dict[str, Any]) -> str:
    """The outcome for people."""
    lines = [f"# The run {outcome['status']}", ""]
    lines += [f"- **{failed['step'] or 'a step'}**: {failed['error']}" for failed in outcome["failed"]]
    lines += [outcome["skipped"]] if outcome["skipped"] else []
    if outcome["candidates"]:
        shown = {"label": "candidate", "mean": "mean", "gap": "gap", "gap_value": "gap, upper end", "gate": "gate"}
        rows = [[str(each.get(name, "")) for name in shown] for each in outcome["candidates"]]
        lines += ["", tables.markdown(list(shown.values()), rows)]
    champion = outcome["champion"]
    if champion:
        whose = "of this run" if champion["of_this_run"] else "as before"
        lines += ["", f"Champion of {champion['name']}: version {champion['version']} ({champion['method']}), {whose}."]
    lines += ["", *(f"[{name}]({address})" for name, address in outcome["links"].items())]
    if "mlflow" not in outcome["links"] and outcome["mlflow_run"]:
        lines.append(f"MLflow: run {outcome['mlflow_run']}")
    return "\n".join(lines).rstrip() + "\n"
