"""The assumptions of a compiled pipeline about a cluster: its pools of nodes, secrets and config maps."""

import re
from typing import Self

from pydantic import Field, field_validator

from posgap.options.base import Config

AUTHORITY = "/etc/mlflow-ca"  # the folder of the file that MLFLOW_TRACKING_SERVER_CERT_PATH names


KFP_TOKEN = "KFP_TOKEN"
MLFLOW_LOGIN = ["MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"]


_QUANTITY = r"([0-9]+)(m|[kKMGTPE]i?)?"  # of Kubernetes, without a fraction


_AMOUNTS = ("cpu", "memory", "shared_memory", "scratch")


class PoolConfig(Config):
    """A kind of nodes, and the resources that a step on them requests; with accelerators, the amount for each of
    them."""

    nodes: dict[str, str] = Field(description="labels of the nodes; empty: any node")
    tolerations: list[dict[str, str | int]] = Field([], description="taints of these nodes that steps tolerate")
    cpu: str = Field(pattern=f"^{_QUANTITY}$", description="CPUs requested")
    memory: str = Field(pattern=f"^{_QUANTITY}$", description="memory requested, which is also the limit")
    accelerator: str = Field("", description="resource name of an accelerator; empty: none")
    accelerators: str = Field("0", pattern="^[0-9]+$", description="number of accelerators of a step")
    shared_memory: str = Field(
        "", pattern=f"^({_QUANTITY})?$", description="size of /dev/shm; empty: the container's own 64 MiB"
    )
    scratch: str = Field(
        "", pattern=f"^({_QUANTITY})?$", description="limit on the disk space of a step in /tmp; empty: no limit"
    )
    queue: str = Field("", description="local queue of Kueue in which the step waits; empty: none")
    timeout: int = Field(0, ge=0, description="seconds after which a try of a step is ended; 0: never")

    def times(self, accelerators: int) -> Self:
        """Returns the pool for a step with this number of accelerators; with none, the amounts stay."""
        return self.model_copy(update={name: _times(getattr(self, name), max(accelerators, 1)) for name in _AMOUNTS})


def _times(quantity: str, number: int) -> str:
    """Multiplies a quantity of Kubernetes: 64Gi times 8 is 512Gi."""
    parts = re.fullmatch(_QUANTITY, quantity)
    return f"{int(parts[1]) * number}{parts[2] or ''}" if parts else quantity


_GPU = {
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "accelerator": "nvidia.com/gpu",
    "accelerators": "1",
    "queue": "posgap-gpu",
}


_CPU = {"posgap.dev/pool": "cpu"}


_HOUR = 3600


class ClusterConfig(Config):
    """What a compiled pipeline assumes about the cluster; infra/kubernetes sets up such a cluster.

    `small` is for steps that look at files and never at weights. `promote` is for the step in which the model answers
    on CPUs before it serves: in float32 a model of seven billion parameters takes 28 GB. `cpu` is for the others.
    """

    train: PoolConfig = PoolConfig(
        nodes={"posgap.dev/pool": "train"},
        cpu="8",
        memory="64Gi",
        shared_memory="16Gi",
        scratch="200Gi",
        timeout=48 * _HOUR,
        **_GPU,
    )
    inference: PoolConfig = PoolConfig(
        nodes={"posgap.dev/pool": "inference"},
        cpu="4",
        memory="32Gi",
        shared_memory="8Gi",
        scratch="100Gi",
        timeout=24 * _HOUR,
        **_GPU,
    )
    cpu: PoolConfig = PoolConfig(nodes=_CPU, cpu="2", memory="16Gi", timeout=4 * _HOUR)
    small: PoolConfig = PoolConfig(nodes=_CPU, cpu="1", memory="4Gi", timeout=2 * _HOUR)
    promote: PoolConfig = PoolConfig(nodes=_CPU, cpu="4", memory="40Gi", timeout=4 * _HOUR)

    @field_validator("cpu", "small", "promote")
    @classmethod
    def _no_gpus(cls, pool: PoolConfig) -> PoolConfig:
        """Refuses settings that would have no effect."""
        for name in ("tolerations", "accelerator", "shared_memory", "queue"):
            if getattr(pool, name):
                raise ValueError(f"{name}: is only for the GPU steps train and inference; leave it out")
        return pool

    trainer: bool = Field(False, description="the cluster has Kubeflow Trainer, and training runs as a TrainJob")
    pipeline_root: str = Field(
        "s3://posgap/kfp",
        pattern="^((s3|gs|minio)://.+)?$",
        description="address for outputs and unfinished work of runs, like s3://BUCKET/kfp; empty: KFP's own store, "
        "which keeps no unfinished work",
    )
    registry: str = Field("ghcr.io/posgap", description="registry of the images")
    pull_secret: str = Field("", description="secret with the credentials of the registry; empty: none")
    user: int = Field(10001, ge=1, description="id of the user that steps run as")
    environment: str = Field("posgap-env", description="config map with the environment of every step")
    variables: list[str] = Field(
        [
            *("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_SERVER_CERT_PATH", "MLFLOW_EXPERIMENT_NAME"),
            *("MLFLOW_DISABLE_TELEMETRY", "GX_ANALYTICS_ENABLED", "DO_NOT_TRACK"),
            *("AWS_REGION", "AWS_ENDPOINT_URL", "POSGAP_KFP_UI", "POSGAP_MLFLOW_UI", "KFP_HOST"),
        ],
        description="keys of that config map that become environment variables; missing ones are left unset",
    )
    secrets: dict[str, list[str]] = Field(
        {
            "posgap-s3": ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
            "posgap-mlflow": MLFLOW_LOGIN,
        },
        description="secrets, with the keys that become environment variables of every step; each may be missing",
    )
    mlflow_authority: str = Field(
        "posgap-mlflow-ca",
        description=f"config map with the certificate of who signed MLflow's, a file in {AUTHORITY} of every step; may "
        "be missing; empty: none",
    )
    hub_secret: str = Field(
        "posgap-hub",
        description="secret with the HF_TOKEN of the steps that read models or data, which may lie on the hub; may be "
        "missing; empty: none",
    )
    webhook_secret: str = Field(
        "posgap-webhook",
        description="secret whose POSGAP_WEBHOOK_URL is told how a run ended, for the report alone; may be missing; "
        "empty: none",
    )
    kfp_secret: str = Field(
        "posgap-kfp",
        description="secret with the KFP_TOKEN by which `watch` alone starts a run, if no PodDefault gives it one; may "
        "be missing; empty: none",
    )
    signing_secret: str = Field(
        "posgap-signing",
        description="secret whose POSGAP_SIGNING_KEY signs verdicts, for the gate alone; may be missing; empty: none",
    )
    promote_secret: str = Field(
        "posgap-mlflow-promote",
        description="secret with the log-in to MLflow of what promotes and watches, in place of the other steps'; "
        "empty: they have the same",
    )
