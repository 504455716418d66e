"""What the configs of several verbs have in common."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from posgap.choices import BACKENDS, METRICS, TASKS, WITHOUT_EFFECT
from posgap.config.fields import (
    InputPath,
    ModelPath,
    OptionalMetricName,
    OutputPath,
    QuestionPlace,
    TaskName,
    role,
)


class Config(BaseModel):
    """The base of every verb's config."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    @classmethod
    def default(cls, name: str) -> Any:
        """The default of one parameter, for those who must repeat it (KFP, MLproject)."""
        return cls.model_fields[name].get_default(call_default_factory=True)

    @classmethod
    def parameters(cls) -> dict[str, FieldInfo]:
        """The plain parameters: neither paths nor `force`."""
        return {n: f for n, f in cls.model_fields.items() if role(f) is None and n != "force"}


class StageConfig(Config):
    out: OutputPath = Field(description="folder to write")
    seed: int = Field(0, description="seed of everything random in this stage")
    force: bool = Field(False, description="run again even where the output is complete")


WORDED = f"how prompts are worded and responses judged; {TASKS.described()}"
QUESTION = "where a prompt asks: after, before, or both sides of the documents"
SHUFFLE = "seed that shuffles an example's distractors, alike at every placement; 0: the file's order"


class PromptConfig(StageConfig):
    examples: InputPath = Field(description="examples, .jsonl or .jsonl.gz, or the folder `validate` wrote")
    model: ModelPath = Field(description="Hugging Face model folder or hub name")
    task: TaskName = Field("kv", description=WORDED)
    n_docs: int = Field(20, ge=1, description="documents in a prompt")
    max_new_tokens: int = Field(0, ge=0, description="longest response in tokens; 0: the task's own")
    question: QuestionPlace = Field("after", description=QUESTION)
    shuffle: int = Field(0, ge=0, description=SHUFFLE)


class GenerationConfig(PromptConfig):
    metric: OptionalMetricName = Field(
        "", description=f"how responses are scored; {METRICS.described()}; empty: the task's own"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    batch_tokens: Annotated[int, WITHOUT_EFFECT] = Field(
        32768, ge=1, description="transformers: tokens held at once, padding included"
    )


class BackendConfig(GenerationConfig):
    """The base of configs of stages that generate. Each adds the parameters of the backends that it offers."""

    backend: Annotated[str, BACKENDS, AfterValidator(BACKENDS.checked)] = Field(
        "transformers", description=f"what generates; {BACKENDS.described()}"
    )
