"""The MLflow run of a whole pipeline run, below which the runs of its stages hang.

Each stage looks for it when it opens its own run, and the first one creates it: on a cluster no process lives as long
as a pipeline run. KFP's MLflow plugin makes such a run itself: the report takes that one.
"""

import os
import time

from posgap.foundation.heavy_types import MlflowClient

PIPELINE_TAG, STAGE_TAG = "posgap.pipeline_run", "posgap.stage"
PARENT_TAG = "mlflow.parentRunId"
JOINED_VARIABLE = "MLFLOW_RUN_ID"  # the run that a stage joins, of `mlflow run` or of KFP's MLflow plugin
KFP_TAG = "kfp.pipeline_run_id"  # of the run that KFP's MLflow plugin makes of a pipeline run
PIPELINE = "pipeline"  # the stage of a pipeline run's own run
TAKEN_TAG = "posgap.taken"  # marks the run that was chosen
_LOOKS, _BETWEEN_LOOKS = 40, 0.3  # how often it is looked for, and the seconds between


def parent_of(client: MlflowClient, experiment_id: str, pipeline_run: str, tags: dict[str, str]) -> str:
    """The id of a pipeline run's own run: that of KFP's MLflow plugin, or else one that is created with these tags if
    there is none.

    Several stages may create one at the same moment, on machines whose clocks differ. A stage that sees only its own
    run marks it as taken. No two stages can do so: each looks after it has created its own, so the later one sees both.
    Only a marked run becomes a parent. A stage deletes its own run as soon as it sees a marked or an earlier one. If
    none gets marked, because a stage was killed in between, the first is taken after some seconds.
    """
    of_plugin = _run_of_plugin(client, pipeline_run)
    if of_plugin:
        return of_plugin
    own = ""
    condition = f"tags.`{PIPELINE_TAG}` = '{pipeline_run}' and tags.`{STAGE_TAG}` = '{PIPELINE}'"
    for look in range(_LOOKS):
        found = client.search_runs([experiment_id], condition)
        there = sorted(found, key=lambda run: (run.info.start_time, run.info.run_id))
        ids = [run.info.run_id for run in there]
        taken = next((run.info.run_id for run in there if TAKEN_TAG in run.data.tags), "")
        if own in ids and own != (taken or ids[0]):
            client.delete_run(own)
        if taken:
            return taken
        if ids == [own]:
            break
        if not there:
            now = int(1000 * time.time())
            tags = tags | {PIPELINE_TAG: pipeline_run, STAGE_TAG: PIPELINE}
            own = client.create_run(experiment_id, now, tags, f"pipeline {pipeline_run[:13]}").info.run_id
        elif look:
            time.sleep(_BETWEEN_LOOKS)
    else:
        own = next(iter(ids), own)
    client.set_tag(own, TAKEN_TAG, "true")
    return own


def _run_of_plugin(client: MlflowClient, pipeline_run: str) -> str:
    """The id of the run that KFP's MLflow plugin made of a pipeline run, marked as the parent; empty without the
    plugin. The runs of loops and conditions lie between it and the joined run of a step."""
    joined = os.environ.get(JOINED_VARIABLE)
    run = client.get_run(joined) if joined else None
    while run and PARENT_TAG in run.data.tags:
        run = client.get_run(run.data.tags[PARENT_TAG])
    if not run or run.data.tags.get(KFP_TAG) != pipeline_run:
        return ""
    for tag, value in {PIPELINE_TAG: pipeline_run, STAGE_TAG: PIPELINE, TAKEN_TAG: "true"}.items():
        client.set_tag(run.info.run_id, tag, value)
    return run.info.run_id
