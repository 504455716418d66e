"""Options of `preflight`: the form of the mitigation pipeline."""

from typing import Annotated

from pydantic import Field

from posgap.distillation.methods import METHODS
from posgap.foundation.fields import IN_SETTINGS, SettingsText
from posgap.generation.backends import AUTO, LOCAL_BACKENDS
from posgap.mitigations.registry import MITIGATIONS
from posgap.options.base import FreshConfig
from posgap.options.cluster import ClusterConfig
from posgap.options.gate import GateConfig
from posgap.options.promote import PromoteConfig
from posgap.options.prompts import WORDED
from posgap.options.sweep import SweepConfig
from posgap.options.verb import Kind, Verb
from posgap.tasks.fields import GivenTask

PIPELINE_BACKENDS = LOCAL_BACKENDS.where(lambda backend: backend is not AUTO)  # a step's image is chosen by its name


class PlacedConfig(FreshConfig):
    """The fields in the forms of all pipelines."""

    registered_name: str = Field(PromoteConfig.default("name"), description="name of the registered model in MLflow")


class PreflightConfig(PlacedConfig):
    """Checks the pipeline's form, and everything that a run needs, before any GPU time is spent.

    The parameters that the form passes to a stage are checked by that stage's config.
    """

    # KFP's UI sorts the fields by name: these three, which have no default, come first.
    base_model: str = Field(description="folder of the Hugging Face model whose gap is to be closed")
    data_eval: str = Field(
        description="held-out examples to evaluate on, or the beginning of their versions' names; they must not "
        "overlap the training examples"
    )
    data_train: str = Field(
        description="examples to train on; if it is the beginning of the names of several versions, the newest is taken"
    )
    task: GivenTask = Field(SweepConfig.default("task"), description=WORDED)
    n_docs: int = Field(SweepConfig.default("n_docs"), description="documents in a prompt")
    methods: str = Field(
        "r1+seqkd",
        description=f"methods to try, joined like r1+lpes: "
        f"{', '.join(n for n in METHODS.names() if n not in MITIGATIONS.names())}, and mitigations by name: "
        "the best of these is tried; mitigations after `then`, like r1 then lpes, are tried on the trained model; the "
        "best admitted model becomes the champion",
    )
    inference_backend: Annotated[str, PIPELINE_BACKENDS] = Field(
        "vllm", description=f"backend that generates: {PIPELINE_BACKENDS.names_as_text()}"
    )
    max_gap: float = Field(GateConfig.default("max_gap"), description="largest gap that the gate admits, in points")
    guards: SettingsText = Field(
        "{longer: {}}",
        description="what must not be lost elsewhere, as a policy has it, like {facts: {examples: s3://..., task: qa, "
        "n_docs: 10, tolerance: 10}}: base and candidates are measured on each; one without a tolerance is only shown",
    )
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


VERB = Verb(
    PreflightConfig,
    "--base-model Qwen/Qwen3-0.6B --data-eval eval.jsonl.gz --data-train train.jsonl.gz --out run/preflight",
    results=("preflight.json",),
    kind=Kind.STAGE,
)
