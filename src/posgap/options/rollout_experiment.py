"""Options of `rollout experiment`."""

from typing import Literal

from pydantic import Field

from posgap.options.base import SeededConfig
from posgap.options.verb import Kind, Verb


class RolloutExperimentConfig(SeededConfig):
    """Trains small attention-only networks with one cause of position bias at a time, and reports its effect."""

    preset: Literal["quick", "learned"] = Field(
        "quick",
        description="the experiment; learned: causal, window and prefix masks, five seeds each, half an hour; "
        "quick: two of its masks, one seed, minutes",
    )
    iterations: int = Field(0, ge=0, description="training steps; 0: the preset's")


VERB = Verb(
    RolloutExperimentConfig, "--preset quick --out run/experiment", results=("experiment.json",), kind=Kind.STAGE
)
