"""The base classes of configs, with the parameters that several verbs share."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, field_validator
from pydantic.fields import FieldInfo

from posgap.choices import BACKENDS, METRICS, SECRET, TASKS, WITHOUT_EFFECT, Parameters
from posgap.config.fields import (
    MOST_DOCS,
    VERBATIM,
    ChatTemplateText,
    Day,
    InputPath,
    ModelName,
    OptionalMetricName,
    OutputPath,
    QuestionPlace,
    StopStrings,
    TaskName,
    Values,
    role,
)
from posgap.redaction import HIDDEN, redacted_value

NO_PARAMETERS = ("force", "estimate")  # what is done anew, or not at all, which changes no output
_UNWRITABLE = re.compile(r"[\x00\ud800-\udfff]")
LARGEST = 2**32 - 1  # of whole numbers; numpy takes no larger seed


class Config(BaseModel):
    """The base of every verb's config. Its numbers are finite, and its texts can be written down."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @field_validator("*", mode="after")
    @classmethod
    def _ordinary(cls, value: Any) -> Any:
        if isinstance(value, int) and abs(value) > LARGEST:
            raise ValueError(f"must not be above {LARGEST}")
        for text in value if isinstance(value, list) else value.values() if isinstance(value, dict) else [value]:
            if isinstance(text, str | Path) and _UNWRITABLE.search(str(text)):
                raise ValueError("is no text in UTF-8")
        return value

    @classmethod
    def default(cls, name: str) -> Any:
        """The default of one parameter, for KFP and MLproject, which must repeat it, and have no null."""
        default = cls.model_fields[name].get_default(call_default_factory=True)
        return "" if default is None else default

    @classmethod
    def shown_defaults(cls) -> dict[str, str]:
        """What help says of the default of fields that another field decides where they are left empty."""
        return {}

    @classmethod
    def parameters(cls) -> dict[str, FieldInfo]:
        """The plain parameters by name: all fields but paths and `NO_PARAMETERS`."""
        return {n: f for n, f in cls.model_fields.items() if role(f) is None and n not in NO_PARAMETERS}

    @classmethod
    def deciding(cls) -> list[str]:
        """The names of the plain parameters that decide what comes out, rather than how fast."""
        return [name for name, field in cls.parameters().items() if WITHOUT_EFFECT not in field.metadata]

    def is_served(self, name: str) -> bool:
        """Whether the input of this name is a model that a server elsewhere calls so, in whatever way."""
        return False

    def recorded(self) -> dict[str, Any]:
        """All fields as JSON values, as manifests keep them: without secrets."""
        plain = self.model_dump(mode="json")
        verbatim = {n: plain[n] for n, field in type(self).model_fields.items() if VERBATIM in field.metadata}
        values = redacted_value(plain) | verbatim
        secret = {n for n, field in type(self).model_fields.items() if SECRET in field.metadata and values[n]}
        return values | dict.fromkeys(secret, HIDDEN)

    def chosen(self) -> dict[str, Any]:
        """The plain parameters of these."""
        return {name: value for name, value in self.recorded().items() if name in self.parameters()}


class FileConfig(Config):
    out: OutputPath = Field(description="file to write")
    force: bool = Field(False, description="replace another file of this name")


class StageConfig(Config):
    out: OutputPath = Field(description="folder to write")
    seed: int = Field(0, ge=0, description="seed of all random numbers in this stage")
    force: bool = Field(False, description="run again even if the output is complete")
    examples_for: ClassVar[str] = ""  # what a stage that has the input `examples` uses them for
    _digests: Mapping[str, str] = PrivateAttr(default_factory=dict)

    def with_digests(self, digests: Mapping[str, str]) -> Self:
        """This config, which knows the sha256 of each of its inputs, by field."""
        config = self.model_copy()
        config._digests = digests
        return config

    def digest(self, name: str) -> str:
        """The sha256 of an input, which the stage's frame has computed before the stage began to work, so that a model
        of many gigabytes is not read for it again; empty for a model on the hub."""
        return self._digests[name]


WORDED = f"task, which decides the wording of prompts and the scoring of responses; {TASKS.described()}"
QUESTION = "place of the question in a prompt: after the documents, before them, or on both sides"
SHUFFLE = "seed that shuffles each example's distractors, in the same way at every placement; 0: the file's order"


DATE = "2024-07-26"  # the day on which Llama 3.2's template falls back where it is not told today's


class Framed(Parameters):
    """What stands around a task's text when a model is asked."""

    system: str = Field("", description="system message; empty: none")
    template: ChatTemplateText = Field(
        "", description="chat template in jinja: a file, or its text; empty: the model's own, if it has one"
    )
    template_args: Values = Field(
        {}, description='what the chat template is called with, like {"enable_thinking": false}'
    )
    date: Day = Field(DATE, description="today's date for chat templates that ask for it, so that it stays the same")


class _Prompt(StageConfig):
    examples: InputPath = Field(description="file of examples, .jsonl or .jsonl.gz, or folder from `validate`")
    model: ModelName = Field(description="Hugging Face model folder, hub name, or models:/NAME@champion in MLflow")
    task: TaskName = Field("kv", description=WORDED)
    n_docs: int = Field(20, ge=1, le=MOST_DOCS, description="documents in a prompt")
    max_new_tokens: int = Field(0, ge=0, description="longest response, in tokens; 0: the task's own limit")
    question: QuestionPlace = Field("after", description=QUESTION)
    shuffle: int = Field(0, ge=0, description=SHUFFLE)


class PromptConfig(Framed, _Prompt):
    """The base of the configs of stages that make prompts."""


class GenerationConfig(PromptConfig):
    metric: OptionalMetricName = Field(
        "", description=f"metric that scores responses; {METRICS.described()}; empty: the task's own"
    )
    max_thinking_tokens: int = Field(
        0,
        ge=0,
        description="longest thoughts of a reasoning model, in tokens, beside max_new_tokens of the answer; 0: "
        "max_new_tokens has both",
    )
    stop: StopStrings = Field(
        [],
        description="strings that end a response, as a JSON list, or one as it is; empty: without a chat template the "
        "metric's own, which change no score",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field("auto", description="auto: bfloat16 on a GPU, else float32")
    batch_tokens: Annotated[int, WITHOUT_EFFECT] = Field(
        32768, ge=1, description="transformers: tokens in a batch, padding included"
    )


class BackendConfig(GenerationConfig):
    """The base of the configs of stages that generate; each adds the parameters of the backends that it offers."""

    backend: Annotated[str, BACKENDS, AfterValidator(BACKENDS.checked)] = Field(
        "transformers", description=f"backend that generates; {BACKENDS.described()}"
    )

    @property
    def answered_by(self) -> str:
        """The name of the backend that answers."""
        return self.backend

    def is_served(self, name: str) -> bool:
        return name == "model" and not BACKENDS[self.answered_by].local
