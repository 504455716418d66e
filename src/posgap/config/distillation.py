"""Teacher and training."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from posgap.choices import BACKENDS, METHODS
from posgap.config.base import QUESTION, SHUFFLE, WORDED, BackendConfig, StageConfig
from posgap.config.fields import (
    InputPath,
    ModelPath,
    OptionalInputPath,
    OptionalPlacementText,
    QuestionPlace,
    Role,
    TaskName,
    WorkPath,
    in_s3,
)
from posgap.locations import Location, as_location

# Distillation learns token ids, and its methods are those that train.
LOCAL_BACKENDS = BACKENDS.where(lambda backend: backend.gives_token_ids)
TRAINING_METHODS = METHODS.where(lambda method: method.trains)


class TeacherConfig(*LOCAL_BACKENDS.bases(), BackendConfig):  # type: ignore[misc]  # registered choices' parameters
    """Samples the model's own responses with the gold documents where it answers best."""

    backend: Annotated[str, LOCAL_BACKENDS, AfterValidator(LOCAL_BACKENDS.checked)] = Field(
        "transformers", description=f"what generates; {LOCAL_BACKENDS.described()}"
    )
    sweep: OptionalInputPath = Field(None, description="sweep of this model, from which the best placement is read")
    advantageous: OptionalPlacementText = Field(
        "", description="where the gold stands, like 1, or 19+20 for two documents; empty: the best of `sweep`"
    )
    temperature: float = Field(0.0, ge=0, description="sampling temperature; 0: greedy")
    keep_incorrect: bool = Field(False, description="keep responses that do not hold an accepted answer")


class _Distilled(StageConfig):
    examples: InputPath = Field(description="examples the responses answer")
    responses: InputPath = Field(description="folder `teacher` wrote")
    model: ModelPath = Field(description="Hugging Face model folder or hub name: teacher and starting point")
    task: TaskName = Field("kv", description=WORDED)
    question: QuestionPlace = Field("after", description=QUESTION)
    shuffle: int = Field(0, ge=0, description=SHUFFLE)
    method: Annotated[str, TRAINING_METHODS, AfterValidator(TRAINING_METHODS.checked)] = Field(
        "r1", description=f"what is learnt, and how; {TRAINING_METHODS.described()}"
    )


class DistillConfig(*TRAINING_METHODS.bases(), _Distilled):  # type: ignore[misc]  # registered choices' parameters
    """Pos2Distill: the model's answers at its best position, distilled into the others."""

    k: int = Field(4, ge=0, description="placements drawn per example and epoch (K)")
    epochs: int = Field(2, ge=1, description="passes over the examples")
    batch_size: int = Field(32, ge=1, description="examples per optimizer step, over all processes")
    micro_batch_size: int = Field(0, ge=0, description="prompts a process reads at once; 0: all of its step's")
    learning_rate: float = Field(3e-6, gt=0, description="peak learning rate of AdamW")
    warmup_steps: int = Field(0, ge=0, description="steps of linear warm-up; linear decay to 0 follows")
    max_grad_norm: float = Field(1.0, gt=0, description="gradient norm is clipped to this")
    lora_rank: int = Field(0, ge=0, description="rank of LoRA adapters, merged on export; 0: train all parameters")
    lora_alpha: int = Field(16, ge=1, description="scale of LoRA adapters: their product times alpha / rank")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    gradient_checkpointing: bool = Field(False, description="compute activations again rather than keep them")
    deepspeed: str = Field("", description="zero2, zero3 or a DeepSpeed JSON file; empty: none")
    save_steps: int = Field(10, ge=0, description="steps between checkpoints; 0: none but at SIGTERM")
    work: WorkPath = Field(
        None, description="folder for checkpoints and teacher states, reused by later runs; empty: beside `out`"
    )


class TrainJobConfig(DistillConfig):
    """`distill` on several machines of a Kubernetes cluster, as a TrainJob that is followed to its end."""

    work: Annotated[Location, Role.WORK, BeforeValidator(as_location), AfterValidator(in_s3)] = Field(
        description="folder in S3 that the machines share, s3://bucket/work: checkpoints and teacher states, and what "
        "is on its way to them and back"
    )
    deepspeed: str = Field("zero3", pattern="^(zero2|zero3|)$", description="zero2 or zero3; empty: none")
    nodes: int = Field(1, ge=1, description="machines")
    gpus_per_node: int = Field(1, ge=1, description="GPUs, and processes, of each machine")
    cpus_per_node: int = Field(0, ge=0, description="CPU cores of each machine; 0: as the runtime has them")
    memory_per_node: str = Field(
        "",
        pattern="^([0-9]+[KMGT]i?)?$",
        description="memory of each machine, like 256Gi; empty: as the runtime has it",
    )
    runtime: str = Field("posgap-deepspeed", min_length=1, description="training runtime of Kubeflow Trainer")
    image: str = Field("", description="container image; empty: the runtime's")
    queue: str = Field("posgap-gpu", description="Kueue's local queue; empty: none")
    namespace: str = Field("", description="Kubernetes namespace; empty: that of this pod, or of the kubeconfig")
    timeout: int = Field(86400, ge=60, description="seconds after which the job is given up, waiting for GPUs included")
