"""The backends that generate responses: transformers and vLLM on this machine, or an endpoint elsewhere."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator

from posgap.choices import BACKENDS, SECRET, TASKS, WITHOUT_EFFECT, Parameters
from posgap.errors import PosgapError

if TYPE_CHECKING:
    from posgap.config import BackendConfig
    from posgap.generation.generator import Generator
    from posgap.generation.served import Served
    from posgap.tasks.framing import Framing
    from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder


@dataclass(frozen=True)
class Backend:
    """A backend that generates responses, by its name for `--backend`.

    A backend that is not `local` calls a model elsewhere. Tokenizer and parameters are not at hand then, so prompts are
    sent as text, the model's scaling is unknown, and its sweeps cannot be diagnosed. A teacher needs a backend that
    `gives_token_ids`. `requests` are those of the parameters that do not say where the model is. Parameters marked
    `WITHOUT_EFFECT` change the speed of generation, but not the responses.
    """

    name: str
    help: str
    parameters: type[Parameters] = Parameters
    local: bool = True
    requests: type[Parameters] = Parameters

    @property
    def gives_token_ids(self) -> bool:
        """Whether completions come with token ids."""
        return self.local

    @property
    def gives_attention(self) -> bool:
        """Whether it shows the model's attention."""
        return False

    def builder(self, config: "BackendConfig") -> "TextPromptBuilder":
        """The builder of the backend's prompts: with token ids for a local model, else as text."""
        from posgap.tasks.prompts import TextPromptBuilder
        from posgap.tasks.setup import builder_of, order_of

        if self.local:
            return builder_of(config)
        task, template = TASKS[config.task], self.template(config)
        longest = config.max_new_tokens or task.max_new_tokens
        order, framing = order_of(config), self.framing(config)
        stop = tuple(config.stop) or (() if template else task.stop(config.metric))
        return TextPromptBuilder(task, longest, order, template, framing, stop, config.max_thinking_tokens)

    def template(self, config: "BackendConfig") -> str:
        """What a model elsewhere puts the text of a prompt into: a word for its own chat template, else nothing."""
        return ""

    def framing(self, config: "BackendConfig") -> "Framing":
        """The framing that a model elsewhere is asked with; raises `PosgapError` for what only a local one can be."""
        from posgap.tasks.framing import Framing

        framing = Framing.of(config)
        if framing.template or framing.date != Framing.date:
            name = "template" if framing.template else "date"
            raise PosgapError(f"{name}: is for models on this machine; backend {self.name} has the chat made elsewhere")
        return framing

    def decoding(self, config: "BackendConfig", served: "Served | None") -> str:
        """How tokens are chosen, where an endpoint said this of itself: greedily, as far as it can be told."""
        return "greedy"

    def generator(self, config: "BackendConfig", build: "TextPromptBuilder") -> "Generator":
        """The generator that answers prompts of `build`; raises `PosgapError` if something it needs is missing."""
        raise NotImplementedError


class TransformersParameters(Parameters):
    processes: Annotated[int, WITHOUT_EFFECT] = Field(
        0, ge=0, description="transformers: number of processes that share the examples; 0: one per GPU, or one"
    )


class _Transformers(Backend):
    @property
    def gives_attention(self) -> bool:
        return True

    def generator(self, config: "BackendConfig", build: "TextPromptBuilder") -> "Generator":
        import torch

        from posgap.generation.parallel import ParallelGenerator
        from posgap.generation.transformers import TransformersGenerator
        from posgap.models.loading import load_model

        tokenizer = _with_tokenizer(build).tokenizer
        processes = TransformersParameters.of(config).processes or torch.cuda.device_count()
        if processes > 1:
            return ParallelGenerator(config.model, config.dtype, tokenizer, config.batch_tokens, processes)
        return TransformersGenerator(load_model(config.model, config.dtype), tokenizer, config.batch_tokens)


class _VLLM(Backend):
    def generator(self, config: "BackendConfig", build: "TextPromptBuilder") -> "Generator":
        from posgap.generation.vllm import VLLMGenerator

        local = _with_tokenizer(build)
        return VLLMGenerator(config.model, config.dtype, local.context, config.seed, local.tokenizer)


def _pairs(value: Any) -> Any:
    from posgap.config.fields import pairs  # which is built on the registries

    return pairs(value)


def _json(value: Any) -> Any:
    from posgap.config.fields import from_json

    return from_json(value)


