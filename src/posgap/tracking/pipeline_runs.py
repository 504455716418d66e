"""A pipeline run as MLflow knows it: a run of its own, and below it the runs of its stages."""

import logging
from dataclasses import dataclass
from typing import Any

from posgap.foundation.heavy_types import DatasetInput, MlflowClient
from posgap.tracking.parents import PARENT_TAG, PIPELINE, PIPELINE_TAG, STAGE_TAG, parent_of
from posgap.tracking.runs import ERROR_TAG, KILLED, LABEL_TAG, NOTE_TAG, milliseconds
from posgap.tracking.server import STAGE, TrackingError, call_mlflow, experiment_id, is_tracking

log = logging.getLogger(__name__)
_FIGURES = ("gap", "gap_high", "mean", "worst")


@dataclass(frozen=True)
class StageRun:
    """One stage that ran: `status` is MLflow's, RUNNING if it was killed. A step that KFP took from its cache did not
    run. `detail` tells stages of one name apart."""

    stage: str
    detail: str
    status: str
    seconds: float
    error: str
    metrics: dict[str, float]
    tags: dict[str, str]
    datasets: list[DatasetInput]
    run_id: str
    candidates: int = 1  # that a gate knows to be judged in its run

    @property
    def name(self) -> str:
        return f"{self.stage} {self.detail}".strip()


def steps(pipeline_run: str) -> list[StageRun]:
    """Returns the stages of a pipeline run by their start. Raises `TrackingError` if no server answers."""
    condition = f"tags.`{PIPELINE_TAG}` = '{pipeline_run}'"

    def runs(client: MlflowClient) -> list:
        in_order = ["attributes.start_time ASC"]
        return list(client.search_runs([experiment_id(client)], condition, order_by=in_order, max_results=1000))

    return [_stage_run(run) for run in call_mlflow(runs, STAGE) if run.data.tags.get(STAGE_TAG) != PIPELINE]


def parent(pipeline_run: str) -> str:
    """The id of a pipeline run's own MLflow run; empty, with a warning, if MLflow does not answer."""
    try:
        return call_mlflow(lambda client: parent_of(client, experiment_id(client), pipeline_run, {}), STAGE)
    except TrackingError as error:
        log.warning("the stages are not grouped: %s", error)
        return ""


def close(parent: str, stages: list[StageRun], succeeded: bool, note: str, tags: dict[str, str]) -> None:
    """Ends the MLflow run `parent` of a pipeline run. It gets the description `note`, the tags, the data of its stages,
    and the figures of the model that was promoted. It becomes the parent of stages that have none.

    If MLflow does not answer, it only warns.
    """
    from mlflow.entities import Metric, RunTag

    promoted = next((step for step in stages if step.tags.get("posgap.promotion") == "promoted"), None)
    figures = {name: promoted.metrics[name] for name in _FIGURES if name in promoted.metrics} if promoted else {}
    now = milliseconds()
    datasets = {(each.dataset.name, each.dataset.digest): each for step in stages for each in step.datasets}

    def tell(client: MlflowClient) -> None:
        for step in stages:
            if PARENT_TAG not in step.tags:
                client.set_tag(step.run_id, PARENT_TAG, parent)
        client.log_batch(
            parent,
            metrics=[Metric(name, value, now, 0) for name, value in figures.items()],
            tags=[RunTag(name, value) for name, value in (tags | {NOTE_TAG: note}).items()],
        )
        client.log_inputs(parent, list(datasets.values()))
        client.set_terminated(parent, "FINISHED" if succeeded else "FAILED")

    try:
        call_mlflow(tell, STAGE)
    except TrackingError as error:
        log.warning("the run of the pipeline stays open in MLflow: %s", error)


def close_killed(pipeline_run: str) -> bool:
    """Closes as KILLED what the killed processes of a pipeline run left open in MLflow: the run itself and those of its
    stages. The caller knows that they are dead.

    Whether nothing is open any more; where MLflow does not answer it warns, and a later command can try again.
    """
    condition = f"tags.`{PIPELINE_TAG}` = '{pipeline_run}' and attributes.status = 'RUNNING'"

    def close(client: MlflowClient) -> None:
        for run in client.search_runs([experiment_id(client)], condition):
            client.set_terminated(run.info.run_id, KILLED)
            log.info("the MLflow run %s of a process that was killed is closed", run.info.run_name)

    try:
        if is_tracking():
            call_mlflow(close, STAGE)
        return is_tracking()
    except TrackingError as error:
        log.warning("runs of a pipeline that was killed stay open in MLflow: %s", error)
        return False


def _stage_run(run: Any) -> StageRun:
    tags = run.data.tags
    parameters = run.data.params
    info = run.info
    label = parameters.get("label") or tags.get(LABEL_TAG) or parameters.get("method", "")
    return StageRun(
        stage=tags.get(STAGE_TAG, info.run_name),
        detail=" ".join(filter(None, (label, parameters.get("shard", "")))),
        status=info.status,
        seconds=round(((info.end_time or info.start_time) - info.start_time) / 1000, 1),
        error=tags.get(ERROR_TAG, ""),
        metrics=dict(run.data.metrics),
        tags=dict(tags),
        datasets=list(run.inputs.dataset_inputs),
        run_id=info.run_id,
        candidates=int(parameters.get("candidates", 1)),
    )
