"""Options of `doctor`."""

from typing import Literal

from pydantic import Field

from posgap.foundation.fields import OptionalInputPath
from posgap.options.base import Config
from posgap.options.verb import Verb


class DoctorConfig(Config):
    """Says what this machine can do, and how to install or repair what is missing. Exit code 1: something that is
    configured does not work.

    With --model it prints instead the RoPE factors that a loaded model applies, layer by layer, beside its config's.
    """

    model: OptionalInputPath = Field(None, description="Hugging Face model folder, to load and look at")
    backend: Literal["auto", "vllm", "transformers"] = Field(
        "auto", description="what loads the model; auto: vllm if it is installed, else transformers"
    )


VERB = Verb(DoctorConfig, "")
