"""train_job: what `distill` makes, made on several machines of a cluster."""

import logging
import os
import shutil
from pathlib import Path
from typing import Any

from posgap import files
from posgap.cluster.following import run
from posgap.cluster.train_jobs import Job, connect
from posgap.config import DistillConfig, TrainJobConfig
from posgap.interruption import goes_on
from posgap.kfp_steps.launching import as_options
from posgap.locations import Location, is_uri
from posgap.stage import identity_of, is_complete, record_of
from posgap.storage.cache import fetch
from posgap.storage.folders import Kept, send
from posgap.storage.inputs import Source, sources
from posgap.tracking.runs import PARENT_VARIABLE

log = logging.getLogger(__name__)
# What the pods are told of the step's environment. Nothing secret: that comes from Kubernetes secrets of the runtime.
_PASSED_ON = (
    *("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", PARENT_VARIABLE),
    *("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_DEFAULT_REGION"),
)


@goes_on()
def train_job(config: TrainJobConfig) -> Location:
    """Has a TrainJob run `posgap distill`, and returns `config.out`: the folder that `distill` would have made here.

    Pods share no disk with this machine: inputs that are here go to `config.work`, and the model comes back from there,
    where `config.out` is not in S3. The job's name tells what it makes, so the step that is tried again joins the one
    that is under way, and one that starts over goes on from the checkpoint in `config.work`.
    """
    asked = DistillConfig(**{name: getattr(config, name) for name in DistillConfig.model_fields})
    found = sources(asked)
    identity = identity_of("distill", asked, {field: record_of(source) for field, source in found.items()})
    if not config.force and is_complete(config.out, identity):
        log.info("distill: %s is complete, reused", config.out)
        return config.out
    name = f"posgap-distill-{identity[:12]}"
    place = Kept(f"{config.work}/{name}")
    there = {field: _reachable(source, f"{place.uri}/{field}") for field, source in found.items()}
    there["out"] = str(config.out) if is_uri(config.out) else f"{place.uri}/out"
    run(connect(config.namespace), _job(config, name, asked.model_dump(mode="json") | there))
    if not is_uri(config.out):
        with files.atomic(Path(config.out)) as partial:
            shutil.copytree(fetch(there["out"]), partial)
    place.remove()
    return config.out


def _reachable(source: Source, place: str) -> str:
    """Where the pods find an input: where it is, or, for what is on this machine, below `place`."""
    if not isinstance(source.location, Path):
        return source.location
    uri = f"{place}/{source.location.name}"  # whose ending says how it is packed
    send(source.location, uri)
    return uri


def _job(config: TrainJobConfig, name: str, parameters: dict[str, Any]) -> Job:
    asked: dict[str, int | str] = {
        "gpu": config.gpus_per_node,
        "cpu": config.cpus_per_node,
        "memory": config.memory_per_node,
    }
    return Job(
        name=name,
        runtime=config.runtime,
        arguments=as_options(parameters),
        nodes=config.nodes,
        seconds=config.timeout,
        resources={kind: amount for kind, amount in asked.items() if amount},
        environment={each: os.environ[each] for each in _PASSED_ON if os.environ.get(each)},
        queue=config.queue,
        image=config.image,
    )
