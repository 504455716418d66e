"""What a TrainJob of Kubeflow Trainer is, and handing it to a cluster through the SDK."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from posgap.errors import PosgapError

if TYPE_CHECKING:
    from kubeflow.trainer import TrainerClient

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"


@dataclass(frozen=True)
class Job:
    """A training run on `nodes` machines. `resources` are those of one of them, as Kubernetes writes them.

    `arguments` go to the command of the training runtime, and `image` takes the place of its image.
    After `seconds` the job is stopped, by the cluster too.
    """

    name: str
    runtime: str
    arguments: Sequence[str]
    nodes: int
    seconds: int
    resources: Mapping[str, int | str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    queue: str = ""
    image: str = ""


def connect(namespace: str) -> "TrainerClient":
    """The client of the cluster this runs in, or that KUBECONFIG names; empty: its own namespace."""
    try:
        from kubeflow.trainer import KubernetesBackendConfig, TrainerClient
    except ImportError:
        raise PosgapError("the Kubeflow SDK is not installed; pip install 'posgap[cluster]'") from None
    from kubernetes.config import ConfigException

    # It warns that it cannot read the version of Trainer, which a step has no business to.
    logging.getLogger("kubeflow.trainer.backends.kubernetes.backend").setLevel(logging.ERROR)
    try:
        return TrainerClient(KubernetesBackendConfig(namespace=namespace or None))
    except ConfigException as error:
        raise PosgapError(f"no Kubernetes cluster to run on: {error}; set KUBECONFIG, or run this in a pod") from None


def create(client: "TrainerClient", job: Job) -> None:
    """Hands the job to the cluster."""
    from kubeflow.trainer import CustomTrainerContainer
    from kubeflow.trainer.options import ActiveDeadlineSeconds, Labels, Name, TrainerArgs

    labels = {"app.kubernetes.io/managed-by": "posgap"} | ({QUEUE_LABEL: job.queue} if job.queue else {})
    client.train(
        runtime=job.runtime,
        trainer=CustomTrainerContainer(
            image=job.image,
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
