"""What the configs of several verbs have in common."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from posgap.config.fields import TASK_NAMES, InputPath, ModelPath, OutputPath, QuestionPlace, TaskName, role


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


QUESTION = "where a prompt asks: after, before, or both sides of the documents"
SHUFFLE = "seed that shuffles an example's distractors, alike at every placement; 0: the file's order"


class PromptConfig(StageConfig):
    examples: InputPath = Field(description="examples, .jsonl or .jsonl.gz, or the folder `validate` wrote")
    model: ModelPath = Field(description="Hugging Face model folder or hub name")
    task: TaskName = Field("kv", description=f"how prompts are worded: {TASK_NAMES}")
    n_docs: int = Field(20, ge=1, description="documents in a prompt")
    max_new_tokens: int = Field(0, ge=0, description="longest response in tokens; 0: the task's own")
    question: QuestionPlace = Field("after", description=QUESTION)
    shuffle: int = Field(0, ge=0, description=SHUFFLE)


class GenerationConfig(PromptConfig):
    metric: str = Field("", pattern="^(em|sub_em|f1|)$", description="em, sub_em or f1; empty: the task's own")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    batch_tokens: int = Field(32768, ge=1, description="transformers: tokens held at once, padding included")


class BackendConfig(GenerationConfig):
    backend: Literal["transformers", "vllm", "openai"] = Field(
        "transformers",
        description="what generates; openai: any endpoint that speaks its protocol, with the key in OPENAI_API_KEY",
    )
    processes: int = Field(0, ge=0, description="transformers: processes that share the examples; 0: one a GPU, or one")
