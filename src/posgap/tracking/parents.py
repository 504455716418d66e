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
TAKEN_TAG = "posgap.taken"  # this run of a pipeline run is the one, and stays
_LOOKS, _BETWEEN_LOOKS = 40, 0.3  # how often it is looked for, and the seconds between


def parent_of(client: "MlflowClient", experiment_id: str, pipeline_run: str, tags: dict[str, str]) -> str:
    """The id of a pipeline run's own run, which is made with these tags where there is none.

    Several stages may make one at the same moment, on machines whose clocks differ. Who sees its own alone marks it as
    taken, which no two can: each looks after it has made its own, so the later of them sees both. A stage hangs itself
    below a marked run only. All others are deleted by who made them: at once where one is marked or an earlier one is
    there. Where nobody marks any, because a stage was killed in between, the first is taken after some seconds.
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
            now, tags = int(1000 * time.time()), tags | {PIPELINE_TAG: pipeline_run, STAGE_TAG: PIPELINE}
            own = client.create_run(experiment_id, now, tags, f"pipeline {pipeline_run[:13]}").info.run_id
        elif look:
            time.sleep(_BETWEEN_LOOKS)
    else:
        own = next(iter(ids), own)
    client.set_tag(own, TAKEN_TAG, "true")
    return own
