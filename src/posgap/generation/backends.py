"""The backends that generate responses: transformers and vLLM on this machine, or an endpoint elsewhere."""

import importlib.util
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, cast

from pydantic import AfterValidator, Field, model_validator

from posgap.foundation.errors import PosgapError
from posgap.foundation.fields import RARE, is_endpoint, is_function
from posgap.foundation.registry import WITHOUT_EFFECT, Parameters, Registry
from posgap.generation.application import Application, ApplicationGenerator, load_function
from posgap.generation.endpoint_names import with_endpoint
from posgap.generation.endpoint_parameters import ApplicationParameters, EndpointParameters
from posgap.generation.setup import builder_of, order_of
from posgap.mitigations.in_force import load_model
from posgap.models import ADAPTER, MITIGATIONS_KEY, NO_CONFIG
from posgap.models.factors import config_factors
from posgap.models.precision import MIN_PARAMETERS, bfloat16_of_cpu, device_class, generating_dtype, n_parameters
from posgap.options.generation import GenerationConfig
from posgap.tasks.framing import Framing
from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder
from posgap.tasks.registry import TASKS

if TYPE_CHECKING:
    from posgap.generation.generator import Generator
    from posgap.generation.served import EndpointIdentity

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Backend:
    """A backend that generates responses, by its name for `--backend`.

    A backend that is not `local` calls a model elsewhere. Tokenizer and parameters are not at hand then, so prompts are
    sent as text, completions have no token ids, which a teacher needs, and the model's scaling is unknown. One that is
    `in_memory` answers by a model in this process, in which mitigations can be put in force. `is_model` is false for
    one that answers by something that no registry can serve. Parameters marked `WITHOUT_EFFECT` change the speed of
    generation, but not the responses.
    """

    name: str
    help: str
    parameters: type[Parameters] = Parameters
    local: bool = True
    in_memory: bool = False
    is_model: bool = True

    def takes(self, model: str) -> bool:
        """Whether a model is named so that only this backend can answer."""
        return False

    def dtype(self, config: "BackendConfig") -> str:
        """The dtype in which it answers: the config's, or what "auto" stands for where that is known."""
        return _dtype_here(config) if self.local else config.dtype

    def builder(self, config: "BackendConfig") -> "TextPromptBuilder":
        """The builder of the backend's prompts: with token ids for a local model, else as text."""

        if self.local:
            return builder_of(config)
        task, template = TASKS[config.task], self.template(config)
        longest = config.max_new_tokens or task.max_new_tokens
        order, framing = order_of(config), self.framing(config)
        stop = config.stop_strings(() if template else task.stop_of_base(config.metric))
        return TextPromptBuilder(task, longest, order, template, framing, stop, config.max_thinking_tokens)

    def template(self, config: "BackendConfig") -> str:
        """The name of what a model elsewhere puts a prompt's text into: a word for its own chat template, else
        nothing."""
        return ""

    def framing(self, config: "BackendConfig") -> "Framing":
        """The framing that a model elsewhere is asked with; raises `PosgapError` for what only a local one can be."""
        framing = Framing(config.system, config.template, config.template_args)
        if framing.template:
            raise PosgapError(
                f"template: is for models on this machine; backend {self.name} has the chat made elsewhere"
            )
        return framing

    def decoding(self, config: "BackendConfig", served: "EndpointIdentity | None") -> str:
        """How tokens are chosen, where an endpoint said this of itself: greedily, as far as it can be told."""
        return "greedy"

    def generator(self, config: "BackendConfig", builder: "TextPromptBuilder") -> "Generator":
        """The generator that answers prompts of `builder`; raises `PosgapError` if something it needs is missing."""
        raise NotImplementedError


class VLLMParameters(Parameters):
    tensor_parallel_size: Annotated[int, WITHOUT_EFFECT, RARE] = Field(
        1, ge=1, description="vllm: number of GPUs that share the model, for one that is too large for a single GPU"
    )


class _Transformers(Backend):
    def generator(self, config: "BackendConfig", builder: "TextPromptBuilder") -> "Generator":
        from posgap.generation.transformers import TransformersGenerator

        tokenizer = cast(PromptBuilder, builder).tokenizer
        return TransformersGenerator(load_model(config.model, config.dtype), tokenizer, config.batch_tokens, pack=True)


