"""The MLflow run of a whole pipeline run, below which the runs of its stages hang.

Each stage looks for it when it opens its own run, and the first one creates it: on a cluster no process lives as long
as a pipeline run.
"""

import time

from posgap.foundation.heavy_types import MlflowClient

PIPELINE_TAG, STAGE_TAG = "posgap.pipeline_run", "posgap.stage"
PARENT_TAG = "mlflow.parentRunId"
PIPELINE = "pipeline"  # the stage of a pipeline run's own run
TAKEN_TAG = "posgap.taken"  # marks the run that was chosen
_LOOKS, _BETWEEN_LOOKS = 40, 0.3  # how often it is looked for, and the seconds between


def parent_of(client: MlflowClient, experiment_id: str, pipeline_run: str, tags: dict[str, str]) -> str:
    """The id of a pipeline run's own run, which is created with these tags if there is none.

    Several stages may create one at the same moment, on machines whose clocks differ. A stage that sees only its own
    run marks it as taken. No two stages can do so: each looks after it has created its own, so the later one sees both.
    Only a marked run becomes a parent. A stage deletes its own run as soon as it sees a marked or an earlier one. If
    none gets marked, because a stage was killed in between, the first is taken after some seconds.
    """
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
