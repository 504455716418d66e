"""The MLflow run of a whole pipeline run, below which the runs of its stages hang.

Each stage looks for it when it opens its own run, and the first one makes it: there is no process that lives as long as
a pipeline run on a cluster.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlflow import MlflowClient

PIPELINE_TAG, STAGE_TAG = "posgap.pipeline_run", "posgap.stage"
PARENT_TAG = "mlflow.parentRunId"
PIPELINE = "pipeline"  # what the run of a pipeline run has as its stage


def parent_of(
    client: "MlflowClient", experiment_id: str, pipeline_run: str, tags: dict[str, str], milliseconds: int
) -> str:
    """The id of a pipeline run's own run, which is made with these tags where there is none.

    Of several that stages made at the same moment the first one stays, and each stage deletes what it made too much.
    """
    if there := _parents(client, experiment_id, pipeline_run):
        return there[0]
    tags = tags | {PIPELINE_TAG: pipeline_run, STAGE_TAG: PIPELINE}
    own = client.create_run(experiment_id, milliseconds, tags, f"pipeline {pipeline_run[:13]}").info.run_id
    first = next(iter(_parents(client, experiment_id, pipeline_run)), own)
    if first != own:
        client.delete_run(own)
    return first


def _parents(client: "MlflowClient", experiment_id: str, pipeline_run: str) -> list[str]:
    condition = f"tags.`{PIPELINE_TAG}` = '{pipeline_run}' and tags.`{STAGE_TAG}` = '{PIPELINE}'"
    there = client.search_runs([experiment_id], condition)
    return [run.info.run_id for run in sorted(there, key=lambda run: (run.info.start_time, run.info.run_id))]
