"""Config of distillation: the parameters of the teacher and training."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from posgap.distillation.methods import METHODS
from posgap.foundation.config import Config, SeededConfig, StageConfig
from posgap.foundation.errors import faults
from posgap.foundation.fields import (
    MODEL,
    RARE,
    InputPath,
    ModelName,
    OptionalInputPath,
    Role,
    WorkPath,
    from_json,
    in_s3,
)
from posgap.foundation.locations import Location, as_location
from posgap.generation.backends import LocalBackendConfig
from posgap.tasks.config import QUESTION, SHUFFLE, WORDED, FramingParameters
from posgap.tasks.fields import Placements, QuestionPlace, TaskName

TRAINING_METHODS = METHODS.where(lambda method: method.trains)


class TeacherConfig(LocalBackendConfig):
    """Samples the model's own responses with the gold documents at the position where it answers best.

    Distillation learns token ids, so it takes a backend that returns them.
    """

    examples_for: ClassVar[str] = "training"

    sweep: OptionalInputPath = Field(
        None, description="folder from a `sweep` of this model, from which the best placement is read"
    )
    advantageous: Placements = Field(
        [],
        description="placement of the gold documents, like 1, or 19+20 for two; several, like 1,20: the model answers "
        "at each of them; empty: the best placement of `sweep`",
    )
    keep_incorrect: bool = Field(False, description="keep responses that are not correct, too")
    limit: int = Field(0, ge=0, description="use only the first `limit` examples; 0: all")


class _TrainingInputs(StageConfig):
    examples_for: ClassVar[str] = "training"
    examples: InputPath = Field(description="examples that the responses answer")
    responses: InputPath = Field(description="folder from `teacher`")
    model: ModelName = Field(description=f"{MODEL}; it is the teacher, and the student starts from it")
    method: Annotated[str, TRAINING_METHODS, AfterValidator(TRAINING_METHODS.require_name)] = Field(
        "r1", description=f"training method; {TRAINING_METHODS.help_text()}"
    )


class _DistillInputs(_TrainingInputs, SeededConfig):
    limit: int = Field(0, ge=0, description="learn only the first `limit` responses; 0: all")
    task: TaskName = Field("kv", description=WORDED)
    question: Annotated[QuestionPlace, RARE] = Field("after", description=QUESTION)
    shuffle: Annotated[int, RARE] = Field(0, ge=0, description=SHUFFLE)


class _Training(Config):
    """How much is trained, and at what rate. The defaults are the paper's: K = 4 random positions, 2 epochs, batch size
    32 and, at 7B, learning rate 3e-6 (section 4, experimental setup)."""

    k: int = Field(4, ge=0, description="number of placements drawn for each example in each epoch (K)")
    epochs: int = Field(2, ge=1, description="passes over the examples")
    batch_size: int = Field(32, ge=1, description="prompts in an optimizer step, over all processes")
    learning_rate: float = Field(
        0.0,
        ge=0,
        description="peak learning rate of AdamW, which falls linearly to 0; 0: by the model's size, 3e-6 at 7B",
    )


class DistillConfig(*TRAINING_METHODS.bases(), _Training, FramingParameters, _DistillInputs):  # type: ignore[misc]  # registered choices' parameters
    """Distils the model's own answers at its best position into the other positions (Pos2Distill)."""

    is_costly: ClassVar[bool] = True

    warmup_steps: Annotated[float, RARE] = Field(
        0.0,
        ge=0,
        description="steps in which the learning rate rises from 0 to its peak; below 1: a share of all steps",
    )
    micro_batch_tokens: int = Field(
        0,
        ge=0,
        description="tokens that a process reads at once in training; a longer prompt is read by itself; 0: 8192, and "
        "on a GPU from the third step on as many as its memory holds",
    )
    lora_rank: int = Field(0, ge=0, description="rank of LoRA adapters; 0: train all parameters")
    dtype: Literal["auto", "float32", "tf32", "bfloat16"] = Field(
        "auto",
        description="arithmetic; auto: bfloat16 on a GPU, else float32; tf32: half as quick as bfloat16 on a GPU, for "
        "divergences that bfloat16 cannot see",
    )
    export_dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], RARE] = Field(
        "auto", description="precision in which the model is stored; auto: that of the model it came from"
    )
    gradient_checkpointing: bool = Field(
        False, description="save memory: compute activations again in the backward pass"
    )
    deepspeed: str = Field("", description="zero2, zero3 or a DeepSpeed JSON file; empty: none")
    save_steps: Annotated[int, RARE] = Field(
        10, ge=0, description="steps between checkpoints, beside the one at the end; 0: only one at SIGTERM"
    )
    work: WorkPath = Field(
        None, description="folder for checkpoints and teacher states, reused by later runs; empty: beside `out`"
    )


