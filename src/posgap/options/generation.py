"""Options of all verbs that generate responses."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from posgap.foundation.fields import RARE, StopStrings, is_endpoint
from posgap.foundation.registry import WITHOUT_EFFECT
from posgap.generation.asking import NO_STOP, ModelAccess, ResponseLimits, Wording
from posgap.generation.backends import AUTO, BACKENDS, LOCAL_BACKENDS, OPENAI, resolve_backend, resolve_dtype
from posgap.generation.endpoint_names import with_endpoint
from posgap.measurement.settings import AskingSettings
from posgap.options.base import SeededConfig
from posgap.options.prompts import PromptConfig
from posgap.tasks.fields import OptionalMetricName
from posgap.tasks.metrics import METRICS
from posgap.tasks.prompts import TextPromptBuilder

# Parameters that decide results but no response, and those of filling and mitigation, which the prompts' digest
# includes.
_NOT_OF_RESPONSES = {"metric", "limit", "label", "keep_incorrect", "guards"}
_NOT_OF_RESPONSES |= {"lengths", "depths", "most_gap", "mitigation", "mitigation_settings"}


class GenerationConfig(PromptConfig, SeededConfig):
    is_costly: ClassVar[bool] = True

    metric: OptionalMetricName = Field(
        "", description=f"metric that scores responses; {METRICS.help_text()}; empty: the task's own"
    )
    max_thinking_tokens: Annotated[int, RARE] = Field(
        0,
        ge=0,
        description="longest thoughts of a reasoning model, in tokens, beside max_new_tokens of the answer; 0: "
        "max_new_tokens has both",
    )
    stop: Annotated[StopStrings, RARE] = Field(
        [],
        description=f"strings that end a response: one string, or a JSON list; {NO_STOP}: no string ends it; "
        "empty: without a chat template the end of the first line with task kv or metric litm",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto",
        description="auto: bfloat16 on a GPU, and for models of 50 million parameters or more on a processor that "
        "computes it quicker (AMX, avx512_bf16); else float32",
    )
    batch_tokens: Annotated[int, WITHOUT_EFFECT, RARE] = Field(
        0,
        ge=0,
        description="transformers: tokens in a batch, padding included; 0: 32768, and on a GPU what its memory holds",
    )

    def wording(self) -> Wording:
        return replace(super().wording(), metric=self.metric)

    def limits(self) -> ResponseLimits:
        stop = ResponseLimits.parse_stop(self.stop)
        return replace(super().limits(), max_thinking_tokens=self.max_thinking_tokens, stop=stop)


class BackendConfig(GenerationConfig):
    """The base of the configs of stages that generate; each adds the parameters of the backends that it offers."""

    vllm_options: ClassVar[Mapping[str, Any]] = {}  # further arguments of `vllm.LLM`

    backend: Annotated[str, BACKENDS, AfterValidator(BACKENDS.require_name)] = Field(
        AUTO.name,
        description=f"backend that generates; openai if you give an endpoint's address; {BACKENDS.help_text()}",
    )

    @model_validator(mode="before")
    @classmethod
    def _of_an_endpoint(cls, values: Any) -> Any:
        """An endpoint's address says which backend answers, whether it is the model's or `base_url`."""
        if "base_url" not in cls.model_fields or not isinstance(values, Mapping):
            return values
        if not values.get("model") and is_endpoint(values.get("base_url")):  # which says which model it serves
            values = {**values, "model": values["base_url"], "base_url": ""}
        values = with_endpoint(values)
        named = [each.name for each in BACKENDS if each.takes(values.get("model") or "")]
        chosen = values.get("backend") or AUTO.name
        if named and chosen in (AUTO.name, *named):
            return values | {"backend": named[0]}
        if values.get("base_url") and chosen == AUTO.name:
            return values | {"backend": OPENAI.name}
        return values | {"backend": chosen}

    @model_validator(mode="after")
    def _asks_where_it_is_told(self) -> Self:
        if getattr(self, "base_url", "") and BACKENDS[self.backend].local:
            raise ValueError(
                f"`base_url`: is for an endpoint, which backend {self.backend} does not use; leave one out"
            )
        return self

    def why_in_memory(self) -> str:
        """Returns what a stage needs a model in this process's memory for, which vLLM's is not; empty for nothing."""
        return ""

    def access(self) -> ModelAccess:
        """Which model answers, and how it is reached."""
        names = {name for backend in BACKENDS for name in backend.parameters.model_fields}
        return ModelAccess(
            model=self.model,
            backend=self.backend,
            dtype=self.dtype,
            batch_tokens=self.batch_tokens,
            seed=self.seed,
            parameters={name: getattr(self, name) for name in type(self).model_fields if name in names},
            vllm_options=self.vllm_options,
            why_in_memory=self.why_in_memory(),
        )

    def response_key(self) -> dict[str, Any]:
        """The parameters that decide responses, except those that the prompts' digest includes."""
        return {name: getattr(self, name) for name in self.cache_key_fields() if name not in _NOT_OF_RESPONSES}

    def asking(self) -> AskingSettings:
        """Returns which model answers, and how its answers are named."""
        return AskingSettings(self.access(), self.metric, self.examples, self.out, self.response_key())

    def builder(self) -> TextPromptBuilder:
        """Returns the builder of the prompts that are asked."""
        return BACKENDS[self.backend].builder(self.access(), self.wording(), self.limits())

    def resolve_auto(self) -> Self:
        dtype = resolve_dtype(self.access()).dtype
        return self.model_copy(update={"dtype": dtype}).resolve_backend()

    def resolve_backend(self) -> Self:
        """Returns this config with a backend in place of "auto"; on a GPU a line says which, and why."""
        return self.model_copy(update={"backend": resolve_backend(self.access()).backend})

    def in_runs(self, verb: str) -> Path:
        """The folder in `runs`; of an endpoint it names the host too, since two of them may serve equal names."""
        address = getattr(self, "base_url", "").partition("://")[2]
        host = address.partition("/")[0].partition("?")[0].rpartition("@")[2]
        return super().in_runs(f"{verb}-{host}" if host else verb)

    def is_served(self, name: str) -> bool:
        return name == "model" and not BACKENDS[self.backend].local


class LocalBackendConfig(*LOCAL_BACKENDS.bases(), BackendConfig):  # type: ignore[misc]  # registered choices' parameters
    """The base of the configs of stages that want a model on this machine."""

    backend: Annotated[str, LOCAL_BACKENDS, AfterValidator(LOCAL_BACKENDS.require_name)] = Field(
        AUTO.name, description=f"backend that generates; {LOCAL_BACKENDS.help_text()}"
    )
