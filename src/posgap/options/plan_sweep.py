"""Options of `plan sweep`, and what `plan gate` takes too."""

from pydantic import Field

from posgap.foundation.fields import (
    OptionalInputPath,
)
from posgap.options.base import Config
from posgap.options.verb import Verb
from posgap.tasks.fields import MAX_DOCS


class ExpectedConfig(Config):
    sweep: OptionalInputPath = Field(
        None,
        description="folder from a `sweep` to take placements, mean and correlation from; empty: the options below",
    )
    n_docs: int = Field(20, ge=2, le=MAX_DOCS, description="number of placements to sweep")
    mean: float = Field(70.0, gt=0, lt=100, description="expected mean accuracy, in percent")
    correlation: float = Field(0.5, ge=0, lt=1, description="correlation of one example's outcomes at two positions")
    agreement: float = Field(
        0.8, ge=0, le=1, description="correlation of the examples' difficulties for two models; 1: the same are hard"
    )


class PlanConfig(ExpectedConfig):
    """Computes how many examples a sweep needs to detect a gap, or a difference between models, of a given size."""

    detect: float = Field(3.0, ge=0.01, le=100, description="size of the gap or difference to detect, in points")
    power: float = Field(
        0.8, gt=0.05, lt=1, description="statistical power: probability of detecting a gap of this size"
    )


VERB = Verb(PlanConfig, "--detect 3")
