"""A pipeline run as MLflow knows it: the runs of its stages."""

import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from posgap.tracking.runs import ERROR_TAG, PIPELINE_TAG, STAGE_TAG
from posgap.tracking.server import STAGE, TrackingError, ask, experiment_id

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Step:
    """One stage that ran: `status` is MLflow's, RUNNING where it was killed. A step that KFP took from its
    cache did not run. `detail` tells stages of one name apart."""

    stage: str
    detail: str
    status: str
    seconds: float
    error: str
    metrics: dict[str, float]
    tags: dict[str, str]
    run_id: str

    @property
    def name(self) -> str:
        return f"{self.stage} {self.detail}".strip()


def steps(pipeline_run: str) -> list[Step]:
    """The stages of a pipeline run in the order in which they started; `TrackingError` where no server answers."""
    condition = f"tags.`{PIPELINE_TAG}` = '{pipeline_run}'"

    def runs(client: "MlflowClient") -> list:
        in_order = ["attributes.start_time ASC"]
        return list(client.search_runs([experiment_id(client)], condition, order_by=in_order, max_results=1000))

    return [_step(run) for run in ask(runs, STAGE)]


def adopt(steps_of_run: list[Step], parent: str) -> None:
    """Hangs stages that have no parent yet below the MLflow run `parent`, as far as the server lets it."""
    orphans = [s.run_id for s in steps_of_run if s.run_id != parent and "mlflow.parentRunId" not in s.tags]
    try:
        for run_id in orphans:
            ask(partial(_hang, run_id=run_id, parent=parent), STAGE)
    except TrackingError as error:
        log.warning("the stages are not grouped: %s", error)


def _hang(client: "MlflowClient", run_id: str, parent: str) -> None:
    client.set_tag(run_id, "mlflow.parentRunId", parent)


def _step(run: Any) -> Step:
    tags, parameters, info = run.data.tags, run.data.params, run.info
    label = parameters.get("label") or tags.get("posgap.label") or parameters.get("method", "")
    return Step(
        stage=tags.get(STAGE_TAG, info.run_name),
        detail=" ".join(filter(None, (label, parameters.get("shard", "")))),
        status=info.status,
        seconds=round(((info.end_time or info.start_time) - info.start_time) / 1000, 1),
        error=tags.get(ERROR_TAG, ""),
        metrics=dict(run.data.metrics),
        tags=dict(tags),
        run_id=info.run_id,
    )