class _VLLM(Backend):
    def generator(self, config: "BackendConfig", builder: "TextPromptBuilder") -> "Generator":
        from posgap.generation.vllm import VLLMGenerator
        from posgap.models.loading import load_config
        from posgap.models.rope_lengths import RopeLengths

        local, gpus = cast(PromptBuilder, builder), VLLMParameters.of(config).tensor_parallel_size
        # By itself vLLM takes for these another length, and with it other frequencies.
        context = local.context if RopeLengths.from_config(load_config(config.model)) else None
        return VLLMGenerator(
            config.model, config.dtype, config.seed, local.tokenizer, gpus, context, **config.vllm_options
        )


class _Auto(Backend):
    """Stands for one of the others until model and machine are known, as `resolve_auto` has it."""

    def generator(self, config: "BackendConfig", builder: "TextPromptBuilder") -> "Generator":
        return open_generator(config.resolve_auto(), builder)


class _OpenAI(Backend):
    def template(self, config: "BackendConfig") -> str:
        return "endpoint's own" if EndpointParameters.of(config).endpoint == "chat" else ""

    def framing(self, config: "BackendConfig") -> "Framing":
        framing = super().framing(config)
        if framing.shown_settings() and not self.template(config):
            raise PosgapError(
                f"{', '.join(framing.shown_settings())}: a bare prompt has no chat around it; take --endpoint chat"
            )
        return framing

    def decoding(self, config: "BackendConfig", served: "EndpointIdentity | None") -> str:
        temperature = EndpointParameters.of(config).body.get("temperature", 0)
        left_out = served is not None and "temperature" in served.left_out
        if left_out or temperature is None:
            return "endpoint's own"
        return f"temperature {temperature}" if temperature else "greedy"

    def generator(self, config: "BackendConfig", builder: "TextPromptBuilder") -> "Generator":
        from posgap.generation.openai import OpenAIGenerator

        parameters = EndpointParameters.of(config)
        if not parameters.base_url:
            raise PosgapError("backend openai: give `base_url`, like http://localhost:8000/v1")
        return OpenAIGenerator(config.model, parameters, builder.framing)


class _Application(Backend):
    def takes(self, model: str) -> bool:
        return is_function(model)

    def template(self, config: "BackendConfig") -> str:
        return "application's own"

    def framing(self, config: "BackendConfig") -> "Framing":
        given = {name: getattr(config, name) for name in ("system", "template", "template_args")}
        parameters = ApplicationParameters.of(config).model_dump(exclude_defaults=True)
        for name in [*filter(given.get, given), *parameters.keys() - {"concurrency", "timeout", "version"}]:
            raise PosgapError(f"{name}: an application words and sends its prompts itself; leave it out")
        return super().framing(config)

    def decoding(self, config: "BackendConfig", served: "EndpointIdentity | None") -> str:
        return "application's own"

    def generator(self, config: "BackendConfig", builder: "TextPromptBuilder") -> "Generator":
        application = Application(load_function(config.model), config.model)
        return ApplicationGenerator(application, ApplicationParameters.of(config), builder)


AUTO = _Auto(
    "auto",
    "vllm on a GPU where it is installed and serves the model, else transformers",
    VLLMParameters,
    in_memory=True,
)
TRANSFORMERS = _Transformers("transformers", "on this machine, in this process", in_memory=True)
VLLM = _VLLM("vllm", "on this machine, if vLLM is installed", VLLMParameters)
OPENAI = _OpenAI(
    "openai",
    "any OpenAI-compatible endpoint, with the key in OPENAI_API_KEY",
    EndpointParameters,
    local=False,
)
APPLICATION = _Application(
    "python",
    "an application: a function, --model python:package.module:name",
    ApplicationParameters,
    local=False,
    is_model=False,
)


