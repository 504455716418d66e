"""Parameters of the requests to an endpoint."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator

from posgap.foundation.fields import RARE, from_json, pairs
from posgap.foundation.registry import SECRET, WITHOUT_EFFECT, Parameters

MAX_REQUESTS, CALLS = 256, 8  # at the same time, of an endpoint and of an application
_SENT_BY_US = {  # by the parameter that sets it
    "messages": "",
    "prompt": "",
    "n": "",
    "stream": "",
    "model": "model",
    "max_tokens": "max_new_tokens",
    "max_completion_tokens": "max_new_tokens",
    "chat_template_kwargs": "template_args",
}


class EndpointParameters(Parameters):
    """Which endpoint is asked, and how."""

    endpoint: Annotated[Literal["chat", "completions"], RARE] = Field(
        "chat",
        description="openai: chat: the endpoint applies the model's chat template; completions: it completes the bare "
        "prompt (base models)",
    )
    body: Annotated[dict[str, Any], BeforeValidator(from_json), RARE] = Field(
        {},
        description='openai: extra fields of each request as JSON, like {"reasoning_effort": "low"}; null removes '
        "a field; a string that is just $NAME is read from the environment",
    )
    header: Annotated[dict[str, str], BeforeValidator(pairs), SECRET, WITHOUT_EFFECT, RARE] = Field(
        {},
        description="openai: header of each request; $NAME is read from the environment, and its value is never stored",
    )
    identity: Annotated[Literal["fingerprint", "model", "any"], WITHOUT_EFFECT, RARE] = Field(
        "fingerprint",
        description="openai: what must not change during a sweep; fingerprint: the endpoint's model and fingerprint; "
        "model: its model; any: nothing",
    )
    concurrency: Annotated[int, WITHOUT_EFFECT] = Field(
        0,
        ge=0,
        description="openai: most parallel requests; posgap finds the fastest number up to it; 0: up to "
        f"{MAX_REQUESTS}; python: most parallel calls; 0: {CALLS}",
    )
    timeout: Annotated[float, WITHOUT_EFFECT, RARE] = Field(
        120.0, gt=0, description="openai, python: seconds to wait for a whole response, from sending the request"
    )
    base_url: str = Field(
        "", description="openai: address of the endpoint, like http://localhost:8000/v1, for --model NAME"
    )

    @field_validator("body")
    @classmethod
    def _more(cls, body: Any) -> dict[str, Any]:
        for name, parameter in _SENT_BY_US.items():
            if name in body:
                instead = f": give --{parameter.replace('_', '-')}" if parameter else ""
                raise ValueError(f"{name!r} is posgap's own{instead}")
        return body


class ApplicationParameters(EndpointParameters):
    """How an application is called."""

    version: Annotated[str, RARE] = Field(
        "", description="python: version of the application; a sweep of another one is another sweep"
    )
