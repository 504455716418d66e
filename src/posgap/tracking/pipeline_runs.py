"""A pipeline run as MLflow knows it: the runs of its stages."""

import logging
from dataclasses import dataclass
from typing import Any

from posgap.errors import PosgapError
from posgap.tracking.runs import ERROR_TAG, PIPELINE_TAG, STAGE_TAG, experiment_id, require_server

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
    """The stages of a pipeline run in the order in which they started; `PosgapError` where no server answers."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    require_server()
    client = MlflowClient()
    try:
        found = client.search_runs(
            [experiment_id(client)],
            f"tags.`{PIPELINE_TAG}` = '{pipeline_run}'",
            order_by=["attributes.start_time ASC"],
            max_results=1000,
        )
    except MlflowException as error:
        raise PosgapError(f"MLflow does not list the stages: {str(error).splitlines()[0]}") from None
    return [_step(run) for run in found]


def adopt(steps_of_run: list[Step], parent: str) -> None:
    """Hangs stages that have no parent yet below the MLflow run `parent`, as far as the server lets it."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    client = MlflowClient()
    try:
        for step in steps_of_run:
            if step.run_id != parent and "mlflow.parentRunId" not in step.tags:
                client.set_tag(step.run_id, "mlflow.parentRunId", parent)
    except MlflowException as error:
        log.warning("MLflow does not group the stages: %s", str(error).splitlines()[0])


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
