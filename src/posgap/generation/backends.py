"""What can generate: transformers here, vLLM here, or an endpoint elsewhere."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from posgap.choices import BACKENDS, TASKS, WITHOUT_EFFECT, Parameters
from posgap.errors import PosgapError

if TYPE_CHECKING:
    from posgap.config import BackendConfig
    from posgap.generation.generator import Generator
    from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder


@dataclass(frozen=True)
class Backend:
    """What generates, as `--backend` names it.

    A backend that is not `local` asks a model elsewhere: it has neither tokenizer nor parameters here, so that prompts
    are text, nothing is known of the model's scaling, and what it read cannot be diagnosed. A teacher needs one that
    `gives_token_ids`. Parameters marked `WITHOUT_EFFECT` change how fast responses come, not what they say.
    """

    name: str
    help: str
    parameters: type[Parameters] = Parameters
    local: bool = True

    @property
    def gives_token_ids(self) -> bool:
        return self.local

    def builder(self, config: "BackendConfig") -> "TextPromptBuilder":
        """What makes the prompts: token ids where the model is here, else text."""
        from posgap.tasks.prompts import TextPromptBuilder
        from posgap.tasks.setup import order_of, prompt_builder

        if self.local:
            return prompt_builder(config.task, config.model, config.max_new_tokens, order_of(config))
        task = TASKS[config.task]
        return TextPromptBuilder(
            task, config.max_new_tokens or task.max_new_tokens, order_of(config), self.template(config)
        )

    def template(self, config: "BackendConfig") -> str:
        """What a model elsewhere puts the text of a prompt into: a word for its own chat template, else nothing."""
        return ""

    def generator(self, config: "BackendConfig", build: "TextPromptBuilder") -> "Generator":
        """What answers the prompts of `build`; `PosgapError` where the backend lacks something."""
        raise NotImplementedError


class TransformersParameters(Parameters):
    processes: Annotated[int, WITHOUT_EFFECT] = Field(
        0, ge=0, description="transformers: processes that share the examples; 0: one a GPU, or one"
    )


class _Transformers(Backend):
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

        return VLLMGenerator(config.model, config.dtype, _with_tokenizer(build).context, config.seed)


class EndpointParameters(Parameters):
    base_url: str = Field("", description="openai: address of the endpoint, like http://localhost:8000/v1")
    endpoint: Literal["chat", "completions"] = Field(
        "chat",
        description="openai: chat, with the model's chat template; completions, of the bare prompt (base models)",
    )
    concurrency: Annotated[int, WITHOUT_EFFECT] = Field(8, ge=1, description="openai: requests under way at once")
    timeout: Annotated[float, WITHOUT_EFFECT] = Field(120.0, gt=0, description="openai: seconds to wait for a response")
    retries: Annotated[int, WITHOUT_EFFECT] = Field(
        8, ge=0, description="openai: times a request is tried again before the sweep gives up"
    )


class _OpenAI(Backend):
    def template(self, config: "BackendConfig") -> str:
        return "endpoint's own" if EndpointParameters.of(config).endpoint == "chat" else ""

    def generator(self, config: "BackendConfig", build: "TextPromptBuilder") -> "Generator":
        from posgap.generation.openai import OpenAIGenerator

        its = EndpointParameters.of(config)
        if not its.base_url:
            raise PosgapError("backend openai: give `base_url`, like http://localhost:8000/v1")
        limits = (its.concurrency, its.timeout, its.retries)
        return OpenAIGenerator(its.base_url, config.model, *limits, chat=its.endpoint == "chat")


TRANSFORMERS = _Transformers("transformers", "in this process or several", TransformersParameters)
VLLM = _VLLM("vllm", "in this process, where vLLM is installed")
OPENAI = _OpenAI(
    "openai",
    "any endpoint that speaks its protocol, with the key in OPENAI_API_KEY",
    EndpointParameters,
    local=False,
)


def open_generator(config: "BackendConfig", build: "TextPromptBuilder") -> "Generator":
    """The generator of a stage's config; `PosgapError` where the backend lacks something."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise PosgapError(
            "generation starts processes of its own: run this without a launcher; `processes` says how many, and by "
            "itself it takes every GPU"
        )
    return BACKENDS[config.backend].generator(config, build)


def _with_tokenizer(build: "TextPromptBuilder") -> "PromptBuilder":
    from posgap.tasks.prompts import PromptBuilder

    assert isinstance(build, PromptBuilder)
    return build
