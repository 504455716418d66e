"""Options of `demo`."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from posgap.foundation.fields import (
    OnThisMachine,
    OptionalInputPath,
    OutputPath,
)
from posgap.options.base import Config
from posgap.options.verb import Verb


class DemoConfig(Config):
    """Trains a tiny model that gets lost in the middle, closes its gap and registers it."""

    out: Annotated[OutputPath, OnThisMachine] = Field(Path("runs/demo"), description="folder of the run")
    seed: int = Field(0, ge=0, description="seed of the tiny model and of every stage")
    data: Annotated[OptionalInputPath, OnThisMachine] = Field(
        None, description="lost-in-the-middle key-value file; empty: the demo makes its own"
    )
    smoke: bool = Field(
        False, description="a run of a minute that tries every step, on too little data for a meaningful verdict"
    )


VERB = Verb(DemoConfig, "--smoke --out run/demo")
