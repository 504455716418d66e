"""Options of `approve`."""

from typing import Annotated

from pydantic import Field

from posgap.foundation.fields import (
    POSITIONAL,
)
from posgap.options.base import RegisteredConfig
from posgap.options.verb import Verb


class ApproveConfig(RegisteredConfig):
    """Makes the challenger of a registered model the champion: a version that was promoted with --approval."""

    version: Annotated[int, POSITIONAL] = Field(ge=1, description="number of the version that has the alias challenger")


VERB = Verb(ApproveConfig, "my-model 3")
