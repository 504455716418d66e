"""The assumptions of the compiled pipeline about a cluster, and the pipeline's form."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator

from posgap.choices import METHODS, MITIGATIONS, SECRET
from posgap.config.base import WORDED, Config, StageConfig
from posgap.config.distillation import LOCAL_BACKENDS
from posgap.config.fields import Values, from_json
from posgap.config.measurement import SweepConfig
from posgap.config.tracking import GateConfig, PromoteConfig, WatchConfig

MLFLOW_LOGIN = ["MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"]


class PoolConfig(Config):
    """A kind of nodes, and the resources that a step on them requests."""

    nodes: dict[str, str] = Field(description="labels of the nodes; empty: any node")
    tolerations: list[dict[str, str | int]] = Field([], description="taints of these nodes that steps tolerate")
    cpu: str = Field(description="CPUs requested")
    memory: str = Field(description="memory requested, which is also the limit")
    accelerator: str = Field("", description="resource name of an accelerator; empty: none")
    accelerators: str = Field("0", pattern="^[0-9]+$", description="number of accelerators of a step")
    shared_memory: str = Field("", description="size of /dev/shm; empty: the container's own 64 MiB")
    scratch: str = Field("", description="limit on the disk space of a step in /tmp; empty: no limit")
    queue: str = Field("", description="local queue of Kueue in which the step waits; empty: none")


_GPU = {
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "accelerator": "nvidia.com/gpu",
    "accelerators": "1",
    "queue": "posgap-gpu",
}


class ClusterConfig(Config):
    """What a compiled pipeline assumes about the cluster; infra/kubernetes sets up such a cluster."""

    train: PoolConfig = PoolConfig(
        nodes={"posgap.dev/pool": "train"}, cpu="8", memory="64Gi", shared_memory="16Gi", scratch="200Gi", **_GPU
    )
    inference: PoolConfig = PoolConfig(
        nodes={"posgap.dev/pool": "inference"}, cpu="4", memory="32Gi", shared_memory="8Gi", scratch="100Gi", **_GPU
    )
    cpu: PoolConfig = PoolConfig(nodes={"posgap.dev/pool": "cpu"}, cpu="2", memory="16Gi")

    @field_validator("cpu")
    @classmethod
    def _no_gpus(cls, pool: PoolConfig) -> PoolConfig:
        """What would have no effect is refused."""
        for name in ("tolerations", "accelerator", "shared_memory", "queue"):
            if getattr(pool, name):
                raise ValueError(f"{name}: is for GPU steps alone, those of train and inference; leave it out")
        return pool

    trainer: bool = Field(False, description="the cluster has Kubeflow Trainer, and training runs as a TrainJob")
    registry: str = Field("ghcr.io/posgap", description="registry of the images")
    pull_secret: str = Field("", description="secret with the credentials of the registry; empty: none")
    user: int = Field(10001, ge=1, description="id of the user that steps run as")
    model_cache: str = Field("", description="volume claim of the Hugging Face cache, for GPU steps; empty: none")
    environment: str = Field("posgap-env", description="config map with the environment of every step")
    variables: list[str] = Field(
        [
            *("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_DISABLE_TELEMETRY", "GX_ANALYTICS_ENABLED"),
            *("DO_NOT_TRACK", "AWS_REGION", "AWS_ENDPOINT_URL", "POSGAP_KFP_UI", "KFP_HOST"),
        ],
        description="keys of that config map that become environment variables; missing ones are left unset",
    )
    secrets: dict[str, list[str]] = Field(
        {
            "posgap-s3": ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
            "posgap-hub": ["HF_TOKEN"],
            "posgap-mlflow": MLFLOW_LOGIN,
            "posgap-webhook": ["POSGAP_WEBHOOK_URL"],
        },
        description="secrets, with the keys that become environment variables of every step; each may be missing",
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


class PlacedConfig(StageConfig):
    """What the forms of all pipelines ask for."""

    registered_name: str = Field(PromoteConfig.default("name"), description="name of the registered model in MLflow")
    webhook_url: Annotated[str, SECRET] = Field(
        "", description="address to post the outcome to as JSON; empty: POSGAP_WEBHOOK_URL, if set"
    )
    nodes_inference: Values = Field(ClusterConfig().inference.nodes, description="labels of the nodes to generate on")
    nodes_cpu: Values = Field(ClusterConfig().cpu.nodes, description="labels of the nodes for all other steps")
    tolerations: Annotated[list[Any], BeforeValidator(from_json)] = Field(
        ClusterConfig().train.tolerations, description="taints of GPU nodes that steps tolerate"
    )


class WatchFormConfig(PlacedConfig):
    """The form of the pipeline that watches the champion."""

    eval_data: str = Field(
        description="examples to sweep the champion on; if it is the beginning of the names of several versions, the "
        "newest is taken"
    )
    mitigate: Values = Field(
        WatchConfig.default("mitigate"), description=str(WatchConfig.model_fields["mitigate"].description)
    )
    namespace: str = Field(
        WatchConfig.default("namespace"), description=str(WatchConfig.model_fields["namespace"].description)
    )


class PreflightConfig(PlacedConfig):
    """Checks the pipeline's form, and everything that a run needs, before any GPU time is spent.

    The parameters that the form passes to a stage are checked by that stage's config.
    """

    train_data: str = Field(
        description="examples to train on; if it is the beginning of the names of several versions, the newest is taken"
    )
    eval_data: str = Field(
        description="examples to evaluate on, or the beginning of their versions' names; none of them may be among the "
        "training examples"
    )
    model: str = Field(description="folder of the Hugging Face model")
    task: str = Field(SweepConfig.default("task"), description=WORDED)
    n_docs: int = Field(SweepConfig.default("n_docs"), description="documents in a prompt")
    methods: str = Field(
        "r1",
        description=f"methods to try, from {', '.join(n for n in METHODS.names() if n not in MITIGATIONS.names())}, "
        "or mitigations like lpes, of which the best is tried; joined like r1+lpes; mitigations after `then` are tried "
        "on top of what was trained, like r1 then lpes; the best admitted model wins",
    )
    backend: str = Field("vllm", description=f"backend that generates: {LOCAL_BACKENDS.listed()}")
    shards: int = Field(1, description="number of parts of each sweep, which run in parallel")
    max_gap: float = Field(GateConfig.default("max_gap"), description="largest gap that the gate admits, in points")
    only_new: bool = Field(
        False, description="end at once if the champion was made in the same way from the same training data and model"
    )
    approval: bool = Field(
        PromoteConfig.default("approval"),
        description="let what the gate admits wait, as alias challenger, until `posgap approve` makes it the champion",
    )
    nodes_train: Values = Field(ClusterConfig().train.nodes, description="labels of the nodes to train on")
    gpus_train: str = Field(ClusterConfig().train.accelerators, description="number of GPUs of a training step")
    overrides: Values = Field(
        {},
        description='other parameters by name, like {"learning_rate": 1e-5}, or of one stage: {"sweep.limit": 99}',
    )
    trainer: bool = Field(False, description="training runs as a TrainJob, which needs `work` in S3")
    gpus_here: int = Field(0, ge=0, description="number of GPUs that this machine must have")
