"""Options of `distill`."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from posgap.distillation.methods import METHODS
from posgap.foundation.fields import (
    MODEL,
    RARE,
    InputPath,
    ModelName,
    OptionalInputPath,
    WorkPath,
)
from posgap.generation.asking import Wording
from posgap.options.base import Config, SeededConfig, StageConfig
from posgap.options.prompts import QUESTION, SHUFFLE, WORDED, FramingParameters
from posgap.options.verb import Kind, Verb
from posgap.tasks.fields import QuestionPlace, TaskName
from posgap.tasks.task import PromptOrder

TRAINING_METHODS = METHODS.where(lambda method: method.trains)


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
        description="steps over which the learning rate rises from 0 to its peak; below 1: a share of all steps",
    )
    micro_batch_tokens: int = Field(
        0,
        ge=0,
        description="tokens in a process's batch in training; a longer prompt is a batch of its own; 0: 8192, and on "
        "a GPU as many as its memory holds, from the third step on",
    )
    lora_rank: int = Field(0, ge=0, description="rank of LoRA adapters; 0: train all parameters")
    dtype: Literal["auto", "float32", "tf32", "bfloat16"] = Field(
        "auto",
        description="arithmetic; auto: bfloat16 on a GPU, else float32; tf32: half as quick as bfloat16 on a GPU, for "
        "divergences that bfloat16 cannot see",
    )
    export_dtype: Annotated[Literal["auto", "float32", "bfloat16", "float16"], RARE] = Field(
        "auto", description="precision of the stored model; auto: the base's"
    )
    gradient_checkpointing: bool = Field(
        False, description="save memory: compute activations again in the backward pass"
    )
    deepspeed: str = Field("", description="zero2, zero3 or a DeepSpeed JSON file; empty: none")
    eval: OptionalInputPath = Field(
        None,
        description="held-out examples (at most 64), measured while the model trains: the share of gold answers that "
        "it would give word for word, with the gold document at up to five positions",
    )
    eval_text: Annotated[OptionalInputPath, RARE] = Field(
        None,
        description='plain text, lines like {"text": "..."}, measured while the model trains, in nats a token',
    )
    eval_steps: Annotated[int, RARE] = Field(0, ge=0, description="steps between evaluations; 0: ten in all")
    keep: Literal["last", "best"] = Field(
        "last",
        description="checkpoint to write: the last, or the one whose worst position in --eval is best",
    )
    save_steps: Annotated[int, RARE] = Field(
        10, ge=0, description="steps between checkpoints, beside the one at the end; 0: only one at SIGTERM"
    )
    work: WorkPath = Field(
        None, description="folder for checkpoints and teacher states, reused by later runs; empty: beside `out`"
    )

    @model_validator(mode="after")
    def _best_of_what_is_measured(self) -> Self:
        if self.keep == "best" and not (self.eval and self.save_steps):
            raise ValueError("`keep`: needs `eval`, which finds the best model, and `save_steps`, which keeps it")
        return self

    def wording(self) -> Wording:
        """How prompts are worded."""
        return Wording(self.task, PromptOrder(self.question, self.shuffle), self.framing())


VERB = Verb(
    DistillConfig,
    "--model Qwen/Qwen3-0.6B --examples run/train --responses run/responses --out run/candidate",
    results=("manifest.json",),
    kind=Kind.STAGE,
)
