"""Options of `merge`."""

from typing import Annotated

from pydantic import Field

from posgap.foundation.fields import (
    POSITIONAL,
    InputPaths,
)
from posgap.options.base import StageConfig
from posgap.options.verb import Kind, Verb


class MergeConfig(StageConfig):
    """Merges the parts of a sweep into one, the same as if it had not been split."""

    sweeps: Annotated[InputPaths, POSITIONAL] = Field(
        min_length=1, description="folders from `sweep`, of the same model and examples, each with other placements"
    )


VERB = Verb(MergeConfig, "run/shard-1 run/shard-2 --out run/base", results=("sweep.json",), kind=Kind.STAGE)
