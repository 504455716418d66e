"""Config of preflight: what the compiled pipeline assumes of a cluster, and the pipeline's form."""

import re
from typing import Annotated, Self

from pydantic import Field, field_validator

from posgap.distillation.methods import METHODS
from posgap.foundation.config import Config, FreshConfig
from posgap.foundation.fields import IN_SETTINGS, SettingsText
from posgap.gating.config import GateConfig
from posgap.generation.backends import AUTO, LOCAL_BACKENDS
from posgap.measurement.config import SweepConfig
from posgap.mitigations.registry import MITIGATIONS
from posgap.tasks.config import WORDED
from posgap.tasks.fields import GivenTask
from posgap.tracking.config import PromoteConfig

AUTHORITY = "/etc/mlflow-ca"  # the folder of the file that MLFLOW_TRACKING_SERVER_CERT_PATH names
PIPELINE_BACKENDS = LOCAL_BACKENDS.where(lambda backend: backend is not AUTO)  # a step's image is chosen by its name
MLFLOW_LOGIN = ["MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"]


_QUANTITY = r"([0-9]+)(m|[kKMGTPE]i?)?"  # of Kubernetes, without a fraction
_AMOUNTS = ("cpu", "memory", "shared_memory", "scratch")


class PoolConfig(Config):
    """A kind of nodes, and the resources that a step on them requests: with accelerators so much for each of them."""

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
        """The pool as a step with so many accelerators asks for it; one without any asks for what is there."""
        return self.model_copy(update={name: _times(getattr(self, name), max(accelerators, 1)) for name in _AMOUNTS})


def _times(quantity: str, number: int) -> str:
    """A quantity of Kubernetes so many times: 64Gi eight times is 512Gi."""
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

    `small` is for steps that look at files and never at weights, `promote` for the one that has the model answer on
    CPUs before it serves: in float32 a model of seven billion parameters takes 28 GB. `cpu` is for the others.
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
        """What would have no effect is refused."""
        for name in ("tolerations", "accelerator", "shared_memory", "queue"):
            if getattr(pool, name):
                raise ValueError(f"{name}: is for GPU steps alone, those of train and inference; leave it out")
        return pool

    trainer: bool = Field(False, description="the cluster has Kubeflow Trainer, and training runs as a TrainJob")
    pipeline_root: str = Field(
        "s3://posgap/kfp",
        pattern="^((s3|gs|minio)://.+)?$",
        description="where outputs and unfinished work of runs lie, like s3://BUCKET/kfp; empty: KFP's own store, in "
        "which no unfinished work is kept",
    )
    registry: str = Field("ghcr.io/posgap", description="registry of the images")
    pull_secret: str = Field("", description="secret with the credentials of the registry; empty: none")
    user: int = Field(10001, ge=1, description="id of the user that steps run as")
    environment: str = Field("posgap-env", description="config map with the environment of every step")
    variables: list[str] = Field(
        [
            *("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_SERVER_CERT_PATH", "MLFLOW_EXPERIMENT_NAME"),
            *("MLFLOW_DISABLE_TELEMETRY", "GX_ANALYTICS_ENABLED", "DO_NOT_TRACK"),
            *("AWS_REGION", "AWS_ENDPOINT_URL", "POSGAP_KFP_UI", "KFP_HOST"),
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
    signing_secret: str = Field(
        "posgap-signing",
        description="secret whose POSGAP_SIGNING_KEY signs verdicts, for the gate alone; may be missing; empty: none",
    )
    promote_secret: str = Field(
        "posgap-mlflow-promote",
        description="secret with the log-in to MLflow of what promotes and watches, in place of the other steps'; "
        "empty: they have the same",
    )


class PlacedConfig(FreshConfig):
    """What the forms of all pipelines ask for."""

    registered_name: str = Field(PromoteConfig.default("name"), description="name of the registered model in MLflow")


class PreflightConfig(PlacedConfig):
    """Checks the pipeline's form, and everything that a run needs, before any GPU time is spent.

    The parameters that the form passes to a stage are checked by that stage's config.
    """

    # KFP's UI sorts the fields by name: these three, which have no default, come first.
    base_model: str = Field(description="folder of the Hugging Face model whose gap is to be closed")
    data_eval: str = Field(
        description="examples to evaluate on, or the beginning of their versions' names; none of them may be among the "
        "training examples"
    )
    data_train: str = Field(
        description="examples to train on; if it is the beginning of the names of several versions, the newest is taken"
    )
    task: GivenTask = Field(SweepConfig.default("task"), description=WORDED)
    n_docs: int = Field(SweepConfig.default("n_docs"), description="documents in a prompt")
    methods: str = Field(
        "r1",
        description=f"methods to try, joined like r1+lpes: "
        f"{', '.join(n for n in METHODS.names() if n not in MITIGATIONS.names())}, and mitigations by name, of which "
        "the best is tried; mitigations after `then`, like r1 then lpes, are tried on the trained model; the best "
        "admitted model becomes the champion",
    )
    inference_backend: Annotated[str, PIPELINE_BACKENDS] = Field(
        "vllm", description=f"backend that generates: {PIPELINE_BACKENDS.names_as_text()}"
    )
    max_gap: float = Field(GateConfig.default("max_gap"), description="largest gap that the gate admits, in points")
    gpus_train: str = Field(ClusterConfig().train.accelerators, description="number of GPUs of a training step")
    settings: SettingsText = Field(
        "{}",  # KFP's form takes an empty default for a value that is missing
        description="everything else, as YAML like {learning_rate: 1e-5, sweep.limit: 99}: parameters by name, of all "
        "stages or of one; and shards, seed, only_new, approval, methods, and a task of your own as its file has it",
    )
    shards: Annotated[int, IN_SETTINGS] = Field(1, description="number of parts of each sweep, which run in parallel")
    seed: Annotated[int, IN_SETTINGS] = Field(0, ge=0, description="seed of all random numbers in every stage")
    only_new: Annotated[bool, IN_SETTINGS] = Field(
        False, description="end at once if the champion was made in the same way from the same training data and model"
    )
    approval: Annotated[bool, IN_SETTINGS] = Field(
        PromoteConfig.default("approval"),
        description="let what the gate admits wait, as alias challenger, until `posgap approve` makes it the champion",
    )
    trainer: bool = Field(False, description="training runs as a TrainJob, which needs `work` in S3")