class PlanDistillConfig(_Training):
    """Says what `distill` would take on given GPUs or on a CPU (memory, hours, disk), which options let it fit, and
    whether so many updates can move the model.

    Of the model its config alone is read: it needs neither its weights nor a GPU."""

    model: ModelName = Field(description=MODEL)
    gpus: int = Field(1, ge=0, le=4096, description="number of GPUs, one process each; 0: train on the CPU, in float32")
    gpu_memory: float = Field(
        0.0, ge=0, description="memory of each GPU, in GB of 10^9 bytes; 0: 80, and of a CPU what this machine has free"
    )
    gpu_tflops: float = Field(
        0.0,
        ge=0,
        description="TFLOP/s of each GPU in bfloat16, as its maker says, without sparsity, of which training reaches "
        "35 %; 0: 989, of an H100 SXM, and of a CPU what a product of matrices reaches on this machine",
    )
    prompt_tokens: int = Field(4096, ge=2, description="tokens of a prompt")
    response_tokens: int = Field(40, ge=1, description="tokens of a response")
    n_examples: int = Field(300, ge=1, description="training examples")


class TrainJobConfig(_TrainingInputs):
    """Runs `distill` on several machines of a Kubernetes cluster, as a TrainJob that is followed to its end."""

    distill: Annotated[dict[str, Any], BeforeValidator(from_json)] = Field(
        {}, description='the other options of `distill`, as JSON like {"epochs": 3, "lora_rank": 16}'
    )
    work: Annotated[Location, Role.WORK, BeforeValidator(as_location), AfterValidator(in_s3)] = Field(
        description="folder in S3 shared by the machines, s3://bucket/work, for checkpoints and teacher states; inputs "
        "and outputs pass through it too"
    )
    deepspeed: str = Field("zero3", pattern="^(zero2|zero3|)$", description="zero2 or zero3; empty: none")
    nodes: int = Field(1, ge=1, description="number of machines")
    gpus_per_node: int = Field(1, ge=1, description="GPUs of each machine, with one process each")
    cpus_per_node: Annotated[int, RARE] = Field(
        0, ge=0, description="CPU cores of each machine; 0: as many as the runtime says"
    )
    memory_per_node: Annotated[str, RARE] = Field(
        "",
        pattern="^([0-9]+[KMGT]i?)?$",
        description="memory of each machine, like 256Gi; empty: as much as the runtime says",
    )
    runtime: Annotated[str, RARE] = Field(
        "posgap-deepspeed", min_length=1, description="training runtime of Kubeflow Trainer"
    )
    queue: Annotated[str, RARE] = Field("posgap-gpu", description="local queue of Kueue; empty: none")
    timeout: Annotated[int, RARE] = Field(
        86400, ge=60, description="seconds until the job is stopped, the wait for GPUs included"
    )

    @model_validator(mode="after")
    def _distill_takes_these(self) -> Self:
        own = sorted(set(self.distill) & set(type(self).model_fields))
        wrong = [f"{own[0]}: is an option of `train-job` itself"] if own else faults(self.as_distill)
        if wrong:
            raise ValueError(f"distill: {'; '.join(wrong)}")
        return self

    def as_distill(self) -> DistillConfig:
        """The config of the stage `distill` that the job runs."""
        shared = DistillConfig.model_fields.keys() & type(self).model_fields.keys()
        return DistillConfig(**self.distill | {name: getattr(self, name) for name in shared})

    @classmethod
    def nest(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """Puts those of `options` that are of `distill` alone into its object."""
        own = {name: value for name, value in options.items() if name in cls.model_fields}
        of_distill = {name: value for name, value in options.items() if name not in own}
        return own | {"distill": of_distill}
