"""What the pipeline assumes of a cluster, and its form."""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from posgap.choices import METHODS
from posgap.config.base import WORDED, Config, StageConfig
from posgap.config.distillation import LOCAL_BACKENDS
from posgap.config.fields import SECRET, Values, from_json
from posgap.config.measurement import SweepConfig
from posgap.config.tracking import GateConfig, PromoteConfig


class PoolConfig(Config):
    """One kind of nodes, and what a step asks of them."""

    nodes: dict[str, str] = Field(description="labels of the nodes; empty: any node")
    tolerations: list[dict[str, str | int]] = Field([], description="taints that keep others off these nodes")
    cpu: str = Field(description="CPUs requested")
    memory: str = Field(description="memory requested, and the most a step may take")
    accelerator: str = Field("", description="resource name of an accelerator; empty: none")
    accelerators: str = Field("0", pattern="^[0-9]+$", description="accelerators of a step")
    shared_memory: str = Field("", description="size of /dev/shm; empty: the container's own 64 MiB")
    scratch: str = Field("", description="most disk that a step may fill in /tmp; empty: no limit")
    queue: str = Field("", description="Kueue's local queue that the step waits in; empty: none")


_GPU = {
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "accelerator": "nvidia.com/gpu",
    "accelerators": "1",
    "queue": "posgap-gpu",
}


class ClusterConfig(Config):
    """What a compiled pipeline assumes of the cluster; see infra/kubernetes, which provides it."""

    train: PoolConfig = PoolConfig(
        nodes={"posgap.dev/pool": "train"}, cpu="8", memory="64Gi", shared_memory="16Gi", scratch="200Gi", **_GPU
    )
    inference: PoolConfig = PoolConfig(
        nodes={"posgap.dev/pool": "inference"}, cpu="4", memory="32Gi", shared_memory="8Gi", scratch="100Gi", **_GPU
    )
    cpu: PoolConfig = PoolConfig(nodes={"posgap.dev/pool": "cpu"}, cpu="2", memory="16Gi")
    trainer: bool = Field(False, description="training runs as a TrainJob of Kubeflow Trainer, which it has")
    registry: str = Field("ghcr.io/posgap", description="where the images are")
    pull_secret: str = Field("", description="secret with the registry's credentials; empty: none")
    user: int = Field(10001, ge=1, description="user that steps run as")
    model_cache: str = Field("", description="volume claim with the Hugging Face cache, for GPU steps; empty: none")
    environment: str = Field("posgap-env", description="config map with the environment of every step")
    variables: list[str] = Field(
        [
            *("MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_DISABLE_TELEMETRY", "GX_ANALYTICS_ENABLED"),
            *("DO_NOT_TRACK", "AWS_REGION", "AWS_ENDPOINT_URL", "POSGAP_KFP_UI"),
        ],
        description="keys of that config map; one that it lacks is left unset",
    )
    secrets: dict[str, list[str]] = Field(
        {
            "posgap-s3": ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
            "posgap-hub": ["HF_TOKEN"],
            "posgap-mlflow": ["MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"],
            "posgap-webhook": ["POSGAP_WEBHOOK_URL"],
        },
        description="secrets and those of their keys that are environment variables of every step; each may be missing",
    )


class PreflightConfig(StageConfig):
    """Checks the pipeline's form, and what a run needs, before any GPU time is spent.

    What the form gives to a stage is checked by that stage's config.
    """

    train_data: str = Field(
        description="examples to train on, or where versions of them begin, of which the newest is taken"
    )
    eval_data: str = Field(description="examples to judge by; none of them may be among the training examples")
    model: str = Field(description="folder of the Hugging Face model")
    task: str = Field(SweepConfig.default("task"), description=WORDED)
    n_docs: int = Field(SweepConfig.default("n_docs"), description="documents in a prompt")
    methods: str = Field(
        "r1",
        description=f"what is tried, of {', '.join(METHODS.names())}, like r1+lpes; the best that the gate admits wins",
    )
    backend: str = Field("vllm", description=f"what generates: {LOCAL_BACKENDS.listed()}")
    shards: int = Field(1, description="parts of a sweep that run side by side")
    max_gap: float = Field(GateConfig.default("max_gap"), description="highest gap that the gate admits, in points")
    registered_name: str = Field(PromoteConfig.default("name"), description="registered model in MLflow")
    only_new: bool = Field(False, description="end at once where training data and model are those of the champion")
    webhook_url: Annotated[str, SECRET] = Field(
        "", description="address told how the run ended; empty: POSGAP_WEBHOOK_URL, if set"
    )
    nodes_train: Values = Field(ClusterConfig().train.nodes, description="labels of the nodes to train on")
    nodes_inference: Values = Field(ClusterConfig().inference.nodes, description="labels of the nodes to generate on")
    nodes_cpu: Values = Field(ClusterConfig().cpu.nodes, description="labels of the nodes for everything else")
    tolerations: Annotated[list[Any], BeforeValidator(from_json)] = Field(
        ClusterConfig().train.tolerations, description="taints of GPU nodes that steps tolerate"
    )
    gpus_train: str = Field(ClusterConfig().train.accelerators, description="GPUs of a training step")
    overrides: Values = Field(
        {},
        description='other parameters by name, like {"learning_rate": 1e-5}, or of one stage: {"sweep.limit": 99}',
    )
    trainer: bool = Field(False, description="training runs as a TrainJob, which needs `work` in S3")
    gpus_here: int = Field(0, ge=0, description="GPUs that the machine which checks must have itself")