def open_generator(config: "BackendConfig", builder: "TextPromptBuilder") -> "Generator":
    """The generator of a stage's config; raises `PosgapError` if something the backend needs is missing."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise PosgapError("a model answers in one process: run this without a launcher; `shard` splits a sweep")
    return BACKENDS[config.backend].generator(config, builder)


def _dtype_here(config: "BackendConfig") -> str:
    folder = Path(config.model)
    if folder.is_dir() and not any((folder / name).is_file() for name in ("config.json", ADAPTER)):
        raise PosgapError(f"{config.model}: no model to load here: {NO_CONFIG}")  # before seconds of imports
    from posgap.models.loading import load_config

    return generating_dtype(config.dtype, load_config(config.model)) if config.dtype == "auto" else config.dtype


def _why_not_vllm(config: "BackendConfig") -> str:
    """Returns why "auto" does not take vLLM on a GPU; empty where it does."""
    if importlib.util.find_spec("vllm") is None:
        return "vLLM, which is faster on a GPU, is not installed here (pip install 'posgap[vllm]')"
    reason = config.why_in_memory()
    if reason:
        return reason
    from posgap.models.loading import load_config

    model = load_config(config.model)
    out_of_reach = [each["name"] for each in getattr(model, MITIGATIONS_KEY, None) or ()]
    if any(isinstance(row, list) for row in config_factors(model) or ()):
        out_of_reach.append("a factor for each head")
    if out_of_reach:
        return f"the model has {', '.join(out_of_reach)} in force, which vLLM cannot apply"
    if n_parameters(model) < MIN_PARAMETERS:
        return f"a model of less than {MIN_PARAMETERS // 10**6} million parameters answers sooner than vLLM starts"
    from vllm import ModelRegistry

    if not set(model.architectures or ()).intersection(ModelRegistry.get_supported_archs()):
        return f"vLLM has no {' or '.join(model.architectures or ['such model'])} of its own"
    return ""


@cache
def _tell(line: str) -> None:
    """Once in a process: a first look settles its config for the prompts that it times, and again for its sweep."""
    log.info("%s", line)


BACKENDS: Registry[Backend] = Registry("backend", "posgap.backends", AUTO, TRANSFORMERS, VLLM, OPENAI, APPLICATION)


_OF_LOCAL = {"dtype", "batch_tokens", "template"}  # parameters of models on this machine alone


def in_use(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a sweep's settings that its backend looks at: without the parameters of other backends."""
    backend = next((each for each in BACKENDS if each.name == settings.get("backend")), None)
    if backend is None:  # of a package that is not here
        return dict(settings)
    unused = {name for each in BACKENDS for name in each.parameters.model_fields} - {*backend.parameters.model_fields}
    return {n: v for n, v in settings.items() if n not in unused and (backend.local or n not in _OF_LOCAL)}


class BackendConfig(GenerationConfig):
    """The base of the configs of stages that generate; each adds the parameters of the backends that it offers."""

    vllm_options: ClassVar[Mapping[str, Any]] = {}  # further arguments of `vllm.LLM`

    backend: Annotated[str, BACKENDS, AfterValidator(BACKENDS.require_name)] = Field(
        AUTO.name,
        description=f"backend that generates, openai where there is an endpoint's address; {BACKENDS.help_text()}",
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
            raise ValueError(f"`base_url`: is an endpoint's, which backend {self.backend} does not ask; leave one out")
        return self

    def why_in_memory(self) -> str:
        """Returns what a stage needs a model in this process's memory for, which vLLM's is not; empty for nothing."""
        return ""

    def resolve_auto(self) -> Self:
        dtype = BACKENDS[self.backend].dtype(self)
        if dtype != self.dtype and (flag := bfloat16_of_cpu()) and dtype == "bfloat16" and device_class() == "cpu":
            _tell(f"bfloat16, since this processor computes it quicker ({flag}); --dtype float32 for single precision")
        return self.model_copy(update={"dtype": dtype}).resolve_backend()

    def resolve_backend(self) -> Self:
        """Returns this config with a backend in place of "auto"; on a GPU a line says which, and why."""
        if self.backend != AUTO.name:
            return self
        backend = TRANSFORMERS.name
        if device_class() != "cpu":
            reason = _why_not_vllm(self)
            backend = TRANSFORMERS.name if reason else VLLM.name
            _tell(f"backend {backend}: {reason or 'it is installed here, and there is a GPU'}")
        return self.model_copy(update={"backend": backend})

    def in_runs(self, verb: str) -> Path:
        """The folder in `runs`; of an endpoint it names the host too, since two of them may serve equal names."""
        address = getattr(self, "base_url", "").partition("://")[2]
        host = address.partition("/")[0].partition("?")[0].rpartition("@")[2]
        return super().in_runs(f"{verb}-{host}" if host else verb)

    def is_served(self, name: str) -> bool:
        return name == "model" and not BACKENDS[self.backend].local


LOCAL_BACKENDS = BACKENDS.where(lambda backend: backend.local)


class LocalBackendConfig(*LOCAL_BACKENDS.bases(), BackendConfig):  # type: ignore[misc]  # registered choices' parameters
    """The base of the configs of stages that want a model on this machine."""

    backend: Annotated[str, LOCAL_BACKENDS, AfterValidator(LOCAL_BACKENDS.require_name)] = Field(
        AUTO.name, description=f"backend that generates; {LOCAL_BACKENDS.help_text()}"
    )
