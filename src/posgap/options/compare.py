"""Options of `compare`."""

from typing import Annotated

from pydantic import Field

from posgap.foundation.fields import (
    ALLOW,
    POSITIONAL,
    Allowed,
    InputPaths,
)
from posgap.options.base import StageConfig
from posgap.options.verb import Kind, Verb


class CompareConfig(StageConfig):
    """Compares sweeps of the same examples by paired differences: every model minus the first."""

    named_by = ("sweeps",)

    sweeps: Annotated[InputPaths, POSITIONAL] = Field(
        min_length=2,
        description="folders from `sweep`, or logs of Inspect (.eval), the reference first; each at one length, or all "
        "at several",
    )
    allow: Allowed = Field([], description=ALLOW)


VERB = Verb(
    CompareConfig,
    "run/base run/after --out run/comparison",
    results=("comparison.json", "comparison-lengths.json"),
    kind=Kind.STAGE,
)
