"""TrainJobs of Kubeflow Trainer, and their submission to a cluster through the SDK."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from posgap.foundation.errors import PosgapError
from posgap.foundation.heavy_types import TrainerClient

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


@dataclass(frozen=True)
class Job:
    """A training run on `nodes` machines, each with `resources` in Kubernetes' notation.

    `arguments` are passed to the command of the training runtime. After `seconds` the cluster stops the job.
    """

    name: str
    runtime: str
    arguments: Sequence[str]
    nodes: int
    seconds: int
    resources: Mapping[str, int | str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    queue: str = ""


def connect() -> TrainerClient:
    """A client of the cluster this runs in, or of KUBECONFIG's, in its namespace there."""
    try:
        from kubeflow.trainer import KubernetesBackendConfig, TrainerClient
    except ImportError:
        raise PosgapError("the Kubeflow SDK is not installed; pip install 'posgap[cluster]'") from None
    from kubernetes.config import ConfigException

    # Silences a warning that Trainer's version cannot be read: a step has no permission to, and needs none.
    logging.getLogger("kubeflow.trainer.backends.kubernetes.backend").setLevel(logging.ERROR)
    try:
        return TrainerClient(KubernetesBackendConfig())
    except ConfigException as error:
        raise PosgapError(f"no Kubernetes cluster to run on: {error}; set KUBECONFIG, or run this in a pod") from None


def create(client: TrainerClient, job: Job) -> None:
    """Submits the job to the cluster."""
    from kubeflow.trainer import CustomTrainerContainer
    from kubeflow.trainer.options import ActiveDeadlineSeconds, Labels, Name, TrainerArgs

    labels = {"app.kubernetes.io/managed-by": "posgap"} | ({QUEUE_LABEL: job.queue} if job.queue else {})
    client.train(
        runtime=job.runtime,
        trainer=CustomTrainerContainer(
            image="",  # the runtime's
            num_nodes=job.nodes,
            resources_per_node=dict(job.resources),
            env=dict(job.environment),
        ),
        options=[
            Name(job.name),
            Labels(labels),
            TrainerArgs(list(job.arguments)),
            ActiveDeadlineSeconds(job.seconds),
        ],
    )
