"""Options of `pipeline run`."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from posgap.foundation.fields import (
    OnThisMachine,
    OutputPath,
)
from posgap.options.pipelines import PipelineArguments
from posgap.options.verb import Verb


class PipelineRunConfig(PipelineArguments):
    """Runs a pipeline on this machine, without a cluster."""

    out: Annotated[OutputPath, OnThisMachine] = Field(
        Path("runs/pipeline"), description="folder of the run; complete steps in it are reused"
    )


VERB = Verb(PipelineRunConfig, "--smoke --out run/pipeline")