class RequestParameters(Parameters):
    """How an endpoint is asked, whichever it is; the parameter `named_by` says what its model is called there."""

    named_by: ClassVar[str] = "model"

    endpoint: Literal["chat", "completions"] = Field(
        "chat",
        description="openai: chat: the endpoint applies the model's chat template; completions: it completes the bare "
        "prompt (base models)",
    )
    body: Annotated[dict[str, Any], BeforeValidator(_json)] = Field(
        {},
        description='openai: more fields of each request as JSON, like {"reasoning_effort": "low"}; a null leaves out '
        "what is sent otherwise",
    )
    header: Annotated[dict[str, str], BeforeValidator(_pairs), SECRET, WITHOUT_EFFECT] = Field(
        {},
        description="openai: header of each request, in which $NAME stands for a variable of the environment; its "
        "value is written down nowhere",
    )
    identity: Annotated[Literal["fingerprint", "model", "any"], WITHOUT_EFFECT] = Field(
        "fingerprint",
        description="openai: what the endpoint must stay throughout a sweep; fingerprint: the same model with the same "
        "fingerprint; model: the same model; any: whatever it says",
    )
    concurrency: Annotated[int, WITHOUT_EFFECT] = Field(
        8, ge=1, description="openai: number of requests at the same time"
    )
    timeout: Annotated[float, WITHOUT_EFFECT] = Field(
        120.0, gt=0, description="openai: seconds to wait for a whole response"
    )
    retries: Annotated[int, WITHOUT_EFFECT] = Field(
        8, ge=0, description="openai: number of retries of a request before its prompt counts as failed"
    )

    @field_validator("body")
    @classmethod
    def _more(cls, body: Any) -> dict[str, Any]:
        for name, parameter in (_SENT_BY_US | {"model": cls.named_by}).items():
            if name in body:
                instead = f": give --{parameter.replace('_', '-')}" if parameter else ""
                raise ValueError(f"{name!r} is posgap's own{instead}")
        return body


class EndpointParameters(RequestParameters):
    base_url: str = Field("", description="openai: address of the endpoint, like http://localhost:8000/v1")


_SENT_BY_US = {  # by the parameter that sets it
    "messages": "",
    "prompt": "",
    "n": "",
    "stream": "",
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "chat_template_kwargs": "template_args",
}


class _OpenAI(Backend):
    def template(self, config: "BackendConfig") -> str:
        return "endpoint's own" if EndpointParameters.of(config).endpoint == "chat" else ""

    def framing(self, config: "BackendConfig") -> "Framing":
        framing = super().framing(config)
        if framing.described() and not self.template(config):
            raise PosgapError(
                f"{', '.join(framing.described())}: a bare prompt has no chat around it; take --endpoint chat"
            )
        return framing

    def decoding(self, config: "BackendConfig", served: "Served | None") -> str:
        temperature = EndpointParameters.of(config).body.get("temperature", 0)
        left_out = served is not None and "temperature" in served.left_out
        if left_out or temperature is None:
            return "endpoint's own"
        return f"temperature {temperature}" if temperature else "greedy"

    def generator(self, config: "BackendConfig", build: "TextPromptBuilder") -> "Generator":
        from posgap.generation.openai import OpenAIGenerator

        parameters = EndpointParameters.of(config)
        if not parameters.base_url:
            raise PosgapError("backend openai: give `base_url`, like http://localhost:8000/v1")
        return OpenAIGenerator(config.model, parameters, build.framing)


TRANSFORMERS = _Transformers("transformers", "on this machine, in one process or several", TransformersParameters)
VLLM = _VLLM("vllm", "on this machine, if vLLM is installed")
OPENAI = _OpenAI(
    "openai",
    "any OpenAI-compatible endpoint, with the key in OPENAI_API_KEY",
    EndpointParameters,
    local=False,
    requests=RequestParameters,
)


def open_generator(config: "BackendConfig", build: "TextPromptBuilder") -> "Generator":
    """The generator of a stage's config; raises `PosgapError` if something the backend needs is missing."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise PosgapError(
            "generation starts its own processes, one per GPU by default: run this without a launcher, and set "
            "`processes` for another number"
        )
    return BACKENDS[config.backend].generator(config, build)


def _with_tokenizer(build: "TextPromptBuilder") -> "PromptBuilder":
    from posgap.tasks.prompts import PromptBuilder

    assert isinstance(build, PromptBuilder)
    return build
