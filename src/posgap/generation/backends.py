"""The backends that generate responses: transformers and vLLM on this machine, or an endpoint elsewhere."""

import importlib.util
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, cast

from pydantic import Field

from posgap.foundation.errors import BadOption, PosgapError
from posgap.foundation.fields import RARE, is_function
from posgap.foundation.registry import WITHOUT_EFFECT, Parameters, Registry
from posgap.generation.application import Application, ApplicationGenerator, load_function
from posgap.generation.asking import ModelAccess, ResponseLimits, Wording
from posgap.generation.endpoint_parameters import ApplicationParameters, EndpointParameters
from posgap.generation.generator import Generator
from posgap.generation.served import EndpointIdentity
from posgap.generation.setup import builder_of
from posgap.mitigations.in_force import load_model
from posgap.models import ADAPTER, MITIGATIONS_KEY, NO_CONFIG
from posgap.models.precision import MIN_PARAMETERS, bfloat16_of_cpu, device_class, generating_dtype, n_parameters
from posgap.tasks.framing import Framing
from posgap.tasks.prompts import PromptBuilder, TextPromptBuilder
from posgap.tasks.registry import TASKS

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Backend:
    """A backend that generates responses, by its name for `--backend`.

    A backend that is not `local` calls a model elsewhere. It then has no tokenizer or parameters: prompts are sent as
    text, completions have no token ids (a teacher needs them), and the model's scaling is unknown. An `in_memory`
    backend runs a model in this process, so mitigations can be applied to it. `is_model` is false if the backend
    answers with something that no registry can serve. Parameters marked `WITHOUT_EFFECT` change the speed of
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

    def dtype(self, access: ModelAccess) -> str:
        """The dtype in which it answers: the requested one, or what "auto" stands for, if known."""
        return _dtype_here(access) if self.local else access.dtype

    def builder(self, access: ModelAccess, wording: Wording, limits: ResponseLimits) -> TextPromptBuilder:
        """The builder of the backend's prompts: with token ids for a local model, else as text."""
        if self.local:
            return builder_of(access.model, wording, limits)
        task = TASKS[wording.task]
        template = self.template(access)
        longest = limits.max_new_tokens or task.max_new_tokens
        self.require_framing(access, wording.framing)
        stop = limits.stop_strings(() if template else task.stop_of_base(wording.metric))
        return TextPromptBuilder(
            task, longest, wording.order, template, wording.framing, stop, limits.max_thinking_tokens
        )

    def template(self, access: ModelAccess) -> str:
        """The name of the template that a model elsewhere applies to a prompt's text: a word for its own chat template,
        else nothing.
        """
        return ""

    def require_framing(self, access: ModelAccess, framing: Framing) -> None:
        """Raises `PosgapError` if a model elsewhere cannot be asked with this framing."""
        if framing.template:
            raise BadOption(f"template: is only for local models; with backend {self.name} the server makes the chat")

    def decoding(self, access: ModelAccess, served: EndpointIdentity | None) -> str:
        """How tokens are chosen, if an endpoint reports it: greedily, as far as can be told."""
        return "greedy"

    def generator(self, access: ModelAccess, builder: TextPromptBuilder) -> Generator:
        """The generator that answers prompts of `builder`; raises `PosgapError` if something it needs is missing."""
        raise NotImplementedError


class VLLMParameters(Parameters):
    tensor_parallel_size: Annotated[int, WITHOUT_EFFECT, RARE] = Field(
        1, ge=1, description="vllm: number of GPUs that share the model, for one that is too large for a single GPU"
    )


class _Transformers(Backend):
    def generator(self, access: ModelAccess, builder: TextPromptBuilder) -> Generator:
        from posgap.generation.transformers import TransformersGenerator

        tokenizer = cast(PromptBuilder, builder).tokenizer
        return TransformersGenerator(load_model(access.model, access.dtype), tokenizer, access.batch_tokens, pack=True)


class _VLLM(Backend):
    def generator(self, access: ModelAccess, builder: TextPromptBuilder) -> Generator:
        from posgap.generation.vllm import VLLMGenerator
        from posgap.models.loading import load_config
        from posgap.models.rope_lengths import RopeLengths

        local = cast(PromptBuilder, builder)
        gpus = access.parameters_of(VLLMParameters).tensor_parallel_size
        # By default vLLM takes another length for these, and with it other frequencies.
        context = local.context if RopeLengths.from_config(load_config(access.model)) else None
        return VLLMGenerator(
            access.model, access.dtype, access.seed, local.tokenizer, gpus, context, **access.vllm_options
        )


class _Auto(Backend):
    """Stands for one of the others until model and machine are known; see `resolve_backend`."""

    def generator(self, access: ModelAccess, builder: TextPromptBuilder) -> Generator:
        return open_generator(resolve_backend(resolve_dtype(access)), builder)


