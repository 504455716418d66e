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
        description='openai: more fields of each request as JSON, like {"reasoning_effort": "low"}; a null leaves out '
        "what is sent otherwise; a text that is all $NAME stands for a variable of the environment",
    )
    header: Annotated[dict[str, str], BeforeValidator(pairs), SECRET, WITHOUT_EFFECT, RARE] = Field(
        {},
        description="openai: header of each request, in which $NAME stands for a variable of the environment; its "
        "value is written down nowhere",
    )
    identity: Annotated[Literal["fingerprint", "model", "any"], WITHOUT_EFFECT, RARE] = Field(
        "fingerprint",
        description="openai: what the endpoint must stay throughout a sweep; fingerprint: the same model with the same "
        "fingerprint; model: the same model; any: whatever it says",
    )
    concurrency: Annotated[int, WITHOUT_EFFECT] = Field(
        0,
        ge=0,
        description="openai: most requests at the same time; posgap finds how many the endpoint is quickest with; 0: "
        f"at most {MAX_REQUESTS}; python: calls at the same time; 0: {CALLS}",
    )
    timeout: Annotated[float, WITHOUT_EFFECT, RARE] = Field(
        120.0, gt=0, description="openai, python: seconds that a whole response may take, from when it was asked for"
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
