"""train_job: runs `distill` on several machines of a cluster, as a TrainJob of Kubeflow Trainer."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

from posgap.foundation import files
from posgap.foundation.interruption import resumable
from posgap.foundation.locations import Location, is_uri, with_uris
from posgap.kubeflow.following import run_job
from posgap.kubeflow.launching import as_options
from posgap.kubeflow.train_jobs import Job, connect
from posgap.options.train_job import TrainJobConfig
from posgap.storage.cache import MANIFEST, fetch_location
from posgap.storage.folders import ResumableFolder, require_ours, upload_path
from posgap.storage.inputs import Source
from posgap.storage.outputs import Folder
from posgap.tracking.parents import JOINED_VARIABLE
from posgap.tracking.runs import PARENT_VARIABLE, PIPELINE_VARIABLE
from posgap.verbs.frame import identity_of, record_of, stale_reason
from posgap.verbs.inputs import sources

log = logging.getLogger(__name__)
# Variables passed on from the step to its pods. None is secret: secrets come from the runtime's Kubernetes secrets.
_PASSED_ON = (
    *("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID", PARENT_VARIABLE, PIPELINE_VARIABLE),
    *("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"),
)


@resumable()
def train_job(config: TrainJobConfig) -> Location:
    """Runs `posgap distill` as a TrainJob, and returns `config.out`: the same folder that `distill` would write here.

    Pods share no disk with this machine. So local inputs are uploaded below `config.work`, and unless `config.out` is
    in S3, the model is downloaded from there. The job is named after its output: a retried step joins the job if it is
    still running, and a new job resumes from the checkpoint in `config.work`.
    """
    distilled = config.as_distill()
    with Folder(config, "distill") as output:
        output.claim()
        require_ours(config.out, "distill")
        inputs = sources(distilled)
        identity = identity_of("distill", distilled, {field: record_of(source) for field, source in inputs.items()})
        if not config.force and not stale_reason(config.out, identity):
            log.info("distill: %s is complete, reused", config.out)
            return config.out
        name = f"posgap-distill-{identity[:12]}"
        place = ResumableFolder(f"{config.work}/{name}")
        there = {field: _reachable(source, f"{place.uri}/{field}") for field, source in inputs.items()}
        there["out"] = str(config.out) if is_uri(config.out) else f"{place.uri}/out"
        run_job(connect(), _job(config, name, distilled.model_dump(mode="json") | there))
        if not is_uri(config.out):
            made = fetch_location(there["out"])
            files.delete_path(output.partial)
            shutil.copytree(made, output.partial, ignore=shutil.ignore_patterns(MANIFEST))
            files.flush(output.partial)
            shutil.copyfile(made / MANIFEST, output.partial / MANIFEST)  # which completes it
            output.take_place()
        place.delete()
    return config.out


def _reachable(source: Source, place: str) -> str:
    """Returns an input's location that the pods can read: its own (KFP may have brought it to this step's pod), or
    `place` after uploading a local input."""
    there = with_uris(str(source.location))
    if not isinstance(source.location, Path) or is_uri(there):
        return there
    uri = f"{place}/{source.location.name}"  # keeps the name: its ending says how the file is packed
    upload_path(source.location, uri)
    return uri


def _job(config: TrainJobConfig, name: str, parameters: dict[str, Any]) -> Job:
    resources: dict[str, int | str] = {
        "gpu": config.gpus_per_node,
        "cpu": config.cpus_per_node,
        "memory": config.memory_per_node,
    }
    environment = {each: os.environ[each] for each in _PASSED_ON if os.environ.get(each)}
    if os.environ.get(JOINED_VARIABLE):  # the step's own run: that of the training hangs below it
        environment.setdefault(PARENT_VARIABLE, os.environ[JOINED_VARIABLE])
    return Job(
        name=name,
        runtime=config.runtime,
        arguments=as_options(parameters),
        nodes=config.nodes,
        seconds=config.timeout,
        resources={kind: amount for kind, amount in resources.items() if amount},
        environment=environment,
        queue=config.queue,
    )