class _OpenAI(Backend):
    def template(self, access: ModelAccess) -> str:
        return "endpoint's own" if access.parameters_of(EndpointParameters).endpoint == "chat" else ""

    def require_framing(self, access: ModelAccess, framing: Framing) -> None:
        super().require_framing(access, framing)
        if framing.shown_settings() and not self.template(access):
            raise BadOption(
                f"{', '.join(framing.shown_settings())}: a bare prompt has no chat around it; take --endpoint chat"
            )

    def decoding(self, access: ModelAccess, served: EndpointIdentity | None) -> str:
        temperature = access.parameters_of(EndpointParameters).body.get("temperature", 0)
        left_out = served is not None and "temperature" in served.left_out
        if left_out or temperature is None:
            return "endpoint's own"
        return f"temperature {temperature}" if temperature else "greedy"

    def generator(self, access: ModelAccess, builder: TextPromptBuilder) -> Generator:
        from posgap.generation.openai import OpenAIGenerator

        parameters = access.parameters_of(EndpointParameters)
        if not parameters.base_url:
            raise BadOption("backend openai: give `base_url`, like http://localhost:8000/v1")
        return OpenAIGenerator(access.model, parameters, builder.framing)


class _Application(Backend):
    def takes(self, model: str) -> bool:
        return is_function(model)

    def template(self, access: ModelAccess) -> str:
        return "application's own"

    def require_framing(self, access: ModelAccess, framing: Framing) -> None:
        given = {"system": framing.system, "template": framing.template, "template_args": framing.arguments}
        parameters = access.parameters_of(ApplicationParameters).model_dump(exclude_defaults=True)
        for name in [*filter(given.get, given), *parameters.keys() - {"concurrency", "timeout", "version"}]:
            raise BadOption(f"{name}: an application makes its own prompts; leave it out")

    def decoding(self, access: ModelAccess, served: EndpointIdentity | None) -> str:
        return "application's own"

    def generator(self, access: ModelAccess, builder: TextPromptBuilder) -> Generator:
        application = Application(load_function(access.model), access.model)
        return ApplicationGenerator(application, access.parameters_of(ApplicationParameters), builder)


AUTO = _Auto(
    "auto",
    "vllm if there is a GPU, it is installed and serves the model; else transformers",
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


def open_generator(access: ModelAccess, builder: TextPromptBuilder) -> Generator:
    """The generator of a model's answers; raises `PosgapError` if something the backend needs is missing."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise PosgapError("a model answers in one process; run this without a launcher, and split a sweep by `shard`")
    return BACKENDS[access.backend].generator(access, builder)


def _dtype_here(access: ModelAccess) -> str:
    folder = Path(access.model)
    if folder.is_dir() and not any((folder / name).is_file() for name in ("config.json", ADAPTER)):
        raise PosgapError(f"{access.model}: no model to load here: {NO_CONFIG}")  # before seconds of imports
    from posgap.models.loading import load_config

    return generating_dtype(access.dtype, load_config(access.model)) if access.dtype == "auto" else access.dtype


def _why_not_vllm(access: ModelAccess) -> str:
    """Returns why "auto" does not take vLLM on a GPU; empty if it does."""
    if importlib.util.find_spec("vllm") is None:
        return "vLLM, which is faster on a GPU, is not installed here (pip install 'posgap[vllm]')"
    if access.why_in_memory:
        return access.why_in_memory
    from posgap.models.loading import load_config

    model = load_config(access.model)
    out_of_reach = [each["name"] for each in getattr(model, MITIGATIONS_KEY, None) or ()]
    if out_of_reach:
        return f"the model has {', '.join(out_of_reach)} in force, which vLLM cannot apply"
    if n_parameters(model) < MIN_PARAMETERS:
        return f"a model of less than {MIN_PARAMETERS // 10**6} million parameters answers sooner than vLLM starts"
    from vllm import ModelRegistry

    if not set(model.architectures or ()).intersection(ModelRegistry.get_supported_archs()):
        return f"vLLM has no {' or '.join(model.architectures or ['such model'])} of its own"
    return ""


def resolve_dtype(access: ModelAccess) -> ModelAccess:
    """Returns it with a dtype in place of "auto", if that is known; for a quick processor a line says which."""
    dtype = BACKENDS[access.backend].dtype(access)
    if dtype != access.dtype and (flag := bfloat16_of_cpu()) and dtype == "bfloat16" and device_class() == "cpu":
        _tell(f"bfloat16, since this processor computes it quicker ({flag}); --dtype float32 for single precision")
    return replace(access, dtype=dtype)


def resolve_backend(access: ModelAccess) -> ModelAccess:
    """Returns it with a backend in place of "auto"; on a GPU a line says which, and why."""
    if access.backend != AUTO.name:
        return access
    backend = TRANSFORMERS.name
    if device_class() != "cpu":
        reason = _why_not_vllm(access)
        backend = TRANSFORMERS.name if reason else VLLM.name
        _tell(f"backend {backend}: {reason or 'it is installed here, and there is a GPU'}")
    return replace(access, backend=backend)


@cache
def _tell(line: str) -> None:
    """Once in a process: a first look settles the backend for the prompts that it times, and again for its sweep."""
    log.info("%s", line)


BACKENDS: Registry[Backend] = Registry("backend", "posgap.backends", AUTO, TRANSFORMERS, VLLM, OPENAI, APPLICATION)


_OF_LOCAL = {"dtype", "batch_tokens", "template"}  # parameters of models on this machine alone


def in_use(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The sweep's settings that its backend reads, without other backends' parameters."""
    backend = next((each for each in BACKENDS if each.name == settings.get("backend")), None)
    if backend is None:  # of a package that is not here
        return dict(settings)
    unused = {name for each in BACKENDS for name in each.parameters.model_fields} - {*backend.parameters.model_fields}
    return {n: v for n, v in settings.items() if n not in unused and (backend.local or n not in _OF_LOCAL)}


LOCAL_BACKENDS = BACKENDS.where(lambda backend: backend.local)
