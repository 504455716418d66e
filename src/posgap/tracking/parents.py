"""The MLflow run of a whole pipeline run, below which the runs of its stages hang.

Each stage looks for it when it opens its own run, and the first one makes it: there is no process that lives as long as
a pipeline run on a cluster.
"""

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

PIPELINE_TAG, STAGE_TAG = "posgap.pipeline_run", "posgap.stage"
PARENT_TAG = "mlflow.parentRunId"
PIPELINE = "pipeline"  # what the run of a pipeline run has as its stage
# How often it is looked for, when the first one gives way, and the seconds between.
_LOOKS, _PATIENT, _BETWEEN_LOOKS = 40, 12, 0.3


def parent_of(client: "MlflowClient", experiment_id: str, pipeline_run: str, tags: dict[str, str]) -> str:
    """The id of a pipeline run's own run, which is made with these tags where there is none.

    Several stages may make one at the same moment. Each then waits until one is left: all but the first are deleted by
    who made them, and the first, too, where another stays, which its maker took before the first was there. What is
    left over all the same, `report` sets right.
    """
    there, own = _parents(client, experiment_id, pipeline_run), ""
    for look in range(_LOOKS):
        if len(there) == 1:
            break
        if not there:
            own = _made(client, experiment_id, pipeline_run, tags)
        elif own in there and (there[0] != own or look >= _PATIENT):
            client.delete_run(own)
        if look:
            time.sleep(_BETWEEN_LOOKS)
        there = _parents(client, experiment_id, pipeline_run)
    return next(iter(there), own)


def _made(client: "MlflowClient", experiment_id: str, pipeline_run: str, tags: dict[str, str]) -> str:
    tags = tags | {PIPELINE_TAG: pipeline_run, STAGE_TAG: PIPELINE}
    name = f"pipeline {pipeline_run[:13]}"
    return client.create_run(experiment_id, int(1000 * time.time()), tags, name).info.run_id


def _parents(client: "MlflowClient", experiment_id: str, pipeline_run: str) -> list[str]:
    condition = f"tags.`{PIPELINE_TAG}` = '{pipeline_run}' and tags.`{STAGE_TAG}` = '{PIPELINE}'"
    there = client.search_runs([experiment_id], condition)
    return [run.info.run_id for run in sorted(there, key=lambda run: (run.info.start_time, run.info.run_id))]
